"""An event of each kind, for tests, and lists that keep events as they travel."""

import time
from collections.abc import Callable
from typing import Any

from engine.job.events.base import BaseEvent
from engine.job.events.event import Event, from_dict

T0 = float(int(time.time()))  # near now: what is far from it is refused
CUT = {"pipelines": 2, "stages": 3, "microbatches": 3, "gpus": 6, "iteration_s": 0.5}
OP = {
    "track": "gpu",
    "pipeline": 0,
    "stage": 1,
    "op": "F",
    "microbatch": 0,
    "chunk": 0,
    "start": T0,
    "end": T0 + 0.5,
}
TRANSFER = {
    "track": "wan",
    "pipeline": 0,
    "from_stage": 1,
    "to_stage": 2,
    "payload": "activation",
    "microbatch": 0,
    "chunk": 0,
    "start": T0 + 0.5,
    "end": T0 + 0.52,
    "arrives": T0 + 0.53,
    "bytes": 5_000_000,
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "rank": {"rank": 0, "state": "failed", "detail": "no memory", "exit_code": 1, "pid": 17, "t": T0},
    "spans": {"rank": 0, "iteration": 4, "start": T0, "end": T0 + 1, "spans": [OP, TRANSFER]},
    "step": {
        "iteration": 4,
        "loss": 2.5,
        "grad_norm": 1.0,
        "learning_rate": 1e-3,
        "tokens": 64,
        "t": T0,
    },
    "validation": {"rank": 0, "step": 5, "loss": 2.4, "t": T0},
    "boundary": {"rank": 0, "iteration": 9, "t": T0},
    "checkpoint": {
        "rank": 0,
        "step": 5,
        "state": "saved",
        "where": "/srv/step-5",
        "bytes": 99,
        "seconds": 0.1,
        "detail": "",
        "t": T0,
    },
    "log": {"rank": 0, "line": "hello", "t": T0, "id": 1_790_000_000_000_000},
    "result": {"steps": 8, "losses": [2.5, 2.4], "iteration_ms": {"median": 12.5, "p95": None}},
    "batch": {"iteration": 4, "units": {"0": [0, 1], "1": [2]}, "redone": 1, "t": T0},
    "workers": {"step": 5, "workers": [0, 2], "lost": [1], "t": T0},
    "recovery": {
        "rank": 0,
        "failed": "node",
        "detail": "silent",
        "noticed": T0,
        "detected_s": 4.5,
        "from": "peer",
        "iteration": 3,
        "lost_s": 7.25,
        "attempt": 2,
        "t": T0 + 7,
        "left": [2, 3],
        "layout": {
            **CUT,
            "why": "a node is gone",
            "before": CUT,
            "dcs_of_rank": {"0": [0, 0, 1]},
            "job": {"stages": 3},
            "position_of_rank": {"0": [0, 0]},
        },
    },
    "adapted": {
        "rank": 0,
        "iteration": 41,
        "replanned": True,
        "policy": "varuna",
        "deviations": [
            {"what": "link", "at": [1, 2], "planned_ms": 40.0, "measured_ms": 80.04},
            {"what": "F", "at": [5], "planned_ms": 20.0, "measured_ms": 26.1},
        ],
        "planned_s": 1.1,
        "before_s": 1.5,
        "after_s": 1.3,
        "schedule": "P0 S0: F0 B0",
        "times": [["F", 0, 20.0], ["link", 1, 2, 80.04]],
        "t": T0,
    },
    "layout_changed": {
        "rank": 0,
        "iteration": 60,
        "deviations": [{"what": "latency", "at": [1, 2], "planned_ms": 10.0, "measured_ms": 90.0}],
        "before_s": 1.5,
        "after_s": 1.2,
        "gain_s": 12.0,
        "cost_s": 3.0,
        "from": "checkpoint",
        "lost_s": 2.5,
        "attempt": 2,
        "left": [3],
        "layout": {
            **CUT,
            "why": "another layout is faster",
            "before": CUT,
            "dcs_of_rank": {"0": [0, 0, 1]},
            "job": {"stages": 3},
            "position_of_rank": {"0": [0, 0]},
        },
        "times": [["F", 0, 20.0], ["latency", 1, 2, 90.0]],
        "conditions": [["gpu", 0, 1.0], ["link", 0, 1, 1.5], ["latency", 0, 1, 90.0]],
        "t": T0,
    },
    "prefill_coordinator": {
        "dc": "east",
        "model": "tiny",
        "host": "10.0.0.1",
        "port": 4_000,
        "rank": 1_000_000,
        "state": "open",
        "detail": "",
        "t": T0,
    },
    "prefill": {
        "dc": 0,
        "t": T0,
        "window_s": 1.0,
        "accepted": 7,
        "refused": {"queue_full": 2},
        "delivered": 5,
        "failed": {"training": 1},
        "missed": 1,
        "waiting": 4,
        "prefill_ms": 100.0,
        "waited_ms": 1.5,
        "gpus": 2,
        "guard_ms": 2.0,
        "slowdown": None,
        "paused": False,
    },
    "heartbeat": {
        "t": T0,
        "gpus": 2,
        "device": "cpu",
        "version": "0.1.0",
        "ranks": [{"run": "7", "generation": 1, "rank": 0, "pid": 17, "state": "running"}],
        "clock": {"offset_ms": -1.5, "rtt_ms": 0.4},
        "hardware": {"cores": 2},
        "lost": 3,
    },
    "probe": {
        "probe": "p1",
        "t": T0,
        "results": [
            {"node": "b", "ok": True, "rtt_ms": 21.0, "connect_ms": 22.0, "offset_ms": -1.0, "error": ""},
            {"node": "c", "ok": False, "rtt_ms": None, "connect_ms": None, "offset_ms": None, "error": "no"},
        ],
    },
    "gpus": {
        "gpus": [
            {
                "gpu": 0,
                "utilization": 0.97,
                "memory_bytes": 71_000_000_000,
                "memory_total_bytes": 85_000_000_000,
                "temperature_c": 64.0,
                "power_w": 612.5,
            },
            {
                "gpu": 1,
                "utilization": None,
                "memory_bytes": 900_000_000,
                "memory_total_bytes": None,
                "temperature_c": None,
                "power_w": None,
            },
        ],
        "t": T0,
    },
    "samples": {
        "preview": "s1",
        "samples": [
            {
                "source": "/data/chats.jsonl",
                "parts": [
                    {"document": 7, "counts": False, "tokens": 2, "text": "one two"},
                    {"document": 7, "counts": True, "tokens": 1, "text": " <b>three</b>"},
                ],
                "cut": True,
            }
        ],
        "error": "",
        "t": T0,
    },
    "rates": {
        "trial": "t1",
        "t": T0,
        "rtt_ms": 21.0,
        "rates": [{"connections": 1, "gbps": 0.5}],
        "error": "",
    },
}


def event(kind: str, **changes: Any) -> Event:
    """An event of a kind, whole but for what a test changes."""
    return from_dict({"kind": kind, **EXAMPLES[kind], **changes})


def as_dicts(into: list[dict[str, Any]]) -> Callable[[BaseEvent], None]:
    """Keeps each event in `into`, as it travels."""
    return lambda said: into.append(said.to_dict())
