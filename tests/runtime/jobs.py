"""Small jobs for the tests of the runtime, and a way to run one and keep its events."""

import threading
from typing import Any

from engine.inputs import parse
from engine.job.events.event import Event
from engine.job.events.training import Step
from engine.job.job import TrainJob
from engine.job.launch import Disturbance, single_machine
from engine.run.launcher import RankGroup


def document(**changes: Any) -> dict[str, Any]:
    """A job of three stages in two DCs and two pipelines, on CPU, with recomputation."""
    values: dict[str, Any] = {
        "datacenters": [{"name": "north", "gpus": 4}, {"name": "south", "gpus": 2}],
        "links": [{"between": ["north", "south"], "latency_ms": 2, "bandwidth_gbps": 1}],
        "stages": 3,
        "dc_of_stage": [0, 0, 1],
        "pipelines": 2,
        "microbatches": 3,
        "micro_batch": 2,
        "policy": "atlas",
        "recompute": True,
        "model": {"layers": 3, "hidden": 32, "heads": 2, "seq": 16},
        "steps": 3,
        "lr": 1e-3,
        "seed": 7,
    }
    return {name: value for name, value in {**values, **changes}.items() if value is not None}


def job(**changes: Any) -> TrainJob:
    """The same, parsed."""
    return parse(TrainJob, document(**changes))


class Run:
    """A finished or running run and the events that came."""

    def __init__(self, of: TrainJob, log_dir: str, disturbance: Disturbance | None = None) -> None:
        self.job = of
        self.events: list[dict[str, Any]] = []
        self.training = threading.Event()
        spec = single_machine(of, run="test", log_dir=log_dir, disturbance=disturbance)
        self.group = RankGroup(spec, self._on_event)
        self.group.start()

    def _on_event(self, event: Event) -> None:
        self.events.append(event.to_dict())
        if isinstance(event, Step):
            self.training.set()

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def result(self, timeout_s: float = 240.0) -> dict[str, Any]:
        """Wait for the end and return the result."""
        try:
            assert self.group.wait(timeout_s), "the run did not end"
        finally:
            self.group.stop(0.0)
        failed = [event["detail"] for event in self.of_kind("rank") if event["state"] == "failed"]
        assert not failed, failed
        return self.of_kind("result")[0]
