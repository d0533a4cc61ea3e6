"""Schedules and timelines as text grids, for error messages and terminals."""

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.simulate.timeline import Timeline

MOST_ROWS = 40
OPS_BEFORE, OPS_AFTER = 6, 4


def order_grid(schedule: Schedule, at: NDArray[np.int64]) -> str:
    """One row per GPU with the ops around position `at`, that op in brackets."""
    rows = []
    for pipeline, stage in np.ndindex(*at.shape):
        order = schedule.order(pipeline, stage)
        here = int(at[pipeline, stage])
        if here >= len(order):
            continue
        first = max(0, here - OPS_BEFORE)
        cells = [f"[{op}]" if i == here else str(op) for i, op in enumerate(order)][first : here + OPS_AFTER]
        dots = ("… " if first else "", " …" if here + OPS_AFTER < len(order) else "")
        rows.append(f"  P{pipeline} S{stage}: {dots[0]}{' '.join(cells)}{dots[1]}")
    more = [f"  … and {len(rows) - MOST_ROWS} more GPUs"] if len(rows) > MOST_ROWS else []
    return "\n".join(rows[:MOST_ROWS] + more)


def time_grid(timeline: Timeline, width: int) -> str | None:
    """One row per GPU, one column per time unit with the op that runs then; None where it does not fit.

    It fits where all times are whole numbers and the makespan is at most `width` columns beside the labels.
    F, R, B, W begin an op and its microbatch's last digit follows; ``·`` is idle.
    """
    columns = round(timeline.makespan)
    starts = timeline.op_start[~np.isnan(timeline.op_start)]
    whole = np.all(starts == np.round(starts)) and columns == timeline.makespan
    schedule = timeline.schedule
    if not whole or columns + 8 > width or schedule.pipelines * schedule.stages > MOST_ROWS:
        return None
    rows = []
    for pipeline, stage in np.ndindex(schedule.pipelines, schedule.stages):
        row = ["·"] * columns
        for i, code in enumerate(schedule.ops[pipeline, stage].tolist()):
            if code == NO_OP:
                break
            first = round(timeline.op_start[pipeline, stage, i])
            last = round(timeline.op_end[pipeline, stage, i])
            kind = OpKind(code & 3).name
            digit = str((code >> 2) % schedule.microbatches % 10)
            row[first:last] = (kind + digit * (last - first))[: last - first]
        rows.append(f"P{pipeline} S{stage:<3} " + "".join(row))
    return "\n".join(rows)
