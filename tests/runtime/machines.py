"""A run over several machines, all on this one: each has a host process, started again when it dies."""

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.job.job import TrainJob
from engine.job.launch import Disturbance, LaunchSpec, single_machine
from engine.run.host_process import PipedHost
from engine.run.launcher import RankGroup
from tests.events import as_dicts
from tests.ports import free_port
from tests.waiting import LIMIT_S

AGAIN_S = 0.2  # after which what watches over an agent starts it again


class Machines:
    """The machines of a run; `split` lists the ranks of each, the first rank's machine first.

    joins : machines with GPUs in reserve alone, of which the others are not told.
    """

    def __init__(
        self,
        of: TrainJob,
        folder: Path,
        split: Sequence[Sequence[int]],
        disturbance: Disturbance | None = None,
        *,
        joins: Sequence[int] = (),
    ) -> None:
        self.job, self._folder, self._split = of, folder, [tuple(ranks) for ranks in split]
        spec = single_machine(of, run="test", log_dir="", disturbance=disturbance)
        names = {rank: f"node-{i}" for i, ranks in enumerate(self._split) for rank in ranks}
        ranks, reserve = (
            tuple(dataclasses.replace(a, node=names[a.rank]) for a in gpus)
            for gpus in (spec.ranks, spec.reserve)
        )
        self._joins = {machine: self._split[machine] for machine in joins}
        self.spec = dataclasses.replace(
            spec, ranks=ranks, reserve=reserve, rendezvous_port=free_port(), secret="s" * 32
        )
        self.events: list[dict[str, Any]] = []
        self.groups: list[RankGroup] = []
        self._away: set[int] = set()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._start_again, daemon=True)

    def __enter__(self) -> "Machines":
        self.groups = [self._group(i) for i in range(len(self._split))]
        for group in self.groups:
            group.start()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()
        for group in self.groups:
            group.stop(0.0)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def dcs(self) -> list[str]:
        """Data centre of each machine."""
        by_rank = {a.rank: a.dc_name for a in self.spec.ranks}
        return [by_rank[ranks[0]] for ranks in self._split]

    def result(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """Wait for the end of all and return the result."""
        self.wait(lambda: bool(self.of_kind("result")), "the result", timeout_s)
        for group in self.groups:
            assert group.wait(LIMIT_S), "a host did not end"
        return self.of_kind("result")[0]

    def wait(self, what: Callable[[], bool], name: str, timeout_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, f"{name} did not come: {self.events[-5:]}"
            time.sleep(0.005)

    def at_step(self, iteration: int) -> None:
        """Wait until an iteration has ended."""
        steps = f"iteration {iteration}"
        self.wait(lambda: any(e["iteration"] >= iteration for e in self.of_kind("step")), steps)

    def kill_rank(self, rank: int, by: signal.Signals = signal.SIGKILL) -> None:
        """SIGSTOP has it hang."""
        pid = [e["pid"] for e in self.of_kind("rank") if e["rank"] == rank and e["pid"]][-1]
        os.kill(pid, by)

    def kill_machines(self, *machines: int, away_s: float = AGAIN_S) -> None:
        """Kill the host processes, and with them their ranks and what they kept; they are started again."""
        self._away.update(machines)
        for machine in machines:
            host = self.groups[machine]._host
            assert isinstance(host, PipedHost)
            os.kill(host.process.pid, signal.SIGKILL)
        back = threading.Timer(away_s, lambda: self._away.difference_update(machines))
        back.daemon = True  # one that stays away would keep the tests from ending
        back.start()

    def cut(self, a: str, b: str, seconds: float) -> None:
        for group in self.groups:
            group.cut(a, b, seconds)

    def _group(self, machine: int) -> RankGroup:
        local: tuple[int, ...] = self._split[machine]
        folder = str(self._folder / f"machine-{machine}")
        unknown = {rank for other, ranks in self._joins.items() if other != machine for rank in ranks}
        reserve = tuple(a for a in self.spec.reserve if a.rank not in unknown)
        spec: LaunchSpec = dataclasses.replace(self.spec, local=local, log_dir=folder, reserve=reserve)
        return RankGroup(spec, as_dicts(self.events))

    def _start_again(self) -> None:
        while not self._over.wait(0.02):
            for machine, group in enumerate(self.groups):
                host = group._host
                died = isinstance(host, PipedHost) and host.process.poll() not in (None, 0)
                if died and not group.running() and machine not in self._away:
                    self.groups[machine] = self._group(machine)
                    self.groups[machine].start()
