"""Incidents of a run: failures and re-plans, and what each cost, as it is stored with its mark."""

from typing import Any

from engine.job.adapt.sentences import cause_of, described_layout, deviating, joined
from engine.job.events.incidents import Adapted, LayoutChanged, Recovery, Source
from webapp.jobs.models import Run

# Where a run that goes on has its state from.
FROM = {
    Source.MEMORY: "from the memory of its machines",
    Source.PEER: "with the state copied from replicas",
    Source.CHECKPOINT: "from its last checkpoint",
    Source.START: "from the beginning: there was no checkpoint",
}
Cost = dict[str, Any]


def recovery(event: Recovery, *, done: int) -> Cost:
    """Of a `recovery` event; `done` iterations had ended."""
    layout = event.layout
    return {
        "kind": "recovery",
        "what": event.detail[:300],
        "silent_s": event.detected_s,
        "lost_s": event.lost_s,
        "again": max(0, done - event.iteration),
        "iteration": event.iteration,
        "from": event.source,
        **({"gpus": [layout.gpus, layout.before.gpus]} if layout else {}),
    }


def adaptation(event: Adapted) -> Cost:
    """Of an `adapted` event."""
    return {
        "kind": "adaptation",
        "what": deviating(event)[:300],
        "iteration": event.iteration,
        "replanned": event.replanned,
        "before_ms": event.before_s * 1e3,
        "after_ms": event.after_s * 1e3,
    }


def layout_change(event: LayoutChanged, *, done: int) -> Cost:
    """Of a `layout_changed` event; `done` iterations had ended."""
    return {
        "kind": "layout",
        "what": cause_of(event)[:300],
        "layout": described_layout(event.layout),
        "joined": joined(event)[:300],
        "lost_s": event.lost_s,
        "again": max(0, done - event.iteration),
        "iteration": event.iteration,
        "before_ms": event.before_s * 1e3,
        "after_ms": event.after_s * 1e3,
    }


def failure(reason: str, *, done: int, saved: int | None) -> Cost:
    """Of a run that failed: what is done again where it is resumed, or tried again from the beginning."""
    return {"kind": "failure", "what": reason[:300], "again": max(0, done - (saved or 0)), "saved": saved}


def move(run: Run, to: Run, *, again: int) -> Cost:
    """Of a run whose job goes on in another one."""
    return {
        "kind": "move",
        "what": run.status_reason[:300],
        "again": again,
        "to": to.pk,
        "from": Source.START if run.saved_step is None else Source.CHECKPOINT,
    }
