"""Timelines of machines, compiled: the busy intervals of each, and the earliest or latest gap that fits.

Adjacent intervals are merged, so a machine without idle time costs nothing to search.
"""

from typing import NamedTuple

import numpy as np

from engine.schedule.compiled import compiled
from engine.schedule.searching.problem import Ints, ProblemArrays

UNPLACED = -(2**62)


class MachineTimelines(NamedTuple):
    """The operations placed so far, in ticks."""

    start: Ints  # (rows, pipelines, microbatches), UNPLACED until known
    begin: Ints  # (machines, longest), busy intervals in order of time
    finish: Ints
    used: Ints  # (machines,), intervals


def empty_timelines(
    arrays: ProblemArrays, microbatches: int | None = None, copies: int = 1
) -> MachineTimelines:
    """Empty timelines with room for `microbatches` (None: all), each operation `copies` times."""
    microbatches = microbatches or arrays.microbatches
    longest = arrays.longest // arrays.microbatches * microbatches * copies
    return MachineTimelines(
        start=np.full((len(arrays.duration), arrays.pipelines, microbatches), UNPLACED, dtype=np.int64),
        begin=np.zeros((arrays.machines, longest), dtype=np.int64),
        finish=np.zeros((arrays.machines, longest), dtype=np.int64),
        used=np.zeros(arrays.machines, dtype=np.int64),
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
def ready(arrays, timelines, row, k, m, gates=True):
    """Earliest start of (row, k, m) after its placed predecessors. gates : whether the limits count."""
    time = 0
    for i in range(2):
        other = arrays.before[row, i]
        if other >= 0 and timelines.start[other, k, m] != UNPLACED:
            time = max(
                time, timelines.start[other, k, m] + arrays.duration[other] + arrays.before_lag[row, i]
            )
    other, earlier = arrays.gate[row], m - arrays.behind[row]
    if gates and other >= 0 and earlier >= 0:
        time = max(time, timelines.start[other, k, earlier] + arrays.duration[other])
    if m > 0 and timelines.start[row, k, m - 1] != UNPLACED:
        time = max(time, timelines.start[row, k, m - 1] + arrays.duration[row])
    return time


@compiled
def deadline(arrays, timelines, row, k, m, horizon):
    """Latest end of (row, k, m) before its placed successors."""
    time = horizon
    for i in range(2):
        other = arrays.after[row, i]
        if other >= 0 and timelines.start[other, k, m] != UNPLACED:
            time = min(time, timelines.start[other, k, m] - arrays.after_lag[row, i])
        other = arrays.opens[row, i]
        later = m + arrays.opens_behind[row, i]
        if other >= 0 and later < arrays.microbatches and timelines.start[other, k, later] != UNPLACED:
            time = min(time, timelines.start[other, k, later])
    if m + 1 < arrays.microbatches and timelines.start[row, k, m + 1] != UNPLACED:
        time = min(time, timelines.start[row, k, m + 1])
    return time


@compiled
def put(arrays, timelines, row, k, m, start):
    """Places (row, k, m)."""
    timelines.start[row, k, m] = start
    occupy(timelines, arrays.machine[row, k], start, start + arrays.duration[row])


@compiled
def put_earliest(arrays, timelines, row, k, m):
    """Places (row, k, m) in the earliest gap after its predecessors; returns its end."""
    time = ready(arrays, timelines, row, k, m)
    start = earliest(timelines, arrays.machine[row, k], time, arrays.duration[row])
    put(arrays, timelines, row, k, m, start)
    return start + arrays.duration[row]


@compiled
def put_latest(arrays, timelines, row, k, m, horizon):
    """Places (row, k, m) in the latest gap before its successors; returns its start."""
    time = deadline(arrays, timelines, row, k, m, horizon)
    start = latest(timelines, arrays.machine[row, k], time, arrays.duration[row])
    put(arrays, timelines, row, k, m, start)
    return start


@compiled
def last_end(arrays, timelines):
    """End of the last op on a GPU."""
    last = 0
    for row in range(4 * arrays.positions):
        for k in range(arrays.pipelines):
            for m in range(arrays.microbatches):
                if timelines.start[row, k, m] != UNPLACED:
                    last = max(last, timelines.start[row, k, m] + arrays.duration[row])
    return last
