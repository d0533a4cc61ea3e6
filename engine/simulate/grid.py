"""Timelines as text grids, for terminals."""

import numpy as np

from engine.schedule.grid import MOST_ROWS
from engine.schedule.ir import NO_OP, OpKind
from engine.simulate.timeline import Timeline


def time_grid(timeline: Timeline, width: int) -> str | None:
    """One row per GPU, one column per time unit with the op that runs then; None if it does not fit.

    It fits if all times are whole numbers and the makespan is at most `width` columns next to the labels.
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
