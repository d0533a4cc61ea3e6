"""Searching for the schedule of a run, by the search worker."""

from collections.abc import Iterator
from typing import Any

from engine.errors import InputError
from engine.job.memory import stage_memory
from webapp.computations.wires import Wires
from webapp.inventory.selectors.pools import pools
from webapp.jobs.dry import memory_check
from webapp.jobs.models import Run
from webapp.jobs.prediction import predicted_payload
from webapp.jobs.services import fail_run, record_schedule
from webapp.planning.document import pinned_document, site_job


def find_schedule(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"run": its number}: the run may start. One that cannot be scheduled fails, with the reason."""
    wires.of = 1
    run = Run.objects.select_related("job__team").filter(pk=request["run"]).first()
    if run is None or run.is_over:
        return
    try:
        document = pinned_document(run.job.document, wires.search)
        if wires.cancelled():
            return
        _refuse_without_room(run, document)
        predicted = predicted_payload(document)
    except InputError as error:
        if wires.cancelled():  # before it had found any
            return
        fail_run(run, f"No schedule: {error}.")
        raise
    except Exception as error:
        fail_run(run, f"The search for its schedule failed: {type(error).__name__}.")
        raise
    if record_schedule(run, document, predicted):
        yield {"run": run.pk}


def _refuse_without_room(run: Run, document: dict[str, Any]) -> None:
    job = site_job(document)
    named = pools(run.job.team, [dc.name for dc in job.datacenters])
    room = memory_check(job, stage_memory(job), named)
    if not room.ok:
        raise InputError(
            "strategy.memory_limit", job.pipeline_strategy.memory_limit, f"set a lower one: {room.text}"
        )
