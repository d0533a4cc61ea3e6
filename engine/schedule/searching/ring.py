"""Builds a periodic schedule, compiled: one microbatch of each pipeline a period, each in the same phase.

This is modulo scheduling, as compilers pipeline loops (Rau, "Iterative modulo scheduling", 1994). Time on
each machine is a ring. A busy interval is entered on its timeline once per turn, over four turns, so gaps can
be searched as on a line. Justification handles begin and end, when not all microbatches are in flight.
"""

from engine.schedule.compiled import compiled
from engine.schedule.searching.timelines import UNPLACED, earliest, latest, occupy, ready

TURNS = 4
FULL = -(2**62)


@compiled
def _fit(arrays, ring, row, k, time, period):
    """Earliest start at or after `time` on the ring; FULL if there is no gap."""
    phase = time % period
    start = earliest(ring, arrays.machine[row, k], phase, arrays.duration[row])
    return FULL if start >= phase + period else time - phase + start


@compiled
def _take(arrays, ring, row, k, start, period):
    ring.start[row, k, 0] = start
    phase = start % period
    for turn in range(-1, TURNS - 1):
        begin = phase + turn * period
        occupy(ring, arrays.machine[row, k], begin, begin + arrays.duration[row])


@compiled
def _place(arrays, ring, row, k, time, period):
    """Places a node at or after `time`; returns whether there was room."""
    if arrays.machine[row, k] < 0:
        return True
    start = _fit(arrays, ring, row, k, time, period)
    if start == FULL:
        return False
    _take(arrays, ring, row, k, start, period)
    return True


@compiled
def _backward(arrays, ring, v, k, period, late):
    own, again = 2 * arrays.positions + v, arrays.positions + v
    time = ready(arrays, ring, own, k, 0)
    if arrays.machine[again, k] < 0:
        return _place(arrays, ring, own, k, time, period)
    earliest_again = ready(arrays, ring, again, k, 0)
    first = _fit(arrays, ring, again, k, earliest_again, period)
    if first == FULL:
        return False
    if not late:
        _take(arrays, ring, again, k, first, period)
        return _place(arrays, ring, own, k, ready(arrays, ring, own, k, 0), period)
    if not _place(arrays, ring, own, k, max(time, first + arrays.duration[again]), period):
        return False
    start = ring.start[own, k, 0]
    phase = start % period + period
    shift = start - phase
    again_start = latest(ring, arrays.machine[again, k], phase, arrays.duration[again]) + shift
    if again_start < earliest_again:
        return False
    _take(arrays, ring, again, k, again_start, period)
    return True


@compiled
def _chain(arrays, ring, k, release, period, late):
    last = arrays.positions - 1
    for v in range(last):
        time = ready(arrays, ring, v, k, 0)
        if v == 0:
            time = release
        if not _place(arrays, ring, v, k, time, period):
            return False
        transfer = 4 * arrays.positions + v
        if not _place(arrays, ring, transfer, k, ready(arrays, ring, transfer, k, 0), period):
            return False
    for v in range(last, -1, -1):
        transfer = 4 * arrays.positions + last + v
        if v < last and not _place(arrays, ring, transfer, k, ready(arrays, ring, transfer, k, 0), period):
            return False
        if not _backward(arrays, ring, v, k, period, late):
            return False
    return True


@compiled
def insert_periodic(arrays, ring, timelines, pipelines, release, period, late):
    """Writes the starts of a periodic schedule (not its intervals) to `timelines`; returns whether it fits.

    pipelines : in order of insertion.  release : (pipelines,).  period : ticks between microbatches.
    The limits are ignored here: `lift` and placing again in this order apply them.
    """
    for i in range(arrays.pipelines):
        if not _chain(arrays, ring, pipelines[i], release[pipelines[i]], period, late):
            return False
    for v in range(arrays.positions):
        row = 3 * arrays.positions + v
        for k in range(arrays.pipelines):
            if not _place(arrays, ring, row, k, ready(arrays, ring, row, k, 0), period):
                return False
    for row in range(len(arrays.duration)):
        for k in range(arrays.pipelines):
            if ring.start[row, k, 0] == UNPLACED:
                continue
            for m in range(arrays.microbatches):
                timelines.start[row, k, m] = ring.start[row, k, 0] + m * period
    return True
