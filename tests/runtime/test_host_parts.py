"""What the parts of a host are asked, in which order, and what becomes of ranks that end."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.control.pulse import Pulses
from engine.job.events.training import RankState
from engine.job.launch import EXIT_PEER_LOST, single_machine
from engine.run.local_ranks import LocalRank
from engine.run.rank_processes import RankProcesses
from engine.run.silence import SilenceWatch
from engine.run.swapping import SwapWorkers
from engine.run.verdict import Verdict
from tests.runtime.jobs import job

KILLED, FAILED = -signal.SIGKILL, 1

# A host whose ranks are forks that write an event and end with status 3, and whose parts say what they are
# asked. In a process of its own: it forks, and reads commands from its standard input.
LOOP = """
import os, sys, time
from engine.job.events.training import Rank, RankState
from engine.job.launch import single_machine
from engine.run import host, rank_processes
from engine.run.part import GroupStart, HostPart
from tests.runtime.jobs import job

def rank(start, out, life):
    event = Rank(rank=start.me.rank, state=RankState.READY, t=time.time())
    os.write(start.events_fd, event.to_json() + b"\\n")
    os._exit(3)

class Part(HostPart):
    def __init__(self, name, *, takes):
        self.name, self.takes, self.left = name, takes, 2

    def told(self, what, answer=None):
        print(self.name, what, file=sys.stderr)
        return answer

    @property
    def awaits(self):
        return self.left > 0

    def deadline(self):
        return time.monotonic() + 0.01 if self.left else None

    def equip(self, start):
        return self.told("equip", start)

    def on_start(self, group):
        self.told("on_start")

    def takes_event(self, event):
        return self.told("takes_event", self.takes)

    def takes_failure(self, rank):
        self.left -= 1
        return self.told("takes_failure", self.takes)

    def stop(self):
        self.told("stop")

    def close(self):
        self.told("close")

def begin(ranks, first, selector, *, children, commands):
    ranks.parts = [Part("first", takes=False), Part("second", takes=True), Part("third", takes=True)]
    ranks.parts[2].left = 0
    ranks.start(first)

rank_processes.become_rank, host.begin = rank, begin
spec = single_machine(job(), run="x", log_dir=sys.argv[1])
two = GroupStart(spec=spec, ranks=spec.ranks[:2], schedule=None, plan=None, port=1, store=None)
host.Host(spec, host.corpora_of(spec), time.time()).run(two)
"""


def test_parts_are_asked_in_order_and_closed_in_reverse(tmp_path: Path) -> None:
    call = [sys.executable, "-c", LOOP, str(tmp_path)]
    with subprocess.Popen(
        call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as host:
        assert host.stderr
        lines = host.stderr.read().decode().splitlines()
    assert host.returncode == 0, lines
    of_start = ["first equip", "second equip", "third equip"]
    assert lines[:9] == [*2 * of_start, "first on_start", "second on_start", "third on_start"]
    assert lines[-3:] == ["third close", "second close", "first close"]
    between = lines[9:-3]
    # Two ranks, of each an event and a failure, which the second part takes: the third is not asked.
    for what in ("takes_event", "takes_failure"):
        of_what = [line for line in between if line.endswith(what)]
        assert of_what == 2 * [f"first {what}", f"second {what}"]
    assert len(between) == 8


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[RankProcesses]:
    """The six ranks of a job, none of them started."""
    spec = single_machine(job(), run="x", log_dir=str(tmp_path))
    with selectors.DefaultSelector() as selector:
        processes = RankProcesses(spec, selector, {}, corpora={}, began=0.0)
        yield processes
        for end in processes.life:
            os.close(end)


def put(ranks: RankProcesses, tmp_path: Path, codes: dict[int, int | None]) -> dict[int, LocalRank]:
    """Ranks as if they had been started, and had ended with these codes; by number."""
    spec = single_machine(job(), run="x", log_dir=str(tmp_path))
    there = {
        rank: LocalRank(spec.ranks[rank], pid=rank + 10, log=None, code=code, open_pipes=0)
        for rank, code in codes.items()
    }
    ranks.by_pid.update({rank.pid: rank for rank in there.values()})
    return there


def said(out: bytes) -> list[tuple[int, str]]:
    events: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    return [(event["rank"], event["state"]) for event in events if event["kind"] == "rank"]


def test_who_lost_a_peer_is_stopped_where_another_rank_is_the_cause(
    ranks: RankProcesses, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    put(ranks, tmp_path, {0: EXIT_PEER_LOST, 1: KILLED, 2: 0})
    verdict = Verdict(ranks)
    verdict.give()
    assert ranks.stopping
    assert said(capsysbinary.readouterr().out) == [(0, "stopped"), (1, "failed")]
    verdict.close()  # says nothing twice
    assert said(capsysbinary.readouterr().out) == [(2, "finished")]


def test_who_lost_a_peer_fails_where_nobody_else_is_the_cause(
    ranks: RankProcesses, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    put(ranks, tmp_path, {0: EXIT_PEER_LOST})
    Verdict(ranks).give()
    assert said(capsysbinary.readouterr().out) == [(0, "failed")]


def test_the_verdict_waits_longer_for_the_cause_than_for_a_rank_that_is_it(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    there = put(ranks, tmp_path, {0: EXIT_PEER_LOST, 1: FAILED})
    verdict = Verdict(ranks)
    assert not verdict.awaits
    assert verdict.deadline() is None
    assert verdict.takes_failure(there[0])
    late = verdict.deadline()
    assert verdict.takes_failure(there[1])
    soon = verdict.deadline()
    assert late is not None
    assert soon is not None
    assert soon < late
    assert verdict.awaits
    ranks.stop(5.0)
    assert not verdict.awaits, "what ranks do that are stopped is no failure"


def test_a_swap_worker_that_is_killed_leaves_and_one_with_an_error_fails(
    ranks: RankProcesses, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    there = put(ranks, tmp_path, {0: KILLED, 1: FAILED, 2: EXIT_PEER_LOST})
    workers = SwapWorkers(ranks)
    assert [workers.takes_failure(there[rank]) for rank in there] == [True, False, False]
    assert said(capsysbinary.readouterr().out) == [(0, RankState.LEFT)]
    ranks.stop(5.0)
    assert not workers.takes_failure(there[0])


def test_silence_is_not_watched_in_ranks_that_are_stopped(ranks: RankProcesses) -> None:
    watch = SilenceWatch(ranks, Pulses(range(6)))
    ranks.parts = [watch]
    assert watch.deadline() is not None
    ranks.stop(5.0)
    assert watch.deadline() is None


def test_no_rank_holds_what_the_host_waits_for(ranks: RankProcesses) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ranks._selector.register(ours, selectors.EVENT_READ)
        assert ranks._of_host_alone() == [ours.fileno()]
