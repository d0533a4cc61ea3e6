"""Runs of workers that swap: what the site makes of what nodes and the tracker say, and real workers."""

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from engine.inputs import parse
from engine.job.events.event import Event
from engine.job.events.training import Log
from engine.job.job import TrainJob
from engine.run.launcher import RankGroup
from tests.events import T0
from tests.ports import free_port
from tests.runtime.test_training_equals_single import reference
from tests.site.swap_runs import placed
from tests.site.telemetry import rank_event, step_event, take_in
from tests.site.world import World
from webapp.inventory.models import Node
from webapp.jobs.models import RankState, RankStatus, Run, RunCheckpoint, RunEvent, Status
from webapp.jobs.reconcile import reconcile, spec_of
from webapp.jobs.services import stop_at_boundary
from webapp.live.models import IterationStat, RefusedEvents, SpanBatch
from webapp.live.selectors import snapshot

NODES = ("swap-1", "swap-2", "swap-3")


def say(*items: tuple[int, dict[str, Any]]) -> None:
    """What the nodes of these ranks send."""
    take_in((NODES[rank], "1-0", event) for rank, event in items)


def running(world: World, **changes: Any) -> Run:
    run = placed(world, **changes)
    say(*((rank, rank_event(run, rank, "running", pid=10 + rank)) for rank in range(3)))
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    return run


def workers_event(run: Run, step: int, there: list[int], **changes: Any) -> dict[str, Any]:
    key = {"kind": "workers", "run": str(run.pk), "generation": run.generation}
    return {**key, "step": step, "workers": there, "t": T0 + 5, **changes}


def spans_of(run: Run, rank: int, iteration: int) -> dict[str, Any]:
    """Half a second of F, while the next sub-model is loaded, and a gradient that leaves."""
    start = T0 + iteration
    op = {"track": "gpu", "pipeline": rank, "stage": 0}
    key = {"kind": "spans", "run": str(run.pk), "generation": run.generation, "rank": rank}
    spans = [
        {**op, "op": "F", "microbatch": 0, "chunk": 1, "start": start, "end": start + 0.5},
        {**op, "op": "load", "chunk": 2, "bytes": 4_000, "start": start + 0.1, "end": start + 0.3},
        {**op, "op": "load", "chunk": 1, "payload": "gradient", "start": start + 0.6, "end": start + 0.7},
    ]
    return {**key, "iteration": iteration, "start": start, "end": start + 1.0, "spans": spans}


def states(run: Run) -> list[str]:
    return list(run.ranks.order_by("rank").values_list("state", flat=True))


def nothing(*_: Any) -> None:
    """A broker that takes every message."""


def test_loads_are_drawn_and_are_not_computing(world: World) -> None:
    run = running(world)
    say(*((rank, spans_of(run, rank, 0)) for rank in range(3)), (1, step_event(run, 0)))
    codes = SpanBatch.objects.get(run=run, rank=2).spans
    assert codes == [["F", 0, 0.0, 500.0], ["L", 2, 100.0, 300.0, 4_000], ["G", 1, 600.0, 700.0, 0]]
    assert IterationStat.objects.get(run=run).utilization == pytest.approx(0.5)
    shown = snapshot(run.pk)
    assert [lane["worker"] for lane in shown["lanes"]] == [True] * 3
    trace = world.client("viewer").get(reverse("jobs:run-trace", args=[run.pk])).json()["traceEvents"]
    assert sorted(e["name"] for e in trace if e["ph"] == "X" and e["pid"] == 1) == ["F0", "load", "load"]
    assert not RefusedEvents.objects.exists()


def test_any_node_of_the_run_may_be_the_trackers(world: World) -> None:
    run = running(world)
    say((2, step_event(run, 0)))
    run.refresh_from_db()
    assert run.done == 1
    take_in([("mid-1", "1-0", step_event(run, 1))])
    run.refresh_from_db()
    assert run.done == 1
    assert RefusedEvents.objects.get().node.name == "mid-1"


def test_the_run_goes_on_without_a_lost_worker(world: World) -> None:
    run = running(world)
    say(*((rank, spans_of(run, rank, 0)) for rank in range(3)))
    lost = workers_event(run, 1, [0, 2], lost=[1])
    say((0, lost), (2, {**lost, "t": T0 + 9}))  # a new tracker says it again
    run.refresh_from_db()
    assert (run.status, states(run)) == (Status.RUNNING, ["running", "left", "running"])
    text = "Worker 2 (GPU 0 of swap-2) is lost. 2 workers compute iteration 2."
    assert RunEvent.objects.filter(run=run, text=text, level="warn").count() == 1
    say(*((rank, spans_of(run, rank, 1)) for rank in (0, 2)))
    assert IterationStat.objects.get(run=run, iteration=1).utilization == pytest.approx(0.5), "of two"
    say((1, rank_event(run, 1, "failed", exit_code=75, detail="lost the tracker")))
    run.refresh_from_db()
    assert run.status == Status.RUNNING, "what is out of the run has nothing to say"
    say((0, workers_event(run, 2, [0], lost=[7])))
    assert "workers that the run does not have" in RefusedEvents.objects.get().why


@pytest.mark.parametrize(
    "end",
    [
        {"state": "left", "exit_code": -9, "detail": "killed by SIGKILL"},
        {"state": "failed", "exit_code": -9, "gone": True, "detail": "the host was killed"},
    ],
)
def test_a_worker_that_its_node_lost_leaves_and_the_last_ends_the_run(
    world: World, end: dict[str, Any]
) -> None:
    run = running(world)
    values = {name: value for name, value in end.items() if name != "state"}
    for rank in (0, 1):
        say((rank, rank_event(run, rank, end["state"], **values)))
    run.refresh_from_db()
    assert (run.status, states(run)) == (Status.RUNNING, ["left", "left", "running"])
    say((2, rank_event(run, 2, end["state"], **values)))
    RankState.objects.filter(run=run).update(state_since=timezone.now() - timedelta(minutes=1))
    world.hear(*Node.objects.filter(name__in=NODES))
    reconcile(nothing)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert "No worker is left" in run.status_reason


def test_an_error_of_a_workers_own_fails_the_run(world: World) -> None:
    run = running(world)
    say((1, rank_event(run, 1, "failed", exit_code=78, detail="loss is nan")))
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert run.status_reason == "Worker 2 (GPU 0 of swap-2) failed (exit 78): loss is nan"


def test_a_machine_that_is_cut_off_does_not_end_the_run(world: World) -> None:
    run = running(world)
    say((1, rank_event(run, 1, "failed", detail="lost swap-1 and swap-3 of the 3 machines")))
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    for rank in (0, 2):
        say((rank, rank_event(run, rank, "failed", exit_code=75, detail="lost the tracker")))
    RankState.objects.filter(run=run).update(state_since=timezone.now() - timedelta(minutes=1))
    world.hear(*Node.objects.filter(name__in=NODES))
    reconcile(nothing)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert "lost swap-1 and swap-3 of the 3 machines" in run.status_reason


def test_a_worker_that_is_lost_before_the_first_step_fails_the_run(world: World) -> None:
    run = placed(world)
    say((0, rank_event(run, 0, "running")), (1, rank_event(run, 1, "left", exit_code=-9, detail="killed")))
    run.refresh_from_db()
    assert (run.status, "Worker 2" in run.status_reason) == (Status.FAILED, True)


def test_a_silent_node_is_left_to_the_tracker_for_a_while(world: World) -> None:
    run = running(world)
    nodes = Node.objects.filter(name__in=NODES)
    seen = [{"run": str(run.pk), "generation": 1, "rank": r, "state": "running"} for r in range(3)]
    world.hear(*nodes, ranks=seen)
    Node.objects.filter(name="swap-2").update(last_seen=timezone.now() - timedelta(seconds=30))
    reconcile(nothing)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    Node.objects.filter(name="swap-2").update(last_seen=timezone.now() - timedelta(seconds=90))
    reconcile(nothing)
    run.refresh_from_db()
    assert (run.status, "swap-2" in run.status_reason) == (Status.FAILED, True)


def test_a_worker_that_its_node_forgot_leaves(world: World) -> None:
    run = running(world)
    seen = [{"run": str(run.pk), "generation": 1, "rank": r, "state": "running"} for r in (0, 2)]
    world.hear(*Node.objects.filter(name__in=NODES), ranks=seen)
    RankState.objects.filter(run=run).update(state_since=timezone.now() - timedelta(minutes=1))
    reconcile(nothing)
    run.refresh_from_db()
    assert (run.status, states(run)) == (Status.RUNNING, ["running", "left", "running"])


def test_all_nodes_hear_that_the_run_is_to_end_after_an_iteration(world: World) -> None:
    run = running(world)
    stop_at_boundary(world.users["operator"], run, why="east is draining", again=False)
    seen = [{"run": str(run.pk), "generation": 1, "rank": r, "state": "running"} for r in range(3)]
    world.hear(*Node.objects.filter(name__in=NODES), ranks=seen)
    sent: list[tuple[str, str, dict[str, Any]]] = []
    reconcile(lambda *message: sent.append(message))
    nodes = [node for node, task, kwargs in sent if task == "workers.stop_ranks" and kwargs.get("boundary")]
    assert nodes == list(NODES)


class Hosts:
    """The hosts of a run's ranks on this machine, one per node, and what they said, in order."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self._lock = run, threading.Lock()
        self._events: list[tuple[str, Event]] = []
        port = free_port()
        self.groups = {node.name: self._group(node, folder, port) for node in self._nodes()}

    def _nodes(self) -> list[Node]:
        return list(Node.objects.filter(ranks__run=self.run).distinct())

    def _group(self, node: Node, folder: Path, port: int) -> RankGroup:
        spec = replace(spec_of(self.run, node), log_dir=str(folder), rendezvous_port=port, ports=None)
        return RankGroup(spec, lambda event: self._take(node.name, event))

    def _take(self, node: str, event: Event) -> None:
        if isinstance(event, Log):  # an agent numbers them
            return
        with self._lock:
            self._events.append((node, event))

    def train(self) -> None:
        """Start all ranks, wait for their end, and take in what they said."""
        for group in self.groups.values():
            group.start()
        try:
            assert all(group.wait(120) for group in self.groups.values())
        finally:
            for group in self.groups.values():
                group.stop(0.0)
        spec = {"run": str(self.run.pk), "generation": self.run.generation}
        take_in((node, "1-0", {**event.to_dict(), **spec}) for node, event in self._events)


def test_real_workers_train_what_one_process_trains(world: World, tmp_path: Path) -> None:
    """Three nodes on this machine, as agents start them; the oracle is one process on the whole batch."""
    saved = {"checkpoint_dir": str(tmp_path / "saved"), "checkpoint_every": 2}
    run = placed(world, **saved)
    Hosts(run, tmp_path).train()
    run.refresh_from_db()
    assert (run.status, run.done) == (Status.SUCCEEDED, 3), run.status_reason
    assert not RefusedEvents.objects.exists(), list(RefusedEvents.objects.values_list("why", flat=True))
    losses, norms, _ = reference(parse(TrainJob, run.job.document))
    stats = list(IterationStat.objects.filter(run=run).order_by("iteration"))
    assert [stat.loss for stat in stats] == pytest.approx(losses, rel=1e-9)
    assert [stat.grad_norm for stat in stats] == pytest.approx(norms, rel=1e-9)
    assert all(0 < stat.utilization <= 1 for stat in stats)
    kinds = {code[0] for batch in SpanBatch.objects.filter(run=run) for code in batch.spans}
    assert kinds >= {"F", "R", "B", "L", "G", "A", "O"}
    assert RunCheckpoint.objects.filter(run=run, status="saved").count() == 2
    assert run.result is not None
    assert len(run.result["swap"]["sub_models"]) > 1
    assert states(run) == [RankStatus.FINISHED] * 3
    page = world.client("viewer").get(f"/runs/{run.pk}/")
    assert page.status_code == 200
    assert "Worker 3" in page.content.decode()
