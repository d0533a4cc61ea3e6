"""The models that runs serve: those of open prefill coordinators, and of runs that will open one."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import QuerySet
from pydantic import ValidationError

from engine.job.prefill.settings import PrefillSettings
from webapp.inventory.models import DataCenter
from webapp.jobs.models import Run
from webapp.live.models import PrefillCoordinator, PrefillSecond
from webapp.prefill.answers import ApiError, no_such_model
from webapp.prefill.models import Tenancy


def coordinators_in(teams: Any) -> QuerySet[PrefillCoordinator]:
    """The open prefill coordinators of the runs of `teams`."""
    return PrefillCoordinator.objects.usable().filter(run__job__team__in=teams)


def served_models(teams: Any) -> set[str]:
    """Their models, and those of runs that have not ended, whose prefill coordinators open when they
    train.
    """
    sections = Run.objects.open().filter(job__team__in=teams, job__document__prefill__isnull=False)
    promised = map(settings_in, sections.values_list("job__document__prefill", flat=True))
    return {*coordinators_in(teams).values_list("model", flat=True), *(one.model for one in promised if one)}


def open_places(tenancies: Sequence[Tenancy]) -> dict[int, list[str]]:
    """{tenancy: names of its data centres where a run takes prompts of its model now}."""
    rows = coordinators_in({one.team_id for one in tenancies}).filter(
        model__in={one.model for one in tenancies}
    )
    opened = set(rows.values_list("run__job__team", "model", "dc"))
    return {
        one.pk: [dc.name for dc in one.datacenters if (one.team_id, one.model, dc.pk) in opened]
        for one in tenancies
    }


def served_first(tenancies: Iterable[Tenancy]) -> list[Tenancy]:
    """Those whose model a run takes prompts of now, then the others, in their order."""
    rows = list(tenancies)
    opened = open_places(rows)
    return sorted(rows, key=lambda one: not opened[one.pk])


def settings_in(section: Any) -> PrefillSettings | None:
    """A job's `prefill`; None of a job without one, or with one of another version that cannot be read."""
    try:
        return PrefillSettings.model_validate(section) if section else None
    except ValidationError:
        return None


def places_of(tenancy: Tenancy, name: object) -> list[DataCenter]:
    """Where `name`, a model or model@dc, may run for a tenancy.

    Raises
    ------
    ApiError
        It is not the tenancy's: for its key it does not exist.
    """
    if not isinstance(name, str):
        text = "model must be text, as in llama-3-8b or llama-3-8b@us-east."
        raise ApiError(400, "invalid_value", text, param="model")
    offering = [dc for dc in tenancy.datacenters if name in (tenancy.model, f"{tenancy.model}@{dc.name}")]
    if not offering:
        raise no_such_model(name)
    return offering


def coordinators_for(tenancy: Tenancy, dc: DataCenter) -> QuerySet[PrefillCoordinator]:
    """The open prefill coordinators in `dc` that may be handed a tenancy's prompts."""
    return coordinators_in([tenancy.team_id]).filter(model=tenancy.model, dc=dc)


def all_paused(coordinators: QuerySet[PrefillCoordinator]) -> bool:
    """Whether every one of `coordinators` said last that training takes longer than it may."""
    last = PrefillSecond.objects.filter(run__in=coordinators.values("run")).order_by("run_id", "dc_id", "-t")
    paused = {(row.run_id, row.dc_id): row.paused for row in last.distinct("run_id", "dc_id")}
    return all(paused.get((coordinator.run_id, coordinator.dc_id), False) for coordinator in coordinators)
