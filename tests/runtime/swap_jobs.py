"""Swap jobs for tests: six blocks that do not fit a device, on three workers in two data centres."""

from typing import Any

from engine.inputs import parse
from engine.job.job import TrainJob

GPU = {"memory_bytes": 1_500_000, "host_to_device_gb_s": 0.04}
EMULATED = {"device": "emulated", "times_ms": {"forward": 20, "recompute": 20, "backward": 40}}


def document(**changes: Any) -> dict[str, Any]:
    """Three workers in one data centre, on CPU, fp64."""
    values: dict[str, Any] = {
        "strategy": "swap",
        "datacenters": [{"name": "north", "gpus": 3}, {"name": "south", "gpus": 2}],
        "links": [{"between": ["north", "south"], "latency_ms": 2, "bandwidth_gbps": 1}],
        "pipelines": 3,
        "microbatches": 4,
        "micro_batch": 2,
        "dtype": "fp64",
        "model": {"layers": 6, "hidden": 32, "heads": 2, "seq": 16},
        "swap": {"gpu": GPU},
        "steps": 3,
        "lr": 1e-3,
        "seed": 7,
    }
    return {name: value for name, value in {**values, **changes}.items() if value is not None}


def job(**changes: Any) -> TrainJob:
    """The same, parsed."""
    return parse(TrainJob, document(**changes))
