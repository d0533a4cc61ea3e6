"""Runs that recover, against nodes played by the test: marks, and machines that are started again."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from engine.job.changed import changed
from engine.job.events.event import from_dict
from engine.job.launch import LaunchSpec
from tests.events import T0, event
from tests.site.telemetry import adapted
from tests.site.test_checkpoints import SAVED
from tests.site.test_reconcile import Nodes, nodes, report, running, seen  # noqa: F401  (a fixture)
from webapp.inventory.models import Node
from webapp.jobs import services
from webapp.jobs.models import Job, PastPrediction, RankState, RankStatus, Run, RunEvent, Status
from webapp.jobs.reconcile import reconcile
from webapp.live.incidents import incidents_of
from webapp.live.models import IterationStat

GONE = {"detail": "the node's agent ended, so its ranks ended too", "gone": True}
EVENT = {
    "kind": "recovery",
    "rank": 0,
    "failed": "rank",
    "detail": "rank 4 (east p0s4): killed by SIGKILL",
    "detected_s": 0.0,
    "noticed": T0,
    "from": "memory",
    "iteration": 41,
    "lost_s": 3.25,
    "attempt": 2,
    "t": T0 + 3,
}
# Two pipelines of four stages, on what is left without mid.
WITHOUT_MID = {str(rank): [0, 0, 2, 2] for rank in (0, 1, 4, 5, 6, 7, 10, 11)}


@pytest.fixture
def run(world: Any, nodes: Nodes) -> Run:  # noqa: F811
    run = running(world, nodes)
    job = Job.objects.get(pk=run.job_id)
    Job.objects.filter(pk=job.pk).update(
        document=changed(job.document, {"failures.recovery": {"attempts": 2}})
    )
    return Run.objects.get(pk=run.pk)


def marks(run: Run) -> list[str]:
    return list(RunEvent.objects.filter(run=run).values_list("text", flat=True))


def test_a_recovery_is_a_mark_that_says_what_it_cost_and_comes_once(run: Run) -> None:
    assert services.record_recovery(run, from_dict(EVENT))
    assert not services.record_recovery(run, from_dict(EVENT)), "at least once"
    (text,) = [text for text in marks(run) if "Recovered" in text]
    assert text == (
        "Recovered: continues with iteration 42 from the memory of its machines; 3.2 s were lost. "
        "Cause: rank 4 (east p0s4): killed by SIGKILL"
    )


def on_eight(run: Run) -> dict[str, Any]:
    """The job without mid, and who computes what in it."""
    joined = {"between": ["east", "west"], "latency_ms": 20.0, "bandwidth_gbps": 1.0}
    shape = {"cell.stages": 4, "cell.dc_of_stage": [0, 0, 2, 2], "strategy.schedule": None}
    links = [*run.job.document["links"], joined]
    position_of_rank = {rank: list(divmod(n, 4)) for n, rank in enumerate(sorted(WITHOUT_MID, key=int))}
    return {"job": changed(run.job.document, {**shape, "links": links}), "position_of_rank": position_of_rank}


def test_a_run_that_goes_on_without_a_node_waits_for_it_no_more(run: Run, nodes: Nodes) -> None:  # noqa: F811
    before = {"pipelines": 2, "stages": 6, "microbatches": 3, "gpus": 12, "iteration_s": 1.5}
    layout = {
        **before,
        "stages": 4,
        "gpus": 8,
        "iteration_s": 2.0,
        "before": before,
        "why": "mid-1 is silent",
        "dcs_of_rank": WITHOUT_MID,
        **on_eight(run),
    }
    assert services.record_recovery(run, from_dict({**EVENT, "left": [2, 3, 8, 9], "layout": layout}))
    (text,) = [text for text in marks(run) if "Recovered" in text]
    assert text.startswith(
        "It continues with 8 of 12 GPUs, as mid-1 is silent: 2 pipelines of 4 stages with 3 microbatches "
        "each, before 2 pipelines of 6 stages with 3; an iteration should take 2.00 s instead of 1.50 s. "
    )
    run.refresh_from_db()
    assert run.predicted_since == 41
    assert [rank for rank, *_ in run.predicted["spans"]] == sorted(map(int, WITHOUT_MID))
    assert PastPrediction.objects.get(run=run).since == 0
    (row,) = incidents_of(run).rows
    assert row.went_on == "with iteration 42, on 8 of 12 GPUs, from the memory of its machines"
    Node.objects.filter(name="mid-1").update(last_seen=timezone.now() - timedelta(hours=1))
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    report(run, "finished", [rank for rank in range(run.ranks.count()) if rank not in (2, 3, 8, 9)])
    run.refresh_from_db()
    assert run.status == Status.SUCCEEDED


def test_of_a_smaller_layout_that_is_not_told_nothing_is_predicted(run: Run) -> None:
    """As agents and rows of before have it: the rest of what they say counts."""
    launch, size = (
        run.predicted,
        {"pipelines": 2, "stages": 4, "microbatches": 3, "gpus": 8, "iteration_s": 2.0},
    )
    layout = {**size, "before": size, "why": "mid-1 is silent", "dcs_of_rank": WITHOUT_MID}
    assert services.record_recovery(run, from_dict({**EVENT, "left": [2, 3, 8, 9], "layout": layout}))
    assert services.record_adapted(run, from_dict(adapted(run, iteration=50)))
    assert services.record_recovery(run, from_dict({**EVENT, "iteration": 60, "t": T0 + 60}))
    run.refresh_from_db()
    assert [cut["iteration"] for cut in run.cuts] == [41]
    assert (run.predicted, run.predicted_since) == (launch, 0)
    assert incidents_of(run).count == 3


def test_a_lost_machine_is_started_again_and_what_its_last_attempt_says_is_late(
    run: Run,
    world: Any,
    nodes: Nodes,  # noqa: F811
) -> None:
    report(run, "failed", range(2, 4), **GONE)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    lost = RankState.objects.filter(run=run, node__name="mid-1")
    assert {(rank.state, rank.start) for rank in lost} == {(RankStatus.ASSIGNED, 2)}
    reconcile(nodes)
    ((name, task, kwargs),) = nodes.sent
    assert (name, task) == ("mid-1", "start_ranks")
    assert LaunchSpec.from_json(kwargs["spec"]).start == 2
    report(run, "failed", range(8, 10), **GONE)  # of the same agent: it comes late
    report(run, "running", range(2, 4), start=2)
    assert {rank.state for rank in lost.filter(rank__in=(2, 3))} == {RankStatus.RUNNING}
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    assert sum("They start again" in text for text in marks(run)) == 1


def test_not_more_often_than_the_job_says(run: Run) -> None:
    for start in (1, 2, 3):
        report(run, "failed", range(2, 3), start=start, **GONE)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert "agent ended" in run.status_reason


def test_without_recovery_a_lost_machine_fails_the_run(world: Any, nodes: Nodes) -> None:  # noqa: F811
    run = running(world, nodes)
    report(run, "failed", range(2, 4), **GONE)
    run.refresh_from_db()
    assert run.status == Status.FAILED


def test_a_silent_node_is_waited_for(run: Run, world: Any, nodes: Nodes) -> None:  # noqa: F811
    others = [node for node in world.nodes if node.name != "mid-1"]
    for silent_s, status in ((60, Status.RUNNING), (300, Status.FAILED)):
        world.hear(*others, ranks=seen(run))
        Node.objects.filter(name="mid-1").update(last_seen=timezone.now() - timedelta(seconds=silent_s))
        reconcile(nodes)
        run.refresh_from_db()
        assert run.status == status


@pytest.fixture
def saved(run: Run) -> Run:
    """The run, saved after 20 of the 30 iterations that it has done."""
    job = Job.objects.get(pk=run.job_id)
    checkpoint = {"dir": "/srv/ckpt", "every": 10}
    Job.objects.filter(pk=job.pk).update(
        document=changed(job.document, {"persistence.checkpoint": checkpoint})
    )
    services.record_checkpoint(run, from_dict({**SAVED, "step": 20, "where": "/srv/ckpt/step-20"}))
    services.record_progress(run, iteration=29)
    return Run.objects.get(pk=run.pk)


def lose_first(run: Run, world: Any) -> None:
    """East-1, with ranks 0, 1, 6, 7, never returns; a host elsewhere gives up, and all ranks there end."""
    world.hear(*world.nodes)
    first = Node.objects.filter(pk=RankState.objects.get(run=run, rank=0).node_id)
    first.update(last_seen=timezone.now() - timedelta(hours=1))
    elsewhere = run.ranks.exclude(node__in=first).order_by("rank").values_list("rank", flat=True)
    for number, rank in enumerate(elsewhere):
        state = "stopped" if number else "failed"
        services.record_rank_event(
            run, event("rank", rank=rank, state=state, detail="nothing was heard", exit_code=None)
        )


def replacement(run: Run) -> Run | None:
    return Run.objects.filter(moved_from=run).select_related("job").first()


def spare(world: Any, gpus: int) -> Node:
    """Another node in east, of which everything but its name and GPUs is as the one there."""
    node = Node.objects.get(name="east-1")
    node.pk, node.name, node.gpus, node.last_seen = None, "east-2", gpus, timezone.now()
    node.save()
    return node


def test_a_run_whose_first_machine_never_returns_goes_on_elsewhere(
    saved: Run,
    world: Any,
    nodes: Nodes,  # noqa: F811
) -> None:
    spare(world, 4)
    lose_first(saved, world)
    reconcile(nodes)
    saved.refresh_from_db()
    assert saved.status == Status.FAILED
    new = replacement(saved)
    assert new is not None
    assert (new.job_id, new.generation) == (saved.job_id, saved.generation + 1)
    assert new.document["persistence"]["resume"] == "/srv/ckpt/step-20"
    assert new.document["persistence"]["checkpoint"]["dir"] == f"/srv/ckpt/run-{new.pk}", (
        "the old machine may still write"
    )
    assert new.secret != saved.secret
    assert any(f"continues as {new}" in text and "10 iterations" in text for text in marks(saved))
    incidents = incidents_of(saved)
    assert [(row.to, row.again, row.lost_s) for row in incidents.rows] == [(new, 10, None)], (
        "it does not run yet"
    )
    assert (incidents.count, incidents.again) == (1, 10), "the failure and the move are one"
    began = timezone.now()
    Run.objects.filter(pk=new.pk).update(started_at=began + timedelta(seconds=90))
    IterationStat.objects.create(run=saved, iteration=19, start=0.0, end=began.timestamp() + 30)
    assert incidents_of(saved).lost_s == pytest.approx(60), "since the last iteration that counts"
    reconcile(nodes)
    new.refresh_from_db()
    assert new.status == Status.STARTING
    assert new.ranks.get(rank=0).node.name == "east-2"
    assert Run.objects.count() == 2, "once"


def test_the_first_machine_is_told_to_stop_when_it_returns(
    saved: Run,
    world: Any,
    nodes: Nodes,  # noqa: F811
) -> None:
    spare(world, 4)
    lose_first(saved, world)
    reconcile(nodes)
    nodes.take()
    world.hear(Node.objects.get(name="east-1"), ranks=seen(saved))
    reconcile(nodes)
    old = [kw for name, task, kw in nodes.sent if (name, task) == ("east-1", "stop_ranks")]
    assert {(kw["run"], kw["generation"]) for kw in old} == {(str(saved.pk), saved.generation)}


def test_it_goes_on_with_fewer_pipelines_where_gpus_are_missing(
    saved: Run,
    world: Any,
    nodes: Nodes,  # noqa: F811
) -> None:
    east = spare(world, 2)
    for rank in (6, 7):
        RankState.objects.filter(run=saved, rank=rank).update(node=east, gpu=rank - 6)
    lose_first(saved, world)
    assert replacement(saved) is None
    reconcile(nodes)
    new = replacement(saved)
    assert new is not None
    now, before = new.job.document["cell"], saved.job.document["cell"]
    assert (now["pipelines"], now["stages"]) == (1, before["stages"])
    assert now["microbatches"] * now.get("accumulation", 1) == 2 * before["microbatches"]
    assert new.document["persistence"]["resume"] == "/srv/ckpt/step-20"
    assert any("6 of 12 GPUs, as east-1 did not return" in text for text in marks(saved))
    reconcile(nodes)
    new.refresh_from_db()
    assert new.status == Status.STARTING
    assert set(new.ranks.values_list("node__name", flat=True)) == {"east-2", "mid-1", "west-1"}


def test_it_stays_failed_where_nothing_is_left_that_holds_the_model(
    saved: Run,
    world: Any,
    nodes: Nodes,  # noqa: F811
) -> None:
    lose_first(saved, world)
    Node.objects.filter(name="mid-1").update(last_seen=timezone.now() - timedelta(hours=1))
    reconcile(nodes)
    reconcile(nodes)
    assert replacement(saved) is None
    assert sum("cannot hold a pipeline of" in text for text in marks(saved)) == 1
    (row,) = incidents_of(saved).rows
    assert (row.again, row.went_on) == (10, "it failed; Resume continues after iteration 20")


def test_it_does_not_move_before_its_other_ranks_are_gone(
    saved: Run,
    world: Any,
    nodes: Nodes,  # noqa: F811
) -> None:
    spare(world, 4)
    lose_first(saved, world)
    RankState.objects.filter(run=saved, rank=3).update(state=RankStatus.RUNNING)
    world.hear(Node.objects.get(name="mid-1"), ranks=seen(saved))
    reconcile(nodes)
    assert replacement(saved) is None
    report(saved, "stopped", range(3, 4))
    reconcile(nodes)
    assert replacement(saved) is not None


@pytest.mark.parametrize("settings", [None, {"smaller": False}, {"wait_s": 7200}])
def test_it_does_not_move_unless_the_job_says_so(
    saved: Run,
    world: Any,
    nodes: Nodes,  # noqa: F811
    settings: Any,
) -> None:
    spare(world, 4)
    Node.objects.update(last_seen=timezone.now())
    Job.objects.filter(pk=saved.job_id).update(
        document=changed(saved.job.document, {"failures.recovery": settings})
    )
    if "wait_s" in str(settings):
        report(saved, "failed", range(3, 4), exit_code=1, detail="ValueError: boom")
    else:
        lose_first(saved, world)
    reconcile(nodes)
    saved.refresh_from_db()
    assert saved.status == Status.FAILED
    assert not saved.moves
    assert replacement(saved) is None


def test_it_moves_no_more_often_than_the_job_says(
    saved: Run,
    world: Any,
    nodes: Nodes,  # noqa: F811
) -> None:
    spare(world, 4)
    earlier = None
    for generation in (101, 102, 103):
        fields = {"job": saved.job, "steps": 50, "secret": "x", "status_since": timezone.now()}
        over = {"status": Status.FAILED, "finished_at": timezone.now()}
        earlier = Run.objects.create(generation=generation, moved_from=earlier, **fields, **over)
    Run.objects.filter(pk=saved.pk).update(moved_from=earlier)
    lose_first(saved, world)
    reconcile(nodes)
    saved.refresh_from_db()
    assert saved.status == Status.FAILED
    assert "recovery.attempts" in saved.status_reason
    assert replacement(saved) is None
