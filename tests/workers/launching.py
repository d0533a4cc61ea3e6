"""Launch specs and a stand-in for the rank group, for tests of the agent."""

import dataclasses
import threading
import time
from collections.abc import Callable

from engine.inputs import parse
from engine.job.events.event import Event
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, single_machine
from tests.events import event
from tests.waiting import LIMIT_S

JOB = {
    "datacenters": [{"name": "a", "gpus": 4}],
    "stages": 2,
    "microbatches": 2,
    "policy": "gpipe",
    "model": {"layers": 2, "hidden": 16, "heads": 2, "seq": 8},
    "steps": 2,
}


def spec(run: str = "r1", generation: int = 1, node: str = "a", **changes: object) -> LaunchSpec:
    """A two-rank run, all of it on `node`."""
    whole = single_machine(parse(TrainJob, JOB), run=run, log_dir="/elsewhere")
    ranks = tuple(dataclasses.replace(rank, node=node) for rank in whole.ranks)
    return dataclasses.replace(whole, generation=generation, ranks=ranks, **changes)  # type: ignore[arg-type]


class FakeGroup:
    """Says what ranks would say; emits `spans` events every 2 ms while it runs."""

    def __init__(self, given: LaunchSpec, on_event: Callable[[Event], None]) -> None:
        self.spec = given
        self.on_event = on_event
        self.boundary = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, grace_s: float = 5.0) -> None:
        self._end.set()
        self._thread.join(LIMIT_S)  # it needs no grace

    def stop_at_boundary(self) -> None:
        self.boundary = True
        self._end.set()

    def _say(self, kind: str, rank: int, **fields: object) -> None:
        message = event(kind, rank=rank, t=time.time(), **fields)
        self.on_event(message.of(self.spec.run, self.spec.generation, self.spec.start))

    def _work(self) -> None:
        for state in ("starting", "ready", "running"):
            for rank in self.spec.local:
                self._say("rank", rank, state=state, detail="", exit_code=None, pid=None)
        iteration = 0
        while not self._end.wait(0.002):
            self._say("spans", self.spec.local[0], iteration=iteration, spans=[])
            iteration += 1
        for rank in self.spec.local:
            self._say(
                "rank",
                rank,
                state="finished" if self.boundary else "stopped",
                detail=str(iteration),
                exit_code=0,
                pid=None,
            )


class BrokenGroup(FakeGroup):
    """Cannot start."""

    def start(self) -> None:
        raise OSError("no more processes")
