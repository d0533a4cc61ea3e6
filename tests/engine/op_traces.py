"""Traces in ByteDance's format, written from schedules whose times are known."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.simulate import Span

WHOLE = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")


def op(
    optype: str, stage: int, start: float, duration: float, seq_id: int = 0, **more: int
) -> dict[str, Any]:
    """One row of such a trace, of replica 0 and step 1."""
    row = {"optype": optype, "stage": stage, "start_ts": start, "duration": duration, "seq_id": seq_id}
    return {"dp_rank": 0, "rank": stage, "step": 1, "mc": -1, "mb_id": -1, "gmc": -1} | row | more


def write(rows: Iterable[dict[str, Any]], path: Path) -> Path:
    """Write rows as a parquet file, with the columns in their usual types."""
    rows = list(rows)
    columns: dict[str, Any] = {
        name: pa.array([row[name] for row in rows], pa.int32()) for name in WHOLE if name in rows[0]
    }
    columns["optype"] = pa.array([row["optype"] for row in rows])
    for name in ("start_ts", "duration"):
        columns[name] = pa.array([row[name] for row in rows], pa.float64())
    pq.write_table(pa.table(columns), path)
    return path


def two_stages(
    forward: tuple[float, float], backward: tuple[float, float], transfer: float, microbatches: int
) -> list[dict[str, Any]]:
    """One step of GPipe on two stages, with an optimizer of length 1 on both; times of each stage.

    A receive starts when the op before the one that needs it is done, so each microbatch pays the transfer.
    """
    rows, first_end, last_end = [], 0.0, 0.0
    for m in range(microbatches):
        rows.append(op("forward-compute", 0, first_end, forward[0], m, mc=0, gmc=0, mb_id=m))
        first_end += forward[0]
        arrives = max(first_end, last_end) + transfer
        rows.append(op("forward-send", 0, first_end, arrives - first_end, m))
        rows.append(op("forward-recv", 1, last_end, arrives - last_end, m))
        rows.append(op("forward-compute", 1, arrives, forward[1], m, mc=0, gmc=1, mb_id=m))
        last_end = arrives + forward[1]
    for m in range(microbatches):
        rows.append(op("backward-compute", 1, last_end, backward[1], m, mc=0, gmc=1, mb_id=m))
        last_end += backward[1]
        arrives = max(first_end, last_end) + transfer
        rows.append(op("backward-send", 1, last_end, arrives - last_end, m))
        rows.append(op("backward-recv", 0, first_end, arrives - first_end, m))
        rows.append(op("backward-compute", 0, arrives, backward[0], m, mc=0, gmc=0, mb_id=m))
        first_end = arrives + backward[0]
    rows.append(op("optimizer", 0, first_end, 1.0))
    rows.append(op("optimizer", 1, last_end, 1.0))
    return rows


def from_spans(
    spans: Iterable[Span], stages: int, chunks: int, *, no_ops: bool = False
) -> list[dict[str, Any]]:
    """Simulated ops without time for transfers, with the sends and receives that a real run would record.

    no_ops : whether profilers record one of each for every op, also where the model begins and ends.
    """
    ops = sorted((span for span in spans if span.op in ("F", "B")), key=lambda span: span.start)
    ends = {(s.op, s.pipeline, s.chunk * stages + (s.stage or 0), s.microbatch): s.end for s in ops}
    counts: dict[tuple[Any, ...], int] = {}
    received: dict[tuple[Any, ...], float] = {}
    rows: list[dict[str, Any]] = []

    def add(optype: str, span: Span, start: float, duration: float, **more: int) -> None:
        key = (optype, span.pipeline, span.stage)
        counts[key] = counts.get(key, -1) + 1
        row = op(optype, span.stage or 0, start, duration, counts[key], **more)
        rows.append(row | {"dp_rank": span.pipeline})

    for span in ops:
        position = span.chunk * stages + (span.stage or 0)
        towards, name = (1, "forward") if span.op == "F" else (-1, "backward")
        end_before = ends.get((span.op, span.pipeline, position - towards, span.microbatch))
        if stages > 1 and (end_before is not None or no_ops):
            posted = received.get((name, span.pipeline, span.stage), 0.0)  # receives are asked for in order
            posted = received[name, span.pipeline, span.stage] = max(posted, end_before or 0.0)
            add(f"{name}-recv", span, posted, 0.0)
        where = {"mc": span.chunk, "gmc": position, "mb_id": span.microbatch or 0}
        add(f"{name}-compute", span, span.start, span.end - span.start, **where)
        if stages > 1 and (no_ops or 0 <= position + towards < stages * chunks):
            add(f"{name}-send", span, span.end, 0.0)
    return rows


def last_end(rows: Iterable[dict[str, Any]]) -> float:
    """When the last op of a trace ends."""
    return float(np.max([row["start_ts"] + row["duration"] for row in rows]))
