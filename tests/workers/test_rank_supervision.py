"""Fencing: whatever order tasks come in, a generation starts at most once and an old one never."""

import dataclasses
import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.job.events.event import Event
from engine.job.file_access import FileAccess
from engine.job.launch import LaunchSpec
from tests.events import as_dicts, event
from tests.waiting import LIMIT_S, until
from tests.workers.launching import BrokenGroup, FakeGroup, spec
from workers.ledger import ENDED, LATELY_S, Ledger
from workers.ranks import RankSupervisor


class Node:
    """A rank supervisor with its events and groups at hand."""

    def __init__(self, folder: Path, make: type[FakeGroup] = FakeGroup) -> None:
        self.events: list[dict] = []
        self.groups: list[FakeGroup] = []

        def make_group(given: LaunchSpec, on_event: Callable[[Event], None]) -> FakeGroup:
            self.groups.append(make(given, on_event))
            return self.groups[-1]

        self.ledger = Ledger(folder / "runs.json")
        self.ranks = RankSupervisor(
            node="a",
            logs=folder / "ranks",
            ledger=self.ledger,
            files=FileAccess(roots=(str(folder),)),
            publish=as_dicts(self.events),
            make_group=make_group,
            find_group=lambda *_: None,
        )

    def ended(self, state: str) -> list[dict]:
        return [event for event in self.events if event["kind"] == "rank" and event["state"] == state]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_start_that_comes_twice_starts_once(node: Node) -> None:
    assert node.ranks.start(spec().to_json()) == "started ranks 0, 1"
    assert node.ranks.start(spec().to_json()) == "already started"
    node.ranks.stop_all(1)
    assert node.ranks.start(spec().to_json()) == "already started"  # redelivered after its end
    assert len(node.groups) == 1


def test_an_older_generation_is_refused_by_events(node: Node) -> None:
    node.ranks.start(spec(generation=3).to_json())
    assert node.ranks.start(spec(generation=2).to_json()).startswith("refused: generation 2 is older than 3")
    refused = node.ended("failed")
    assert [(event["rank"], event["generation"]) for event in refused] == [(0, 2), (1, 2)]
    assert node.groups[0].running()
    node.ranks.stop_all(1)


def test_a_newer_generation_stops_the_older_first(node: Node) -> None:
    node.ranks.start(spec(generation=1).to_json())
    node.ranks.start(spec(generation=2).to_json())
    assert [group.running() for group in node.groups] == [False, True]
    assert {event["generation"] for event in node.ended("stopped")} == {1}
    assert {rank.generation for rank in node.ranks.states() if rank.state not in ENDED} == {2}
    node.ranks.stop_all(1)


def test_a_stop_that_overtakes_its_start_keeps_it_out(node: Node) -> None:
    assert node.ranks.stop("r1", 1, 0) == "nothing to stop"
    assert node.ranks.start(spec().to_json()).startswith("refused")
    assert len(node.ended("stopped")) == 2
    assert node.groups == []
    assert node.ranks.start(spec(generation=2).to_json()).startswith("started")
    node.ranks.stop_all(1)


def test_a_stop_of_an_older_generation_leaves_the_newer_alone(node: Node) -> None:
    node.ranks.start(spec(generation=2).to_json())
    assert node.ranks.stop("r1", 1, 0) == "nothing to stop"
    assert node.groups[0].running()
    node.ranks.stop("r1", 2, 1)
    node.groups[0]._thread.join(LIMIT_S)
    assert len(node.ended("stopped")) == 2


def test_a_group_that_cannot_start_fails_its_ranks_with_the_reason(tmp_path: Path) -> None:
    node = Node(tmp_path, BrokenGroup)
    assert node.ranks.start(spec().to_json()) == "failed: no more processes"
    assert all("no more processes" in event["detail"] for event in node.ended("failed"))
    assert {rank.state for rank in node.ranks.states()} == {"failed"}


def test_a_rank_that_ended_is_named_for_a_while(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.ranks.start(spec().to_json())
    node.ranks.stop_all(1)
    assert {rank.state for rank in node.ranks.states()} == {"stopped"}
    later = time.monotonic() + LATELY_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert node.ranks.states() == ()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"run": "../../etc"}, "run"),
        ({"run": ""}, "run"),
        ({"generation": -1}, "generation"),
        ({"local": (0, 9)}, "local"),
        ({"ranks": tuple(dataclasses.replace(r, node="b") for r in spec().ranks)}, "local"),
    ],
)
def test_a_spec_that_is_not_for_this_node_is_refused(node: Node, changes: dict, field: str) -> None:
    assert node.ranks.start(dataclasses.replace(spec(), **changes).to_json()).startswith(f"refused: {field}")
    assert node.groups == []
    assert all(event["detail"].startswith("refused") for event in node.ended("failed"))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"run": "r1"}', json.dumps({"run": "r1", "local": 4})])
def test_what_is_no_spec_is_refused(node: Node, text: str) -> None:
    assert node.ranks.start(text).startswith("refused: spec")


def test_logs_go_where_this_node_keeps_them(node: Node, tmp_path: Path) -> None:
    node.ranks.start(spec().to_json())
    assert node.groups[0].spec.log_dir == str(tmp_path / "ranks" / "r1-1")
    node.ranks.stop_all(1)


def rank_event(rank: int, state: str, pid: int | None) -> Any:
    return event("rank", run="r1", generation=4, rank=rank, state=state, pid=pid)


def test_ranks_of_an_earlier_life_are_reported_and_killed(tmp_path: Path) -> None:
    orphan = subprocess.Popen(["sleep", "60"])
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        before = Node(tmp_path)
        before.ledger.admit("r1", 4, (0, 1, 2))
        for rank, pid in ((0, orphan.pid), (1, stranger.pid)):
            before.ledger.note(rank_event(rank, "running", pid))
        before.ledger.note(rank_event(2, "finished", None))
        # The stranger's number was the rank's before: its process started at another time.
        path = tmp_path / "runs.json"
        data = json.loads(path.read_text())
        data["r1"]["ranks"]["1"][2] -= 100
        path.write_text(json.dumps(data))
        after = Node(tmp_path)
        assert after.ranks.report_gone() == 2
        assert [event["rank"] for event in after.ended("failed")] == [0, 1]
        assert orphan.wait(LIMIT_S) != 0
        time.sleep(0.1)
        assert stranger.poll() is None
        assert {rank.state for rank in after.ranks.states()} == {"failed"}
        assert after.ranks.start(spec(generation=4).to_json()) == "already started"
        assert Node(tmp_path).ranks.report_gone() == 0
    finally:
        for process in (orphan, stranger):
            process.kill()
            process.wait()


TASKS = st.lists(
    st.tuples(st.sampled_from(["start", "stop"]), st.sampled_from(["x", "y"]), st.integers(0, 3)), max_size=12
)


@given(tasks=TASKS)
def test_no_order_of_tasks_starts_a_generation_twice_or_out_of_order(
    tasks: list, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    stopped: dict[str, int] = {}
    for action, run, generation in tasks:
        if action == "start":
            node.ranks.start(spec(run=run, generation=generation).to_json())
        else:
            node.ranks.stop(run, generation, 0)
            stopped[run] = max(generation, stopped.get(run, -1))
        for name in ("x", "y"):
            begun = [group.spec.generation for group in node.groups if group.spec.run == name]
            assert begun == sorted(set(begun))
    for group in node.groups:
        if group.spec.generation <= stopped.get(group.spec.run, -1):
            group._thread.join(LIMIT_S)
            assert not group.running()
    node.ranks.stop_all(1)
    until(lambda: not any(group.running() for group in node.groups))


class SlowStart(FakeGroup):
    """Takes a moment to start a process, and runs from then on."""

    def start(self) -> None:
        time.sleep(0.3)
        super().start()


def test_a_heartbeat_during_a_start_does_not_lose_the_ranks(tmp_path: Path) -> None:
    node = Node(tmp_path, SlowStart)
    starting = threading.Thread(target=node.ranks.start, args=(spec().to_json(),))
    starting.start()
    while starting.is_alive():
        node.ranks.states()
        time.sleep(0.01)
    assert node.ranks.stop("r1", 1, 1.0).startswith("stopping")
