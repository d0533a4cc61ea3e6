"""A swap run on several machines survives the loss of any one of them, the tracker's too.

A machine is a host process with its ranks, killed as a whole. The oracle is one process on the whole batch.
"""

import dataclasses
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.job.events.event import Event
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, single_machine
from engine.run.host_process import PipedHost
from engine.run.launcher import RankGroup
from tests.ports import free_port
from tests.runtime.swap_jobs import EMULATED, GPU, job
from tests.runtime.test_training_equals_single import reference
from tests.waiting import until

pytestmark = pytest.mark.long


class Machines:
    """Hosts of one rank each, and what all of them told."""

    def __init__(self, of: TrainJob, folder: Path) -> None:
        self.job = of
        self.events: list[tuple[int, dict[str, Any]]] = []
        self._lock = threading.Lock()
        spec = dataclasses.replace(
            single_machine(of, run="test", log_dir=""), rendezvous_port=free_port(), secret="s" * 32
        )
        self.groups = [self._group(spec, rank, folder) for rank in range(of.cell.pipelines)]

    def _group(self, spec: LaunchSpec, rank: int, folder: Path) -> RankGroup:
        def take(event: Event) -> None:
            with self._lock:
                self.events.append((rank, event.to_dict()))

        return RankGroup(dataclasses.replace(spec, local=(rank,), log_dir=str(folder / str(rank))), take)

    def of_kind(self, kind: str, machine: int | None = None) -> list[dict[str, Any]]:
        return [e for at, e in list(self.events) if e["kind"] == kind and machine in (None, at)]

    def steps(self) -> int:
        return len({event["iteration"] for event in self.of_kind("step")})

    def kill(self, machine: int) -> None:
        """The whole machine at once: its host's end ends its ranks."""
        host = self.groups[machine]._host
        assert isinstance(host, PipedHost)
        os.kill(host.process.pid, signal.SIGKILL)

    def freeze(self, machine: int) -> None:
        """As a machine whose cable is cut: its connections stay, and nothing comes over them."""
        host = self.groups[machine]._host
        assert isinstance(host, PipedHost)
        os.killpg(host.process.pid, signal.SIGSTOP)

    def wait(self, *machines: int) -> None:
        assert all(self.groups[at].wait(120) for at in machines or range(len(self.groups)))

    def check_equal_to_one_process(self) -> dict[str, Any]:
        (result,) = self.of_kind("result")
        losses, norms, _ = reference(self.job)
        assert result["losses"] == pytest.approx(losses, rel=1e-9)
        assert result["grad_norms"] == pytest.approx(norms, rel=1e-9)
        units = self.job.cell.global_batch // self.job.cell.micro_batch
        batches = {batch["iteration"]: batch["units"] for batch in self.of_kind("batch")}
        assert sorted(batches) == list(range(self.job.optimizer.steps))
        for batch in batches.values():
            assert sorted(itertools.chain(*batch.values())) == list(range(units))
        return result


@contextmanager
def machines(folder: Path, **changes: Any) -> Iterator[Machines]:
    for rank in range(changes.get("pipelines", 3)):
        (folder / str(rank)).mkdir(parents=True)
    run = Machines(job(**changes), folder)
    try:
        for group in run.groups:
            group.start()
        yield run
    finally:
        for group in run.groups:
            group.stop(0.0)


@pytest.mark.parametrize("killed", [0, 1])
def test_any_machine_may_be_lost(killed: int, tmp_path: Path) -> None:
    with machines(tmp_path, steps=30) as run:
        until(lambda: run.steps() >= 3)
        run.kill(killed)
        run.wait()
        result = run.check_equal_to_one_process()
        assert [change["lost"] for change in result["swap"]["changes"]] == [[killed]]
        ends = {at: e["state"] for at, e in run.events if e["kind"] == "rank" and e["exit_code"] is not None}
        assert {at: state for at, state in ends.items() if at != killed} == dict.fromkeys(
            {0, 1, 2} - {killed}, "finished"
        )


def test_two_machines_are_lost_one_after_the_other(tmp_path: Path) -> None:
    """Of four: the fourth one takes the first one's place, so that the run survives the second loss too."""
    devices = {"pipelines": [[0], [1], [2], [3]]}
    # Steps of 0.2 s and more: the place is taken before they are done.
    slow = {**EMULATED, "steps": 60, "microbatches": 3}
    with machines(tmp_path, pipelines=4, devices=devices, **slow) as run:
        until(lambda: run.steps() >= 3)
        run.kill(0)
        until(lambda: any(", in place of a lost machine" in log["line"] for log in run.of_kind("log")))
        run.kill(1)
        run.wait()
        result = run.check_equal_to_one_process()
        assert [change["lost"] for change in result["swap"]["changes"]] == [[0], [1]]


def test_the_trackers_machine_falls_silent(tmp_path: Path) -> None:
    with machines(tmp_path, steps=30) as run:
        until(lambda: run.steps() >= 3)
        run.freeze(0)
        run.wait(1, 2)
        result = run.check_equal_to_one_process()
        assert [change["lost"] for change in result["swap"]["changes"]] == [[0]]


def test_two_of_three_lost_at_once_end_the_run_which_resumes(tmp_path: Path) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 2, "keep": 2}
    with machines(tmp_path / "a", steps=100_000, checkpoint=saves) as run:
        until(lambda: run.steps() >= 5)
        run.kill(0)
        run.kill(2)
        run.wait()
        (end,) = [e for e in run.of_kind("rank", 1) if e["state"] == "failed"]
        assert "lost north-0 and north-2 of the 3 machines" in end["detail"]
        assert "Resume it from its last checkpoint" in end["detail"]
        assert not run.of_kind("result")
        last = max(e["step"] for e in run.of_kind("checkpoint") if e["state"] == "saved")
    with machines(tmp_path / "b", steps=last + 3, checkpoint=saves, resume=True) as again:
        again.wait()
        (result,) = again.of_kind("result")
    losses, _, _ = reference(job(steps=last + 3))
    assert result["resumed_from"] >= last
    assert result["losses"] == pytest.approx(losses[result["resumed_from"] :], rel=1e-9)


def test_machines_in_two_data_centres_of_which_one_is_lost(tmp_path: Path) -> None:
    devices = {"pipelines": [[0], [3], [1], [4]]}
    with machines(tmp_path, steps=20, pipelines=4, microbatches=3, devices=devices, swap={"gpu": GPU}) as run:
        until(lambda: run.steps() >= 3)
        run.kill(0)
        run.wait()
        run.check_equal_to_one_process()
