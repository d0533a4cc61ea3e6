"""Timelines of machines, compiled: the busy intervals of each, and the earliest or latest gap that fits.

Intervals that touch are one, so a machine without idle time costs nothing to search.
"""

from typing import NamedTuple

import numpy as np

from engine.schedule.compiled import compiled
from engine.schedule.searching.problem import Ints, Plan

UNPLACED = -(2**62)


class MachineTimelines(NamedTuple):
    """Where operations have been placed so far, in ticks."""

    start: Ints  # (rows, pipelines, microbatches), UNPLACED until known
    begin: Ints  # (machines, longest), busy intervals in order of time
    finish: Ints
    used: Ints  # (machines,), intervals


def empty_timelines(plan: Plan, microbatches: int | None = None, copies: int = 1) -> MachineTimelines:
    """Empty timelines with room for `microbatches` (None: all), each operation `copies` times."""
    microbatches = microbatches or plan.microbatches
    longest = plan.longest // plan.microbatches * microbatches * copies
    return MachineTimelines(
        start=np.full((len(plan.duration), plan.pipelines, microbatches), UNPLACED, dtype=np.int64),
        begin=np.zeros((plan.machines, longest), dtype=np.int64),
        finish=np.zeros((plan.machines, longest), dtype=np.int64),
        used=np.zeros(plan.machines, dtype=np.int64),
    )


@compiled
def clear(timelines):
    """Removes every operation."""
    timelines.start[:] = UNPLACED
    timelines.used[:] = 0


@compiled
def _first_after(timelines, machine, time):
    """Number of the first interval that ends after `time`."""
    low, high = 0, timelines.used[machine]
    while low < high:
        middle = (low + high) // 2
        if timelines.finish[machine, middle] > time:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def earliest(timelines, machine, time, length):
    """Earliest start at or after `time` of a gap of `length`."""
    i = _first_after(timelines, machine, time)
    while i < timelines.used[machine] and timelines.begin[machine, i] - time < length:
        time = max(time, timelines.finish[machine, i])
        i += 1
    return time


@compiled
def latest(timelines, machine, time, length):
    """Latest start of a gap of `length` that ends at or before `time`; may be negative."""
    i = _first_after(timelines, machine, time)
    if i < timelines.used[machine] and timelines.begin[machine, i] < time:
        time = timelines.begin[machine, i]
    i -= 1
    while i >= 0 and time - timelines.finish[machine, i] < length:
        time = timelines.begin[machine, i]
        i -= 1
    return time - length


@compiled
def occupy(timelines, machine, start, end):
    """Marks a free gap as busy."""
    begin, finish = timelines.begin[machine], timelines.finish[machine]
    count = timelines.used[machine]
    i = _first_after(timelines, machine, start)
    joins_left = i > 0 and finish[i - 1] == start
    joins_right = i < count and begin[i] == end
    if joins_left and joins_right:
        finish[i - 1] = finish[i]
        for j in range(i, count - 1):
            begin[j], finish[j] = begin[j + 1], finish[j + 1]
        timelines.used[machine] = count - 1
    elif joins_left:
        finish[i - 1] = end
    elif joins_right:
        begin[i] = start
    else:
        for j in range(count, i, -1):
            begin[j], finish[j] = begin[j - 1], finish[j - 1]
        begin[i], finish[i] = start, end
        timelines.used[machine] = count + 1


@compiled
def ready(plan, timelines, row, k, m, gates=True):
    """When all that must precede (row, k, m) and is placed has happened; with the limits' `gates` or not."""
    time = 0
    for i in range(2):
        other = plan.before[row, i]
        if other >= 0 and timelines.start[other, k, m] != UNPLACED:
            time = max(time, timelines.start[other, k, m] + plan.duration[other] + plan.before_lag[row, i])
    other, earlier = plan.gate[row], m - plan.behind[row]
    if gates and other >= 0 and earlier >= 0:
        time = max(time, timelines.start[other, k, earlier] + plan.duration[other])
    if m > 0 and timelines.start[row, k, m - 1] != UNPLACED:
        time = max(time, timelines.start[row, k, m - 1] + plan.duration[row])
    return time


@compiled
def deadline(plan, timelines, row, k, m, horizon):
    """When (row, k, m) must have ended for all that must follow it and is placed."""
    time = horizon
    for i in range(2):
        other = plan.after[row, i]
        if other >= 0 and timelines.start[other, k, m] != UNPLACED:
            time = min(time, timelines.start[other, k, m] - plan.after_lag[row, i])
        other = plan.opens[row, i]
        later = m + plan.opens_behind[row, i]
        if other >= 0 and later < plan.microbatches and timelines.start[other, k, later] != UNPLACED:
            time = min(time, timelines.start[other, k, later])
    if m + 1 < plan.microbatches and timelines.start[row, k, m + 1] != UNPLACED:
        time = min(time, timelines.start[row, k, m + 1])
    return time


@compiled
def put(plan, timelines, row, k, m, start):
    """Places (row, k, m)."""
    timelines.start[row, k, m] = start
    occupy(timelines, plan.machine[row, k], start, start + plan.duration[row])


@compiled
def put_earliest(plan, timelines, row, k, m):
    """Places (row, k, m) in the earliest gap after what precedes it; returns its end."""
    time = ready(plan, timelines, row, k, m)
    start = earliest(timelines, plan.machine[row, k], time, plan.duration[row])
    put(plan, timelines, row, k, m, start)
    return start + plan.duration[row]


@compiled
def put_latest(plan, timelines, row, k, m, horizon):
    """Places (row, k, m) in the latest gap before what follows it; returns its start."""
    time = deadline(plan, timelines, row, k, m, horizon)
    start = latest(timelines, plan.machine[row, k], time, plan.duration[row])
    put(plan, timelines, row, k, m, start)
    return start


@compiled
def last_end(plan, timelines):
    """End of the last op on a GPU."""
    last = 0
    for row in range(4 * plan.places):
        for k in range(plan.pipelines):
            for m in range(plan.microbatches):
                if timelines.start[row, k, m] != UNPLACED:
                    last = max(last, timelines.start[row, k, m] + plan.duration[row])
    return last
