"""What coordinators report, for tests."""

import time
from typing import Any

from django.utils import timezone

from engine.control.coordinator_wire import COORDINATOR_RANK
from tests.site.telemetry import Item, take_in
from webapp.jobs.models import Run

NOW = timezone.now()
MODEL = "llama-3-8b"


def coordinator_event(run: Run, **values: Any) -> dict[str, Any]:
    """The coordinator of the run's first data centre is open."""
    key = {"kind": "prefill_coordinator", "run": str(run.pk), "generation": run.generation, "dc": "east"}
    about = {"model": MODEL, "host": "127.0.0.1", "port": 4_000, "rank": COORDINATOR_RANK, "state": "open"}
    return {**key, **about, "detail": "", "t": time.time(), **values}


def prefill_event(run: Run, **values: Any) -> dict[str, Any]:
    """A second of that coordinator: seven accepted, three refused, 100 ms of two GPUs."""
    key = {"kind": "prefill", "run": str(run.pk), "generation": run.generation, "dc": "east"}
    counts = {
        "accepted": 7,
        "refused": {"queue_full": 2, "ttft": 1},
        "delivered": 5,
        "failed": {"training": 1},
    }
    more = {"missed": 1, "waiting": 4, "prefill_ms": 100.0, "gpus": 2, "slowdown": 0.004, "paused": False}
    feels = {"waited_ms": 1.5, "guard_ms": 2.0}
    return {**key, "t": time.time(), "window_s": 1.0, **counts, **more, **feels, **values}


def say(*events: dict[str, Any], node: str = "east-1", ago_s: float = 0.0) -> None:
    """The broker heard of `events` from `node` so long ago."""
    entry = f"{int((time.time() - ago_s) * 1e3)}-0"
    items: list[Item] = [(node, entry, event) for event in events]
    take_in(items)
