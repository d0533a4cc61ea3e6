"""The JSON that browsers get of a run: pieces shared by snapshot and events (docs/dev/interfaces.md)."""

from collections.abc import Collection, Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from webapp.jobs.models import Desired, PastPrediction, RankState, RankStatus, Run, RunEvent
from webapp.live.models import IterationStat, SpanBatch


class MessageType(StrEnum):
    """What a message to a browser is: the whole of what is shown, or what is new."""

    SNAPSHOT = "snapshot"
    EVENTS = "events"


def unix(at: datetime | None) -> float | None:
    """Unix seconds of `at`."""
    return None if at is None else round(at.timestamp(), 3)


def now_ms(run: Run, seconds: float) -> float:
    """`seconds` (Unix) in ms since the run's epoch; 0 before there is one."""
    return 0.0 if run.epoch is None else round((seconds - run.epoch) * 1e3, 3)


def run_entry(run: Run) -> dict[str, Any]:
    """The `run` object."""
    stopping = run.desired_state == Desired.CANCELLED
    return {
        "id": run.pk,
        "name": run.job.name,
        "status": run.status,
        "state": run.state,
        "status_label": run.state.label,
        "reason": run.reason,
        "waits_for": run.waits_for,
        "ending": run.ending,
        "since": unix(run.status_since),
        "generation": run.generation,
        "iteration": run.iteration,
        "steps": run.steps,
        "started_at": unix(run.started_at),
        "finished_at": unix(run.finished_at),
        "can_cancel": not run.is_over and not stopping,
        "saved_step": run.saved_step,
    }


def iteration_entry(run: Run, stat: IterationStat) -> dict[str, Any]:
    """One of `iterations`; times in ms since the epoch."""
    return {
        "iteration": stat.iteration,
        "start": None if stat.start is None else now_ms(run, stat.start),
        "end": None if stat.end is None else now_ms(run, stat.end),
        "loss": stat.loss,
        "bits_per_byte": stat.bits_per_byte,
        "validation_loss": stat.validation_loss,
        "validation_bits_per_byte": stat.validation_bits_per_byte,
        "grad_norm": stat.grad_norm,
        "utilization": stat.utilization,
    }


def span_entry(batch: SpanBatch) -> dict[str, Any]:
    """One of `spans`."""
    return {"rank": batch.rank, "iteration": batch.iteration, "spans": batch.spans}


def predictions(
    run: Run, past: Iterable[PastPrediction], shown: tuple[int, int] | None
) -> list[dict[str, Any]]:
    """`predicted_before`: what was predicted before run.predicted held, the oldest first.

    past : all of the run, by `since`.
    shown : first and last iteration that are looked at: spans come with what held in one of them.
    """
    rows = list(past)
    ends = [*(row.since for row in rows[1:]), run.predicted_since]
    entries = []
    for row, end in zip(rows, ends, strict=False):  # none: nothing held before
        entry = {"since": row.since, "iteration_ms": row.iteration_ms, "utilization": row.utilization}
        if shown is not None and row.since <= shown[1] and end > shown[0]:
            entry["spans"] = row.spans
        entries.append(entry)
    return entries


def mark_entry(event: RunEvent) -> dict[str, Any]:
    """One of `marks`."""
    return {
        "seq": event.seq,
        "t": unix(event.at),
        "level": event.level,
        "text": event.text,
        "costs": bool(event.cost),
    }


def rank_entries(ranks: Iterable[RankState], reserve: Collection[int]) -> list[dict[str, Any]]:
    """The `ranks` list; `detail` is what a rank said last: of its state, else in its log."""
    return [
        {
            "rank": rank.rank,
            "state": "reserve" if rank.rank in reserve and rank.state == RankStatus.READY else rank.state,
            "detail": rank.detail or rank.last_line,
        }
        for rank in ranks
    ]
