"""A schedule as a text grid of orders, for error messages."""

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import Schedule

MOST_ROWS = 40
OPS_BEFORE, OPS_AFTER = 6, 4


def order_grid(schedule: Schedule, at: NDArray[np.int64]) -> str:
    """One row per GPU with the ops around index `at`, that op in brackets."""
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
