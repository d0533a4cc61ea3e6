"""Runs whose policy searches: they wait for their schedule, which the search worker looks for."""

import pytest

from engine.inputs import parse
from engine.job.shape import shape_of
from engine.plan.answer import plan as solve
from engine.plan.cell import simulated
from engine.plan.request import PlanRequest
from engine.schedule.text import parse_schedule
from tests.site.computations import plan_asked_for
from tests.site.test_plan_launch_form import launch
from tests.site.test_reconcile import Nodes
from tests.site.world import World
from webapp.computations.computing import work_at
from webapp.computations.models import Computation, ComputationState
from webapp.jobs.models import Run, RunEvent, Status
from webapp.jobs.reconcile import reconcile
from webapp.jobs.services import cancel_run, launch_run, retry_run
from webapp.planning.services import ask_to_refine


@pytest.fixture(autouse=True)
def _short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.planning.document.LONGEST_SEARCH_S", 0.2)


def searched(world: World, **changes: object) -> Run:
    launch(world, name="searched", policy="auto", **changes)
    return Run.objects.select_related("job").get(job__name="searched")


def test_it_starts_once_the_worker_has_its_schedule(world: World) -> None:
    world.hear()
    nodes, run = Nodes(), searched(world)
    reconcile(nodes)
    run.refresh_from_db()
    assert (run.status, run.predicted, "schedule" in run.job.document["strategy"]) == (
        Status.QUEUED,
        {},
        False,
    )
    assert run.waits_for.startswith("Waits for its schedule: Automatic, a search")
    page = world.client("viewer").get(f"/runs/{run.pk}/").content.decode()
    assert "Waits for its schedule" in page
    assert run.search_id is not None
    work_at(run.search_id)
    world.hear()
    reconcile(nodes)
    run = Run.objects.select_related("job").get(pk=run.pk)
    assert (run.status, run.search) == (Status.STARTING, None)
    schedule = parse_schedule(run.job.document["strategy"]["schedule"])
    assert schedule.microbatches == run.job.document["cell"]["microbatches"]
    assert run.predicted["iteration_ms"] > 0
    cell = run.job.document["cell"]["pipelines"] // run.job.document["cell"].get("cells", 1)
    assert shape_of(run.job.document).pairs == (cell if schedule.sharing == "temporal" else 1)
    assert RunEvent.objects.filter(run=run, text__startswith="Its schedule was found").exists()
    assert launch_run(world.users["operator"], run.job).search is None  # the job has its schedule


def test_one_that_is_stopped_meanwhile_does_not_start(world: World) -> None:
    run = searched(world)
    cancel_run(world.users["operator"], run)
    assert run.search_id is not None
    work_at(run.search_id)
    run = Run.objects.select_related("job").get(pk=run.pk)
    assert (run.status, "schedule" in run.job.document["strategy"]) == (Status.CANCELLED, False)
    assert Computation.objects.get(pk=run.search_id).state == ComputationState.CANCELLED
    again = retry_run(world.users["operator"], run)
    assert again.search_id not in (None, run.search_id)


def test_where_it_cannot_run_it_fails_with_the_reason(world: World) -> None:
    run = searched(world)
    for dc in world.dcs:
        dc.pools.update(gpu_type="gone")
    assert run.search_id is not None
    work_at(run.search_id)
    run.refresh_from_db()
    assert (run.status, run.predicted) == (Status.FAILED, {})
    assert run.status_reason.startswith("No schedule: ")
    assert Computation.objects.get(pk=run.search_id).state == ComputationState.FAILED


def test_the_orders_of_a_refined_option_are_run_as_they_are(world: World) -> None:
    plan = world.plan
    plan.request = {**plan.request, "policy": "auto"}
    answer = solve(parse(PlanRequest, plan.request)).as_dict()
    best = answer["best"]
    atlas = parse(PlanRequest, {**plan.request, "policy": "atlas"})
    timeline = simulated(atlas, solve(atlas).options[best]).timeline
    assert timeline is not None
    answer["options"][best]["schedule"] = str(timeline.schedule)
    plan.result = answer
    plan.save()
    run = world.launch()
    assert run.job.document["strategy"]["schedule"] == str(timeline.schedule)
    assert run.search is None
    launch(world, name="kept", option=best, steps=77)
    assert Run.objects.get(job__name="kept").search is None
    launch(world, name="changed", option=best, microbatches=3)
    assert Run.objects.get(job__name="changed").search is not None


def test_a_refinement_gives_way_to_what_somebody_waits_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {**world.plan.request, "policy": "auto", "method": "search"}
    refinement = ask_to_refine(world.users["operator"], world.plan, request)
    waiting = plan_asked_for(world)
    monkeypatch.setattr("webapp.computations.computing.BEAT_S", 0.0)
    monkeypatch.setattr("webapp.computations.wires.BEAT_S", 0.0)
    work_at(refinement.pk)
    refinement.refresh_from_db()
    assert (refinement.state, refinement.answer) == (ComputationState.QUEUED, None)
    work_at(waiting.pk)
    monkeypatch.setattr("webapp.planning.work.SHAPE_S", 0.1)
    work_at(refinement.pk)
    refinement.refresh_from_db()
    assert refinement.state == ComputationState.DONE
