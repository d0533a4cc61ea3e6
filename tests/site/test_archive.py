"""Archiving and deleting plans, placements, comparisons and runs: one way for all; what goes, what stays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import models
from django.urls import reverse

from tests.site.computations import comparison, placement, queued
from tests.site.replays import answered, started
from tests.site.telemetry import measure
from tests.site.traces import trace, uploaded
from webapp.accounts.models import AuditEntry
from webapp.common.archived import Archivable, ArchivedFilterSet
from webapp.common.parts import parts_of
from webapp.computations.filters import ComputationFilterSet
from webapp.computations.models import Computation, ComputationKind
from webapp.inventory.models import DataCenter, Node, WanLink
from webapp.jobs import services as jobs
from webapp.jobs.filters import RunFilterSet
from webapp.jobs.models import Job, Run
from webapp.planning import services as planning
from webapp.planning.models import Plan
from webapp.planning.tables import PlanFilterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of things that are put away, and how a world gets two of it."""

    address: str
    model: Any
    two: Callable[[Any], list[Any]]


def two_plans(world: Any) -> list[Any]:
    return [world.plan, planning.clone_plan(world.users["operator"], world.plan)]


def two_runs(world: Any) -> list[Any]:
    return [jobs.fail_run(world.launch(), "Broken.") for _ in range(2)]


KINDS = {
    "plan": Kind(address="planning:plan", model=Plan, two=two_plans),
    "placement": Kind(
        address="placement:placement",
        model=Computation,
        two=lambda w: [placement(w), queued(w, placement(w).request, ComputationKind.PLACEMENT)],
    ),
    "comparison": Kind(
        address="schedules:schedule", model=Computation, two=lambda w: [comparison(w), queued(w)]
    ),
    "trace": Kind(address="traces:trace", model=Computation, two=lambda w: [trace(w), uploaded(w)]),
    "replay": Kind(address="prefill:replay", model=Computation, two=lambda w: [answered(w), started(w)]),
    "run": Kind(address="jobs:run", model=Run, two=two_runs),
}


def send(client: Any, kind: Kind, verb: str, *things: Any, **data: Any) -> Any:
    keys = [str(thing.pk) for thing in things]
    return client.post(reverse(f"{kind.address}-{verb}"), {"pk": keys, **data})


def shown(client: Any, kind: Kind, query: str = "") -> set[Any]:
    """The keys of the rows that the list shows."""
    page = client.get(f"{reverse(f'{kind.address}-list')}{query}")
    return {row.record.pk for row in page.context["table"].page}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_archived_leaves_the_list_and_comes_back(world: Any, name: str) -> None:
    kind, client = KINDS[name], world.client("operator")
    one, other = kind.two(world)
    assert shown(client, kind) >= {one.pk, other.pk}
    there = reverse(f"{kind.address}-detail", args=[one.pk])
    assert send(client, kind, "archive", one)["Location"] == there
    assert shown(client, kind) == {other.pk}
    assert shown(client, kind, "?archived=on") == {one.pk}
    page = client.get(there).content.decode()
    assert "Lists hide it." in page
    assert f'action="{reverse(f"{kind.address}-restore")}"' in page
    send(client, kind, "archive", other)
    assert "All of them are archived." in client.get(reverse(f"{kind.address}-list")).content.decode()
    back = send(client, kind, "restore", one, other, query="archived=on")
    assert back["Location"] == f"{reverse(f'{kind.address}-list')}?archived=on"
    assert shown(client, kind) >= {one.pk, other.pk}
    verbs = AuditEntry.objects.filter(object_type=kind.model._meta.model_name).values_list("verb", flat=True)
    assert [list(verbs).count(verb) for verb in ("archive", "restore")] == [2, 2]


@pytest.mark.parametrize("name", KINDS)
def test_what_is_deleted_was_asked_about(world: Any, name: str) -> None:
    kind, client = KINDS[name], world.client("operator")
    things = kind.two(world)
    asks = send(client, kind, "delete", *things)
    assert asks.status_code == 302
    assert kind.model.objects.filter(pk__in=[t.pk for t in things]).count() == 2
    page = client.get(asks["Location"])
    assert page.context["named"] == things or set(page.context["named"]) == set(things)
    assert "cannot be undone" in page.content.decode()
    gone = send(client, kind, "delete", *things, confirmed="1")
    assert gone["Location"] == reverse(f"{kind.address}-list")
    assert not kind.model.objects.filter(pk__in=[thing.pk for thing in things]).exists()
    assert AuditEntry.objects.filter(verb="delete", object_id=str(things[0].pk)).exists()
    assert send(client, kind, "delete", *things, confirmed="1").status_code == 404


@pytest.mark.parametrize("name", KINDS)
def test_only_operators_of_the_team_put_away(world: Any, name: str) -> None:
    kind = KINDS[name]
    one, _ = kind.two(world)
    for verb in ("archive", "restore", "delete"):
        assert send(world.client("viewer"), kind, verb, one, confirmed="1").status_code == 403
        assert send(world.client("stranger"), kind, verb, one, confirmed="1").status_code == 404
        assert send(world.client("operator"), kind, verb).status_code == 302  # nothing was chosen
        assert (
            world.client("operator").post(reverse(f"{kind.address}-{verb}"), {"pk": "no key"}).status_code
            == 404
        )
    shown = world.client("viewer").get(reverse(f"{kind.address}-list"))
    assert not shown.context["bulk"]
    assert "Delete…" not in shown.content.decode(), "who reads runs ticks them to compare two, and no more"
    one.refresh_from_db()
    assert one.archived_at is None


def test_every_archivable_model_is_hidden_by_its_filter() -> None:
    filters = (PlanFilterSet, ComputationFilterSet, RunFilterSet)
    assert all(issubclass(each, ArchivedFilterSet) for each in filters)
    assert {each._meta.model for each in filters} == set(Archivable.__subclasses__())


@pytest.mark.parametrize(("kind", "model"), [("run", Run), ("plan", Plan)])
def test_all_that_goes_with_a_thing_is_named(kind: str, model: Any) -> None:
    """Whatever the database deletes with a row is counted on the page that asks first."""
    fields = model._meta.get_fields(include_hidden=True)
    related = [
        each for each in fields if getattr(each, "on_delete", None) is models.CASCADE and each.auto_created
    ]
    goes = {each.related_model for each in related}
    named = {part.rows([]).model for part in parts_of(kind)}
    joined = {Computation} if kind == "plan" else set()  # by way of PlanComputation
    assert {each for each in goes if each.__name__ != "PlanComputation"} | joined == named


def test_a_run_that_has_not_ended_stays_where_it_is(world: Any) -> None:
    kind, client, run = KINDS["run"], world.client("operator"), world.launch()
    send(client, kind, "archive", run)
    refused = client.get(reverse("jobs:run-detail", args=[run.pk])).content.decode()
    assert f"{run} is queued. Stop it first." in refused
    answer = send(client, kind, "delete", run, confirmed="1")
    assert answer.status_code == 409
    assert "Stop it first." in answer.content.decode()
    run.refresh_from_db()
    assert run.archived_at is None


def test_a_run_goes_with_its_telemetry_and_its_job_with_the_last_run(world: Any) -> None:
    kind, client, run = KINDS["run"], world.client("operator"), world.launch()
    measure(world, run, iterations=2)
    Run.objects.filter(pk=run.pk).update(saved_step=2, saved_where="/data/east/step-2")
    jobs.fail_run(run, "Broken.")
    again = jobs.fail_run(jobs.retry_run(world.users["operator"], run), "Broken.")
    page = client.get(f"{reverse('jobs:run-delete')}?pk={run.pk}")
    assert "2 iterations with their metrics" in page.context["goes"]
    assert "Checkpoints stay on the disks of the nodes: /data/east/step-2." in page.content.decode()
    send(client, kind, "delete", run, confirmed="1")
    assert Job.objects.filter(pk=run.job_id).exists()
    send(client, kind, "delete", again, confirmed="1")
    assert not Job.objects.filter(pk=run.job_id).exists()
    assert all(not part.rows([run, again]).exists() for part in parts_of("run"))


def test_a_run_that_another_continues_is_deleted_after_it(world: Any) -> None:
    kind, client = KINDS["run"], world.client("operator")
    first, second = two_runs(world)
    Run.objects.filter(pk=second.pk).update(moved_from=first)
    refused = client.get(f"{reverse('jobs:run-delete')}?pk={first.pk}").context["blocked"]
    assert refused == f"{second} continues {first}. Delete {second} first, or both together."
    assert send(client, kind, "delete", first, confirmed="1").status_code == 409
    assert send(client, kind, "delete", first, second, confirmed="1").status_code == 302


def test_a_plan_goes_with_its_computations_and_its_runs_stay(world: Any) -> None:
    kind, client, run = KINDS["plan"], world.client("operator"), world.launch()
    planning.ask_to_refine(world.users["operator"], world.plan, world.plan.request)
    page = client.get(f"{reverse('planning:plan-delete')}?pk={world.plan.pk}")
    assert page.context["goes"] == ["1 computation"]
    send(client, kind, "delete", world.plan, confirmed="1")
    assert not Computation.objects.exists()
    run.refresh_from_db()
    assert run.job.plan is None
    assert run.job.document["cell"]["stages"] == 6
    assert "plan three" in client.get(reverse("jobs:run-detail", args=[run.pk])).content.decode()
    assert "(deleted)" in client.get(reverse("jobs:run-detail", args=[run.pk])).content.decode()


def test_a_plan_protects_nothing_and_says_what_is_gone(world: Any) -> None:
    """The page shows what was counted on; Launch says what an option lacks."""
    client, there = world.client("operator"), reverse("planning:plan-detail", args=[world.plan.pk])
    world.hear()
    assert client.get(there).context["missing"] == []
    before = client.get(there).context["options"]
    assert client.post(reverse("inventory:link-delete", args=[world.link.pk])).status_code == 302
    page = client.get(there)
    assert page.context["missing"] == ["link east – mid"]
    assert page.context["options"] == before
    assert not page.context["launch"]["ok"]
    assert "no longer in the inventory" in page.context["launch"]["reason"]
    Node.objects.all().delete()
    WanLink.objects.all().delete()
    for dc in DataCenter.objects.all():
        assert client.post(reverse("inventory:datacenter-delete", args=[dc.pk])).status_code == 302
    page = client.get(there)
    assert page.context["missing"] == ["GPU pool east", "GPU pool mid", "GPU pool west"]
    assert page.context["options"] == before
    assert not page.context["launch"]["ok"]
    for address in ("planning:plan-refining", "planning:plan-document"):
        assert client.get(reverse(address, args=[world.plan.pk])).status_code == 200


def test_an_archived_run_is_no_longer_on_other_pages(world: Any) -> None:
    """A failure that somebody has put away needs nobody's attention; the plan's own list has it no more."""
    client, run = world.client("operator"), two_runs(world)[0]
    plan = reverse("planning:plan-detail", args=[world.plan.pk])
    assert run.pk in {entry["id"] for entry in client.get("/").context["runs"]}
    send(client, KINDS["run"], "archive", *Run.objects.all(), query="")
    overview = client.get("/")
    assert overview.context["runs"] == []
    assert f"{run} failed" not in overview.content.decode()
    assert not client.get(plan).context["runs"].rows
