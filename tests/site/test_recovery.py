"""Runs that recover, against nodes played by the test: marks, and machines that are started again."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from engine.runtime.launch import LaunchSpec
from tests.site.test_reconcile import Nodes, nodes, report, running, seen  # noqa: F401  (a fixture)
from webapp.inventory.models import Node
from webapp.jobs import services
from webapp.jobs.models import Job, RankState, RankStatus, Run, RunEvent, Status
from webapp.jobs.reconcile import reconcile

GONE = {"detail": "the node's agent ended, and its ranks with it", "gone": True}
EVENT = {
    "kind": "recovery", "failed": "rank", "detail": "rank 4 (east p0s4): killed by SIGKILL",
    "detected_s": 0.0, "noticed": 1.79e9, "from": "memory", "iteration": 41, "lost_s": 3.25, "life": 2,
    "t": 1.79e9 + 3,
}  # fmt: skip


@pytest.fixture
def run(world: Any, nodes: Nodes) -> Run:  # noqa: F811
    run = running(world, nodes)
    job = Job.objects.get(pk=run.job_id)
    Job.objects.filter(pk=job.pk).update(document={**job.document, "recovery": {"attempts": 2}})
    return Run.objects.get(pk=run.pk)


def marks(run: Run) -> list[str]:
    return list(RunEvent.objects.filter(run=run).values_list("text", flat=True))


def test_a_recovery_is_a_mark_that_says_what_it_cost_and_comes_once(run: Run) -> None:
    assert services.record_recovery(run, EVENT)
    assert not services.record_recovery(run, EVENT), "at least once"
    (text,) = [text for text in marks(run) if "Recovered" in text]
    assert text == (
        "Recovered: goes on with iteration 42 from the memory of its machines; 3.2 s were lost. "
        "What failed: rank 4 (east p0s4): killed by SIGKILL"
    )


def test_a_run_that_goes_on_without_a_node_waits_for_it_no_more(run: Run, nodes: Nodes) -> None:  # noqa: F811
    before = {"pipelines": 2, "stages": 6, "microbatches": 3, "gpus": 12, "iteration_s": 1.5}
    layout = {
        **before,
        "stages": 4,
        "gpus": 8,
        "iteration_s": 2.0,
        "before": before,
        "why": "mid-1 is silent",
    }
    assert services.record_recovery(run, {**EVENT, "left": [2, 3, 8, 9], "layout": layout})
    (text,) = [text for text in marks(run) if "Recovered" in text]
    assert text.startswith(
        "It goes on with 8 of 12 GPUs, as mid-1 is silent: 2 pipelines of 4 stages with 3 microbatches each, "
        "before 2 pipelines of 6 stages with 3; an iteration should take 2.00 s instead of 1.50 s. "
    )
    Node.objects.filter(name="mid-1").update(last_seen=timezone.now() - timedelta(hours=1))
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    report(run, "finished", [rank for rank in range(run.ranks.count()) if rank not in (2, 3, 8, 9)])
    run.refresh_from_db()
    assert run.status == Status.SUCCEEDED


def test_a_lost_machine_is_started_again_and_what_its_last_life_says_is_late(
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
    assert sum("started again" in text for text in marks(run)) == 1


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
