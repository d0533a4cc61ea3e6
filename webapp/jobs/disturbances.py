"""What disturbed a run and what that cost, as it is kept with its mark."""

from typing import Any

from engine.job.adapt.told import deviating
from webapp.jobs.models import Run

# Where a run that goes on has its state from, by the word of a `recovery` event.
FROM = {
    "memory": "from the memory of its machines",
    "peer": "with the state copied from replicas",
    "checkpoint": "from its last checkpoint",
    "start": "from the beginning: there was no checkpoint",
}
Cost = dict[str, Any]


def recovery(event: dict[str, Any], *, done: int) -> Cost:
    """Of a `recovery` event; `done` iterations had ended. Raises KeyError, TypeError or ValueError."""
    iteration, layout = int(event["iteration"]), event.get("layout")
    return {
        "kind": "recovery", "what": str(event["detail"])[:300], "silent_s": float(event["detected_s"]),
        "lost_s": float(event["lost_s"]), "again": max(0, done - iteration), "iteration": iteration,
        "from": str(event["from"]),
        **({"gpus": [int(layout["gpus"]), int(layout["before"]["gpus"])]} if layout else {}),
    }  # fmt: skip


def adaptation(event: dict[str, Any]) -> Cost:
    """Of an `adapted` event. Raises KeyError, TypeError or ValueError."""
    return {
        "kind": "adaptation", "what": deviating(event)[:300], "iteration": int(event["iteration"]),
        "replanned": bool(event["replanned"]), "before_ms": float(event["before_s"]) * 1e3,
        "after_ms": float(event["after_s"]) * 1e3,
    }  # fmt: skip


def failure(reason: str, *, done: int, saved: int | None) -> Cost:
    """Of a run that failed: what is done again where it is resumed, or tried again from the beginning."""
    return {"kind": "failure", "what": reason[:300], "again": max(0, done - (saved or 0)), "saved": saved}


def move(run: Run, to: Run, *, again: int) -> Cost:
    """Of a run whose job goes on in another one."""
    return {
        "kind": "move", "what": run.status_reason[:300], "again": again, "to": to.pk,
        "from": "start" if run.saved_step is None else "checkpoint",
    }  # fmt: skip
