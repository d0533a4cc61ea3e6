"""The future free gaps of every GPU, compiled: a sorted row of (begin, end) per GPU.

A row is filled ahead from the pattern of bubbles, which repeats with every iteration and excludes the guards.
It loses past gaps at its front, and placed requests split its gaps. Times in ms.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Shorter intervals are rounding.
EPS = 1e-6
NONE = -1
# Columns of `Gaps.book`.
HEAD, TAIL, NEXT, LAP, KIND = 0, 1, 2, 3, 4
# Entries of `Gaps.clock`.
NOW, UNTIL, PERIOD = 0, 1, 2


class Gaps(NamedTuple):
    """The free gaps, and the state of each row."""

    edges: Floats  # (GPUs, room, 2): begin and end of the free gaps, in order from HEAD to TAIL
    book: Ints  # (GPUs, 5): first gap, one past the last, next gap of the pattern and its lap, which pattern
    offset: Floats  # (GPUs,): by how much a GPU's pattern is shifted
    pattern: Floats  # (kinds, most gaps, 2): the bubbles of one period, begins in [0, period)
    counts: Ints  # (kinds,)
    clock: Floats  # (3,): now; how far ahead rows are filled; period


@compiled
def append(gaps, g, begin, end):
    """Adds a gap at the end of a row, or lengthens the last one if they touch. False: no room."""
    head, tail = gaps.book[g, HEAD], gaps.book[g, TAIL]
    if tail > head and begin - gaps.edges[g, tail - 1, 1] <= EPS:
        gaps.edges[g, tail - 1, 1] = max(end, gaps.edges[g, tail - 1, 1])
        return True
    if tail == gaps.edges.shape[1]:
        return False
    gaps.edges[g, tail, 0] = begin
    gaps.edges[g, tail, 1] = end
    gaps.book[g, TAIL] = tail + 1
    return True


@compiled
def extend(gaps, g):
    """Adds the next gap of the pattern to a row; False if it is too far ahead, or no room is left."""
    kind = gaps.book[g, KIND]
    if gaps.counts[kind] == 0:
        return False
    shift = gaps.offset[g] + gaps.book[g, LAP] * gaps.clock[PERIOD]
    begin = gaps.pattern[kind, gaps.book[g, NEXT], 0] + shift
    if begin > gaps.clock[UNTIL]:
        return False
    if not append(gaps, g, begin, gaps.pattern[kind, gaps.book[g, NEXT], 1] + shift):
        return False
    gaps.book[g, NEXT] += 1
    if gaps.book[g, NEXT] == gaps.counts[kind]:
        gaps.book[g, NEXT] = 0
        gaps.book[g, LAP] += 1
    return True


@compiled
def skip_laps(gaps, g):
    """Starts an empty row at the lap before the present one, however long the last search was ago."""
    lap = int((gaps.clock[NOW] - gaps.offset[g]) / gaps.clock[PERIOD]) - 2
    if lap > gaps.book[g, LAP]:
        gaps.book[g, LAP] = lap
        gaps.book[g, NEXT] = 0


@compiled
def forget_past(gaps, g):
    """Drops the gaps that have ended. Indexes into the row may change, so it must not run within a search."""
    now = gaps.clock[NOW]
    head, tail = gaps.book[g, HEAD], gaps.book[g, TAIL]
    while True:
        while head < tail and gaps.edges[g, head, 1] <= now:
            head += 1
        if head < tail:
            break
        head = tail = 0
        gaps.book[g, HEAD] = gaps.book[g, TAIL] = 0
        skip_laps(gaps, g)
        if not extend(gaps, g):
            return
        tail = gaps.book[g, TAIL]
    gaps.book[g, HEAD] = head
    if head > gaps.edges.shape[1] // 2:
        for i in range(head, tail):
            gaps.edges[g, i - head, 0] = gaps.edges[g, i, 0]
            gaps.edges[g, i - head, 1] = gaps.edges[g, i, 1]
        gaps.book[g, HEAD] = 0
        gaps.book[g, TAIL] = tail - head


@compiled
def fit(gaps, g, i, at, need, before):
    """Index of the first gap from `i` on that holds `need` ms at or after `at` and begins before `before`."""
    while True:
        if i >= gaps.book[g, TAIL] and not extend(gaps, g):
            return NONE
        if i >= gaps.book[g, TAIL]:  # the pattern lengthened the last gap, which was too short for this
            i = gaps.book[g, TAIL] - 1
        begin = max(gaps.edges[g, i, 0], at)
        if begin >= before:
            return NONE
        if gaps.edges[g, i, 1] - begin >= need:
            return i
        i += 1


@compiled
def take(gaps, g, begin, end):
    """Takes [begin, end] out of the gap that holds it; False if none does."""
    head, tail = gaps.book[g, HEAD], gaps.book[g, TAIL]
    i = head
    while i < tail and gaps.edges[g, i, 1] < end - EPS:
        i += 1
    if i == tail or gaps.edges[g, i, 0] > begin + EPS:
        return False
    left = max(gaps.edges[g, i, 0], gaps.clock[NOW])
    left_remains, right_remains = begin - left > EPS, gaps.edges[g, i, 1] - end > EPS
    if left_remains and right_remains and tail < gaps.edges.shape[1]:
        for j in range(tail, i, -1):
            gaps.edges[g, j, 0] = gaps.edges[g, j - 1, 0]
            gaps.edges[g, j, 1] = gaps.edges[g, j - 1, 1]
        gaps.edges[g, i, 1] = begin
        gaps.edges[g, i + 1, 0] = end
        gaps.book[g, TAIL] = tail + 1
    elif right_remains:  # without room for two parts, the left one is lost
        gaps.edges[g, i, 0] = end
    elif left_remains:
        gaps.edges[g, i, 1] = begin
    else:
        for j in range(i, tail - 1):
            gaps.edges[g, j, 0] = gaps.edges[g, j + 1, 0]
            gaps.edges[g, j, 1] = gaps.edges[g, j + 1, 1]
        gaps.book[g, TAIL] = tail - 1
    return True


@compiled
def give(gaps, g, begin, end):
    """Returns [begin, end], taken before; it is lost if the row has no room for it."""
    head, tail = gaps.book[g, HEAD], gaps.book[g, TAIL]
    i = head
    while i < tail and gaps.edges[g, i, 0] < begin:
        i += 1
    joins_left = i > head and begin - gaps.edges[g, i - 1, 1] <= EPS
    joins_right = i < tail and gaps.edges[g, i, 0] - end <= EPS
    if joins_left and joins_right:
        gaps.edges[g, i - 1, 1] = gaps.edges[g, i, 1]
        for j in range(i, tail - 1):
            gaps.edges[g, j, 0] = gaps.edges[g, j + 1, 0]
            gaps.edges[g, j, 1] = gaps.edges[g, j + 1, 1]
        gaps.book[g, TAIL] = tail - 1
    elif joins_left:
        gaps.edges[g, i - 1, 1] = end
    elif joins_right:
        gaps.edges[g, i, 0] = begin
    elif tail < gaps.edges.shape[1]:
        for j in range(tail, i, -1):
            gaps.edges[g, j, 0] = gaps.edges[g, j - 1, 0]
            gaps.edges[g, j, 1] = gaps.edges[g, j - 1, 1]
        gaps.edges[g, i, 0] = begin
        gaps.edges[g, i, 1] = end
        gaps.book[g, TAIL] = tail + 1
