"""Timelines of machines, compiled: the busy intervals of each, and the earliest or latest gap that fits.

Intervals that touch are one, so a machine without idle time costs nothing to search.
"""

from typing import NamedTuple

import numpy as np

from engine.schedule.compiled import compiled
from engine.schedule.searching.shop import Ints, Plan

UNPLACED = -(2**62)


class Board(NamedTuple):
    """Where operations have been placed so far, in ticks."""

    start: Ints  # (rows, pipelines, microbatches), UNPLACED until known
    begin: Ints  # (machines, longest), busy intervals in order of time
    finish: Ints
    used: Ints  # (machines,), intervals


def board_of(plan: Plan, microbatches: int | None = None, copies: int = 1) -> Board:
    """An empty board for all microbatches, or for some, each operation `copies` times."""
    microbatches = microbatches or plan.microbatches
    longest = plan.longest // plan.microbatches * microbatches * copies
    return Board(
        start=np.full((len(plan.duration), plan.pipelines, microbatches), UNPLACED, dtype=np.int64),
        begin=np.zeros((plan.machines, longest), dtype=np.int64),
        finish=np.zeros((plan.machines, longest), dtype=np.int64),
        used=np.zeros(plan.machines, dtype=np.int64),
    )


@compiled
def clear(board):
    """Empties the board."""
    board.start[:] = UNPLACED
    board.used[:] = 0


@compiled
def _first_after(board, machine, time):
    """Number of the first interval that ends after `time`."""
    low, high = 0, board.used[machine]
    while low < high:
        middle = (low + high) // 2
        if board.finish[machine, middle] > time:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def earliest(board, machine, time, length):
    """Earliest start at or after `time` of a gap of `length`."""
    i = _first_after(board, machine, time)
    while i < board.used[machine] and board.begin[machine, i] - time < length:
        time = max(time, board.finish[machine, i])
        i += 1
    return time


@compiled
def latest(board, machine, time, length):
    """Latest start of a gap of `length` that ends at or before `time`; may be negative."""
    i = _first_after(board, machine, time)
    if i < board.used[machine] and board.begin[machine, i] < time:
        time = board.begin[machine, i]
    i -= 1
    while i >= 0 and time - board.finish[machine, i] < length:
        time = board.begin[machine, i]
        i -= 1
    return time - length


@compiled
def occupy(board, machine, start, end):
    """Marks a free gap as busy."""
    begin, finish = board.begin[machine], board.finish[machine]
    count = board.used[machine]
    i = _first_after(board, machine, start)
    joins_left = i > 0 and finish[i - 1] == start
    joins_right = i < count and begin[i] == end
    if joins_left and joins_right:
        finish[i - 1] = finish[i]
        for j in range(i, count - 1):
            begin[j], finish[j] = begin[j + 1], finish[j + 1]
        board.used[machine] = count - 1
    elif joins_left:
        finish[i - 1] = end
    elif joins_right:
        begin[i] = start
    else:
        for j in range(count, i, -1):
            begin[j], finish[j] = begin[j - 1], finish[j - 1]
        begin[i], finish[i] = start, end
        board.used[machine] = count + 1


@compiled
def ready(plan, board, row, k, m, gates=True):
    """When all that must precede (row, k, m) and is placed has happened; with the limits' `gates` or not."""
    time = 0
    for i in range(2):
        other = plan.before[row, i]
        if other >= 0 and board.start[other, k, m] != UNPLACED:
            time = max(time, board.start[other, k, m] + plan.duration[other] + plan.before_lag[row, i])
    other, earlier = plan.gate[row], m - plan.behind[row]
    if gates and other >= 0 and earlier >= 0:
        time = max(time, board.start[other, k, earlier] + plan.duration[other])
    if m > 0 and board.start[row, k, m - 1] != UNPLACED:
        time = max(time, board.start[row, k, m - 1] + plan.duration[row])
    return time


@compiled
def deadline(plan, board, row, k, m, horizon):
    """When (row, k, m) must have ended for all that must follow it and is placed."""
    time = horizon
    for i in range(2):
        other = plan.after[row, i]
        if other >= 0 and board.start[other, k, m] != UNPLACED:
            time = min(time, board.start[other, k, m] - plan.after_lag[row, i])
        other = plan.opens[row, i]
        later = m + plan.opens_behind[row, i]
        if other >= 0 and later < plan.microbatches and board.start[other, k, later] != UNPLACED:
            time = min(time, board.start[other, k, later])
    if m + 1 < plan.microbatches and board.start[row, k, m + 1] != UNPLACED:
        time = min(time, board.start[row, k, m + 1])
    return time


@compiled
def put(plan, board, row, k, m, start):
    """Places (row, k, m)."""
    board.start[row, k, m] = start
    occupy(board, plan.machine[row, k], start, start + plan.duration[row])


@compiled
def put_earliest(plan, board, row, k, m):
    """Places (row, k, m) in the earliest gap after what precedes it; returns its end."""
    time = ready(plan, board, row, k, m)
    start = earliest(board, plan.machine[row, k], time, plan.duration[row])
    put(plan, board, row, k, m, start)
    return start + plan.duration[row]


@compiled
def put_latest(plan, board, row, k, m, horizon):
    """Places (row, k, m) in the latest gap before what follows it; returns its start."""
    time = deadline(plan, board, row, k, m, horizon)
    start = latest(board, plan.machine[row, k], time, plan.duration[row])
    put(plan, board, row, k, m, start)
    return start


@compiled
def last_end(plan, board):
    """End of the last op on a GPU."""
    last = 0
    for row in range(4 * plan.places):
        for k in range(plan.pipelines):
            for m in range(plan.microbatches):
                if board.start[row, k, m] != UNPLACED:
                    last = max(last, board.start[row, k, m] + plan.duration[row])
    return last
