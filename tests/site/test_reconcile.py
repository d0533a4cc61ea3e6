"""The life of a run against nodes that are played by the test."""

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from tests.events import event
from webapp.accounts.models import AuditEntry
from webapp.inventory.dispatch import BrokerDown
from webapp.jobs import services
from webapp.jobs.models import RankState, RankStatus, Run, Status
from webapp.jobs.reconcile import reconcile


class Nodes:
    """Keeps what would have been sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.down = False

    def __call__(self, node_name: str, task: str, kwargs: Any) -> str:
        if self.down:
            raise BrokerDown(node_name, "refused")
        self.sent.append((node_name, task.partition(".")[2], dict(kwargs)))
        return "id"

    def take(self) -> list[tuple[str, str]]:
        sent, self.sent = [(node, task) for node, task, _ in self.sent], []
        return sent


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def report(run: Run, state: str, ranks: range = range(12), **fields: Any) -> None:
    for rank in ranks:
        values = {"detail": "", "exit_code": None, "pid": None, **fields}
        services.record_rank_event(run, event("rank", rank=rank, state=state, **values))


def seen(run: Run) -> list[dict[str, Any]]:
    return [{"run": str(run.pk), "generation": run.generation, "rank": rank} for rank in range(12)]


def running(world: Any, nodes: Nodes) -> Run:
    world.hear()
    run = world.launch()
    reconcile(nodes)
    report(run, "running")
    world.hear(ranks=seen(run))
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    nodes.take()
    return run


def test_a_run_waits_for_gpus_and_says_for_how_many(world: Any, nodes: Nodes) -> None:
    world.hear(*world.nodes[:2])
    run = world.launch()
    reconcile(nodes)
    run.refresh_from_db()
    assert (run.status, run.state.label) == (Status.QUEUED, "Waiting")
    assert run.waits_for == "Waits for 4 GPUs in west, 0 are idle: 4 do not answer"
    assert run.needs_action
    assert nodes.take() == []
    world.hear()
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.STARTING
    assert nodes.take() == [(f"{name}-1", "start_ranks") for name in ("east", "mid", "west")]
    second = world.launch()
    reconcile(nodes)
    second.refresh_from_db()
    assert second.waits_for == "Waits for 4 GPUs in east, 0 are idle"


def test_every_rank_gets_a_gpu_in_the_dc_of_its_stage(world: Any, nodes: Nodes) -> None:
    world.hear()
    run = world.launch()
    reconcile(nodes)
    ranks = RankState.objects.filter(run=run).select_related("dc")
    assert [rank.dc.name for rank in ranks] == ["east", "east", "mid", "mid", "west", "west"] * 2
    assert len({(rank.node_id, rank.gpu) for rank in ranks}) == 12


def test_only_nodes_that_did_not_answer_are_told_again(world: Any, nodes: Nodes) -> None:
    world.hear()
    run = world.launch()
    reconcile(nodes)
    nodes.take()
    reconcile(nodes)
    assert nodes.take() == []
    report(run, "starting", range(0, 2))
    report(run, "starting", range(6, 8))
    RankState.objects.update(dispatched_at=timezone.now() - timedelta(seconds=30))
    reconcile(nodes)
    assert nodes.take() == [("mid-1", "start_ranks"), ("west-1", "start_ranks")]


def test_a_broker_that_is_down_is_named_and_tried_again(world: Any, nodes: Nodes) -> None:
    world.hear()
    run = world.launch()
    nodes.down = True
    reconcile(nodes)
    run.refresh_from_db()
    assert "broker" in run.waits_for
    nodes.down = False
    reconcile(nodes)
    assert len(nodes.take()) == 3


def test_a_start_that_takes_too_long_fails(world: Any, nodes: Nodes) -> None:
    world.hear()
    run = world.launch()
    reconcile(nodes)
    report(run, "running", range(0, 11))
    Run.objects.update(status_since=timezone.now() - timedelta(minutes=10))
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert "P2 S6" in run.status_reason


def test_a_rank_that_dies_fails_the_run_with_its_own_last_line(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    report(run, "failed", range(7, 8), detail="ValueError: boom", exit_code=1)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert run.status_reason.endswith("ValueError: boom")
    assert "east-1" in run.status_reason
    reconcile(nodes)
    assert set(nodes.take()) == {(f"{name}-1", "stop_ranks") for name in ("east", "mid", "west")}
    report(run, "stopped", range(0, 12))
    world.hear()
    reconcile(nodes)
    assert nodes.take() == []
    run.refresh_from_db()
    assert run.status == Status.FAILED


def test_ranks_that_lost_a_peer_wait_for_the_rank_that_is_the_cause(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    report(run, "failed", range(2, 4), detail="lost rank 7", exit_code=75)
    report(run, "stopped", range(8, 10))
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    report(run, "failed", range(7, 8), detail="killed by SIGKILL", exit_code=-9)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert "P2 S2" in run.status_reason
    assert run.status_reason.endswith("killed by SIGKILL")


def test_a_cause_that_is_never_heard_of_does_not_keep_a_run_open(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    report(run, "failed", range(2, 3), detail="lost rank 7", exit_code=75)
    run.ranks.filter(rank=2).update(state_since=timezone.now() - timedelta(seconds=10))
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert run.status_reason.endswith("lost rank 7")


def test_a_silent_node_fails_its_run_by_name(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    type(world.nodes[1]).objects.filter(pk=world.nodes[1].pk).update(
        last_seen=timezone.now() - timedelta(seconds=15)
    )
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert "mid-1 in mid has been silent for 15 s" in run.status_reason


def test_no_node_is_called_silent_while_nobody_listens(world: Any, nodes: Nodes) -> None:
    from webapp.computations.models import Beat

    run = running(world, nodes)
    type(world.nodes[1]).objects.update(last_seen=timezone.now() - timedelta(seconds=60))
    Beat.objects.update(at=timezone.now() - timedelta(seconds=60))
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.RUNNING


def test_a_rank_that_its_node_forgot_fails_the_run(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    RankState.objects.update(state_since=timezone.now() - timedelta(seconds=20))
    world.hear(world.nodes[2], ranks=[])
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert "does not know it any more" in run.status_reason


def test_a_heartbeat_that_overtakes_the_end_of_a_rank_waits_for_its_reason(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    RankState.objects.update(state_since=timezone.now() - timedelta(seconds=20))
    ended = [
        {"run": str(run.pk), "generation": run.generation, "rank": rank.rank, "state": "failed"}
        for rank in run.ranks.filter(node=world.nodes[2])
    ]
    world.hear(world.nodes[2], ranks=ended)
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    report(run, "failed", [ended[0]["rank"]], detail="out of memory", exit_code=1)
    run.refresh_from_db()
    assert run.status_reason.endswith("out of memory")


def test_cancel_is_shown_at_once_and_done_when_all_ranks_are_gone(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    services.cancel_run(world.users["operator"], run)
    run.refresh_from_db()
    assert (run.status, run.can_cancel) == (Status.STOPPING, False)
    reconcile(nodes)
    assert nodes.take() == [(f"{name}-1", "stop_ranks") for name in ("east", "mid", "west")]
    report(run, "stopped", range(0, 12))
    run.refresh_from_db()
    assert (run.status, run.state.label) == (Status.CANCELLED, "Stopped")
    report(run, "running")
    run.refresh_from_db()
    assert run.status == Status.CANCELLED
    verbs = set(
        AuditEntry.objects.filter(object_id=str(run.pk), object_type="run").values_list("verb", flat=True)
    )
    assert {"launch", "cancel"} <= verbs


def test_a_queued_run_is_cancelled_without_any_node(world: Any, nodes: Nodes) -> None:
    run = world.launch()
    services.cancel_run(world.users["operator"], run)
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.CANCELLED
    assert nodes.take() == []


def test_a_run_succeeds_when_every_rank_has_finished(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    report(run, "finished", range(0, 11))
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    report(run, "finished", range(11, 12), exit_code=0)
    run.refresh_from_db()
    assert run.status == Status.SUCCEEDED
    assert set(run.ranks.values_list("state", flat=True)) == {RankStatus.FINISHED}


def test_ranks_of_unknown_runs_are_stopped(world: Any, nodes: Nodes) -> None:
    world.hear(world.nodes[0], ranks=[{"run": "987654", "generation": 1, "rank": 0}])
    reconcile(nodes)
    stop = {"run": "987654", "generation": 1, "grace_s": settings.STOP_GRACE_S}
    assert nodes.sent == [("east-1", "stop_ranks", stop)]


def test_generations_grow_and_fence(world: Any) -> None:
    first = world.launch()
    second = services.launch_run(world.users["operator"], first.job)
    assert (first.generation, second.generation) == (1, 2)


def test_a_run_that_began_meanwhile_waits_for_nothing(world: Any) -> None:
    run = world.launch()
    seen = Run.objects.get(pk=run.pk)  # as the reconciler read it
    Run.objects.filter(pk=run.pk).update(status=Status.RUNNING)
    services.wait_for(seen, "Waits for 11 of 12 ranks to become ready")
    assert Run.objects.get(pk=run.pk).waits_for == ""


def silent(world: Any, index: int, seconds: float) -> None:
    type(world.nodes[index]).objects.filter(pk=world.nodes[index].pk).update(
        last_seen=timezone.now() - timedelta(seconds=seconds)
    )


def test_no_node_is_called_silent_for_an_outage_of_the_broker(world: Any, nodes: Nodes) -> None:
    """Ingest begins to listen anew after it: silence counts from then."""
    from webapp.computations import liveness

    run = running(world, nodes)
    silent(world, 1, 60)
    liveness.beat(anew=True)
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.RUNNING


def test_a_run_that_trains_is_not_failed_for_an_agent_that_hangs(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    silent(world, 1, 60)
    services.record_progress(run, iteration=7)
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    services.record_progress(run, iteration=7)  # the same again is no progress
    Run.objects.update(progressed_at=timezone.now() - timedelta(seconds=15))
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert "mid-1 in mid has been silent" in run.status_reason


@pytest.mark.parametrize(("iteration_ms", "fails"), [(100.0, True), (20_000.0, False)])
def test_a_long_iteration_is_waited_for_before_a_silent_node_fails_its_run(
    world: Any, nodes: Nodes, iteration_ms: float, fails: bool
) -> None:
    run = running(world, nodes)
    silent(world, 1, 60)
    services.record_progress(run, iteration=7)
    progressed_at = timezone.now() - timedelta(seconds=15)
    Run.objects.update(progressed_at=progressed_at, predicted={"iteration_ms": iteration_ms})
    reconcile(nodes)
    run.refresh_from_db()
    assert (run.status == Status.FAILED) is fails


def test_a_start_is_not_failed_for_time_in_which_the_broker_was_away(world: Any, nodes: Nodes) -> None:
    from webapp.computations import liveness

    world.hear()
    run = world.launch()
    reconcile(nodes)
    Run.objects.update(status_since=timezone.now() - timedelta(seconds=settings.START_TIMEOUT_S + 5))
    liveness.beat(anew=True)
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.STARTING
    world.hear()
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.FAILED


def test_gpus_of_a_silent_node_stay_taken_while_no_node_can_be_heard(world: Any, nodes: Nodes) -> None:
    from webapp.computations import liveness

    run = running(world, nodes)
    services.fail_run(run, "for the test")
    long_ago = timezone.now() - timedelta(minutes=10)
    Run.objects.update(finished_at=long_ago, status_since=long_ago)
    type(world.nodes[1]).objects.update(last_seen=long_ago)
    liveness.beat(anew=True)
    reconcile(nodes)
    assert not run.ranks.filter(state=RankStatus.STOPPED).exists()
    world.hear(world.nodes[0], ranks=seen(run))
    reconcile(nodes)
    assert not run.ranks.filter(node=world.nodes[1], state=RankStatus.RUNNING).exists()


def test_a_node_whose_reports_are_refused_is_not_silent(world: Any, nodes: Nodes) -> None:
    run = running(world, nodes)
    silent(world, 1, 60)
    world.nodes[1].__class__.objects.filter(pk=world.nodes[1].pk).update(refused_since=timezone.now())
    reconcile(nodes)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    page = world.client("viewer").get(f"/nodes/{world.nodes[1].pk}/").content.decode()
    assert "Its reports have been refused since" in page
