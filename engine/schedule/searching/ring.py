"""Builds a periodic schedule, compiled: one microbatch of each pipeline a period, each in the same phase.

This is modulo scheduling, as compilers pipeline loops (Rau, "Iterative modulo scheduling", 1994). Time on
each machine is a ring; a busy interval stands on its timeline once per turn, over four turns, so that gaps
can be searched as on a line. Beginning and end, where not all microbatches are in flight, are left to
justification.
"""

from engine.schedule.compiled import compiled
from engine.schedule.searching.timelines import UNPLACED, earliest, latest, occupy, ready

TURNS = 4
FULL = -(2**62)


@compiled
def _fit(plan, ring, row, k, time, period):
    """Earliest start at or after `time` on the ring; FULL where there is no gap."""
    phase = time % period
    start = earliest(ring, plan.machine[row, k], phase, plan.duration[row])
    return FULL if start >= phase + period else time - phase + start


@compiled
def _take(plan, ring, row, k, start, period):
    ring.start[row, k, 0] = start
    phase = start % period
    for turn in range(-1, TURNS - 1):
        begin = phase + turn * period
        occupy(ring, plan.machine[row, k], begin, begin + plan.duration[row])


@compiled
def _place(plan, ring, row, k, time, period):
    """Places a node at or after `time`; returns whether there was room."""
    if plan.machine[row, k] < 0:
        return True
    start = _fit(plan, ring, row, k, time, period)
    if start == FULL:
        return False
    _take(plan, ring, row, k, start, period)
    return True


@compiled
def _backward(plan, ring, v, k, period, late):
    own, again = 2 * plan.places + v, plan.places + v
    time = ready(plan, ring, own, k, 0)
    if plan.machine[again, k] < 0:
        return _place(plan, ring, own, k, time, period)
    earliest_again = ready(plan, ring, again, k, 0)
    first = _fit(plan, ring, again, k, earliest_again, period)
    if first == FULL:
        return False
    if not late:
        _take(plan, ring, again, k, first, period)
        return _place(plan, ring, own, k, ready(plan, ring, own, k, 0), period)
    if not _place(plan, ring, own, k, max(time, first + plan.duration[again]), period):
        return False
    start = ring.start[own, k, 0]
    phase = start % period + period
    shift = start - phase
    again_start = latest(ring, plan.machine[again, k], phase, plan.duration[again]) + shift
    if again_start < earliest_again:
        return False
    _take(plan, ring, again, k, again_start, period)
    return True


@compiled
def _chain(plan, ring, k, release, period, late):
    last = plan.places - 1
    for v in range(last):
        time = ready(plan, ring, v, k, 0)
        if v == 0:
            time = release
        if not _place(plan, ring, v, k, time, period):
            return False
        crossing = 4 * plan.places + v
        if not _place(plan, ring, crossing, k, ready(plan, ring, crossing, k, 0), period):
            return False
    for v in range(last, -1, -1):
        crossing = 4 * plan.places + last + v
        if v < last and not _place(plan, ring, crossing, k, ready(plan, ring, crossing, k, 0), period):
            return False
        if not _backward(plan, ring, v, k, period, late):
            return False
    return True


@compiled
def insert_periodic(plan, ring, timelines, pipelines, release, period, late):
    """Writes the starts of a periodic schedule (not its intervals) to `timelines`; returns whether it fits.

    pipelines : in order of insertion.  release : (pipelines,).  period : ticks between microbatches.
    The limits are not looked at: `lift` and placing again in this order bring them in.
    """
    for i in range(plan.pipelines):
        if not _chain(plan, ring, pipelines[i], release[pipelines[i]], period, late):
            return False
    for v in range(plan.places):
        row = 3 * plan.places + v
        for k in range(plan.pipelines):
            if not _place(plan, ring, row, k, ready(plan, ring, row, k, 0), period):
                return False
    for row in range(len(plan.duration)):
        for k in range(plan.pipelines):
            if ring.start[row, k, 0] == UNPLACED:
                continue
            for m in range(plan.microbatches):
                timelines.start[row, k, m] = ring.start[row, k, 0] + m * period
    return True
