"""Runs that hold GPUs in reserve: which they get, what nodes are told, and what becomes of each."""

from typing import Any

import pytest

from engine.inputs import parse
from engine.job.adapt.layouts import Conditions, better_layout
from engine.job.changed import changed
from engine.job.events.incidents import Cause, LayoutChanged
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec
from engine.job.recovery.layout import change
from tests.events import T0
from tests.site.telemetry import take_in
from tests.site.test_reconcile import Nodes, nodes, report  # noqa: F401  (a fixture)
from tests.site.world import make_node
from webapp.inventory.models import Device
from webapp.jobs.models import RankState, Run, RunEvent, Status
from webapp.jobs.reconcile import reconcile, spec_of
from webapp.jobs.reserve import in_reserve
from webapp.jobs.services import launch_plan
from webapp.live.incidents import incidents_of
from webapp.live.selectors import snapshot
from webapp.planning.document import train_document


def grows(most: int) -> dict[str, Any]:
    return {
        "cell.pipelines": 1,
        "cell.cells": 1,
        "cell.microbatches": 8,
        "persistence.checkpoint": {"dir": "/saved", "every": 100},
        "failures.recovery": {"layers_per_gpu": 6},
        "failures.adapt": {"layout": True, "most_gpus": most},
        "strategy.schedule": None,
    }


def launched(world: Any, most: int = 12) -> Run:
    """A run of one pipeline of six stages, on half of the GPUs of the world."""
    best = world.plan.result["best"]
    planned = train_document(world.plan.request, world.plan.result["options"][best], world.plan.training)
    document = changed(planned, grows(most))
    return launch_plan(world.users["operator"], world.plan, best, name="grows", document=document)


def started(world: Any, nodes: Nodes, most: int = 12) -> Run:  # noqa: F811
    """The same while it runs: its nodes have said what is in reserve."""
    world.hear()
    run = launched(world, most)
    reconcile(nodes)
    report(run, "reserve", range(6, run.ranks.count()))
    report(run, "running", range(6))
    run.refresh_from_db()
    world.hear(ranks=seen(run))
    assert run.status == Status.RUNNING
    return run


def seen(run: Run) -> list[dict[str, Any]]:
    return [{"run": str(run.pk), "generation": run.generation, "rank": rank} for rank in range(20)]


def specs(nodes: Nodes) -> dict[str, LaunchSpec]:  # noqa: F811
    """What nodes were told to start, by node."""
    sent, nodes.sent = nodes.sent, []
    return {node: LaunchSpec.from_json(kwargs["spec"]) for node, task, kwargs in sent if "start" in task}


def test_a_launch_holds_the_reserve_and_nodes_are_told_of_it(world: Any, nodes: Nodes) -> None:  # noqa: F811
    world.hear()
    run = launched(world, 10)
    reconcile(nodes)
    ranks = RankState.objects.filter(run=run).select_related("dc")
    in_order = [rank.dc.name for rank in ranks]
    assert in_order == ["east", "east", "mid", "mid", "west", "west", "east", "east", "mid", "mid"]
    assert len({(rank.node_id, rank.gpu) for rank in ranks}) == 10
    by_node = specs(nodes)
    assert set(by_node) == {"east-1", "mid-1", "west-1"}
    assert by_node["east-1"].local == (0, 1, 6, 7)
    assert [(a.rank, a.dc_name, a.gpu) for a in by_node["east-1"].reserve] == [
        *((6, "east", 2), (7, "east", 3), (8, "mid", 2), (9, "mid", 3))
    ]
    assert [a.rank for a in by_node["east-1"].ranks] == list(range(6))


def test_the_run_runs_once_those_in_use_do(world: Any, nodes: Nodes) -> None:  # noqa: F811
    run = started(world, nodes)
    assert RunEvent.objects.filter(run=run, text="All 6 ranks are running.").exists()
    states = {row["rank"]: row["state"] for row in snapshot(run.pk)["ranks"]}
    assert states == {**dict.fromkeys(range(6), "running"), **dict.fromkeys(range(6, 12), "reserve")}
    assert len(snapshot(run.pk)["lanes"]) == 12
    page = world.client("viewer").get(f"/runs/{run.pk}/").content.decode()
    assert page.count('data-state="reserve"') == 6
    nodes.take()
    reconcile(nodes)
    assert nodes.take() == [], "who is in reserve was told"


def test_fewer_idle_gpus_are_no_reason_to_wait(world: Any, nodes: Nodes) -> None:  # noqa: F811
    world.nodes[2].gpus = 2
    world.nodes[2].save()
    assert [rank.rank for rank in started(world, nodes).ranks.all()] == list(range(10))


def test_a_node_that_joins_is_taken_into_the_reserve(world: Any, nodes: Nodes) -> None:  # noqa: F811
    world.nodes[0].gpus = 2
    world.nodes[0].save()
    run = started(world, nodes)
    assert [rank.rank for rank in run.ranks.all()] == [*range(6), 8, 9, 10, 11], "none of east is idle"
    lanes = snapshot(run.pk)["lanes"]
    assert [lane["rank"] for lane in lanes] == list(range(12)), "a lane's place is its rank"
    assert [lane["node"] for lane in lanes[6:9]] == [None, None, "mid-1"]
    late = make_node(world.dcs[0], "east-2", gpus=4, device=Device.EMULATED, acl_sha256="0" * 64)
    nodes.take()
    world.hear(*world.nodes, late, ranks=seen(run))
    reconcile(nodes)
    by_node = specs(nodes)
    assert set(by_node) == {"east-2"}
    assert by_node["east-2"].local == (6, 7)
    assert RunEvent.objects.filter(
        run=run, text="Took into the reserve: GPU 0 of east-2, GPU 1 of east-2."
    ).exists()
    reconcile(nodes)
    assert run.ranks.count() == 12, "no more than it may hold"


def test_a_queued_run_comes_before_the_reserve(world: Any, nodes: Nodes) -> None:  # noqa: F811
    world.nodes[0].gpus = 2
    world.nodes[0].save()
    run = started(world, nodes)
    world.launch()
    make_node(world.dcs[0], "east-2", gpus=1, device=Device.EMULATED, acl_sha256="0" * 64)
    world.hear(ranks=seen(run))
    reconcile(nodes)
    assert run.ranks.count() == 10


def moved(run: Run) -> dict[str, Any]:
    """The event of a run that found a layout on more of its GPUs."""
    spec = spec_of(run, run.ranks.get(rank=0).node)
    layout = better_layout(
        spec, Conditions(of_gpu={}, transfer={}, latency_ms={}), than_s=600.0, reserve=spec.reserve
    )
    assert layout is not None
    event = LayoutChanged(
        rank=0,
        iteration=41,
        cause=Cause.RESERVE,
        before_s=9.0,
        after_s=layout.iteration_s,
        gain_s=30.0,
        cost_s=4.0,
        attempt=2,
        times=layout.layout.times,
        t=T0 + 6,
        **change(spec, layout.layout.applied(spec), "another layout is faster"),
    )
    return {**event.to_dict(), "run": str(run.pk), "generation": run.generation}


def test_a_move_to_gpus_in_reserve_is_shown_and_they_count_as_in_use(world: Any, nodes: Nodes) -> None:  # noqa: F811
    run = started(world, nodes)
    Run.objects.filter(pk=run.pk).update(steps=100)
    run.refresh_from_db()
    event = moved(run)
    joined = {one["rank"] for one in event["joined"]}
    assert joined
    assert joined <= set(range(6, 12))
    take_in([(run.ranks.get(rank=0).node.name, "1790000000000-0", event)])
    run.refresh_from_db()
    assert not joined & in_reserve(run)
    (mark,) = RunEvent.objects.filter(run=run, text__startswith="Moved to another layout")
    assert "from the reserve" in mark.text
    assert "GPUs in reserve had not been considered" in mark.text
    (row,) = incidents_of(run).rows
    assert "from the reserve" in row.went_on
    for rank in joined:
        report(run, "running", range(rank, rank + 1))
    states = {row["rank"]: row["state"] for row in snapshot(run.pk)["ranks"]}
    left = set(event.get("left") or ())
    assert {states[rank] for rank in joined} == {"running"}
    assert {states[rank] for rank in left} <= {"reserve"}, "what a move leaves stays"


def test_a_gpu_in_reserve_that_is_lost_leaves_the_run_alone(world: Any, nodes: Nodes) -> None:  # noqa: F811
    run = started(world, nodes)
    report(run, "failed", range(11, 12), detail="killed by SIGKILL", exit_code=-9)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    assert run.ranks.get(rank=11).state == "finished"
    assert RunEvent.objects.filter(run=run, text__contains="left the reserve: killed by SIGKILL").exists()
    assert 11 not in spec_of(run, run.ranks.get(rank=0).node).local
    assert all(a.rank != 11 for a in spec_of(run, run.ranks.get(rank=0).node).reserve)


def test_the_reserve_is_given_back_when_the_run_ends(world: Any, nodes: Nodes) -> None:  # noqa: F811
    run = started(world, nodes)
    report(run, "finished", range(6))
    run.refresh_from_db()
    assert run.status == Status.SUCCEEDED
    world.hear()
    RankState.objects.update(dispatched_at=None)
    reconcile(nodes)
    assert set(run.ranks.filter(rank__gte=6).values_list("state", flat=True)) == {"stopped"}


def test_the_launch_form_asks_for_the_most_gpus(world: Any) -> None:
    client, url = world.client("operator"), f"/plans/{world.plan.pk}/launch/{world.plan.result['best']}/"
    form = client.get(url).context["form"]
    shown = {field.name: field.value() for field in form if field.value() is not None}
    wanted = {
        "checkpoint_dir": "/saved",
        "checkpoint_every": 5,
        "recoveries": 3,
        "adapt_percent": 20,
        "adapt_layout": "on",
    }
    answer = client.post(url, {**shown, **wanted, "name": "few", "adapt_most_gpus": 3})
    assert answer.status_code == 422
    assert "At least 12" in str(answer.context["form"].errors["adapt_most_gpus"])
    client.post(url, {**shown, **wanted, "name": "many", "adapt_most_gpus": 16})
    document = Run.objects.get(job__name="many").job.document
    assert document["failures"]["adapt"] == {"deviation": 0.2, "layout": True, "most_gpus": 16}


@pytest.mark.parametrize("who", ["viewer", "stranger"])
def test_who_may_not_launch_holds_no_reserve(world: Any, who: str) -> None:
    answer = world.client(who).post(
        f"/plans/{world.plan.pk}/launch/{world.plan.result['best']}/", {"adapt_most_gpus": 16}
    )
    assert answer.status_code in (403, 404)
    assert not Run.objects.exists()


def test_a_document_of_a_reserve_is_a_job(world: Any) -> None:
    assert parse(TrainJob, launched(world).job.document).failures.adapt.most_gpus == 12  # type: ignore[union-attr]
