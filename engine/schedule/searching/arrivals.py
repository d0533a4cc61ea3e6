"""Builds a schedule forward in time, compiled: first come, first served.

One idea: on every machine the operation whose inputs came first goes first, of two that came together the
shorter one, and R and W fill what is left, R earlier where its gradient is there. Nothing waits for what is
still to come, so two streams that cross each other delay each crossing by as little as they can; what to
vary is when each microbatch may begin.
"""

from math import gcd

import numpy as np

from engine.schedule.compiled import compiled
from engine.schedule.searching.board import UNPLACED
from engine.schedule.searching.shop import NONE, Ints, Plan
from engine.schedule.wake_tree import latest_up_to, set_wake, wakes_at

NEVER = 2**62
# Ranks of what fills gaps come after all times.
FILLS = 2**60


def lanes_of(plan: Plan) -> Ints:
    """Which (row, pipeline), as ``row · pipelines + pipeline``, run on each machine; −1 after the last."""
    lane = np.flatnonzero(plan.machine.ravel() != NONE)
    machine = plan.machine.ravel()[lane]
    order = np.argsort(machine, kind="stable")
    lane, machine = lane[order], machine[order]
    used = np.bincount(machine, minlength=plan.machines)
    lanes = np.full((plan.machines, int(used.max())), NONE, dtype=np.int64)
    lanes[machine, np.arange(len(lane)) - np.searchsorted(machine, machine)] = lane
    return lanes


def bursts(pipelines: int, microbatches: int, pace: int, burst: int) -> Ints:
    """Turns of the first link, shape (pipelines, microbatches): each pipeline comes every `pace` turns,
    `burst` times, then rests until it has had its share.

    With as many turns as pipelines · burst in a round, the bursts of all fill it where pace and burst have no
    common divisor.

    Raises
    ------
    ValueError
        They have one, or some turn would be taken twice.
    """
    if gcd(pace, burst) > 1:
        raise ValueError(f"pace {pace}, burst {burst}: must have no common divisor")
    around = pipelines * burst
    own = (np.arange(pipelines)[:, None] * burst + np.arange(burst) * pace) % around
    if len(np.unique(own)) < around:
        raise ValueError(f"pace {pace}, burst {burst}: {pipelines} pipelines meet in a turn")
    rounds = -(-microbatches // burst)
    turns = np.sort(own, axis=1)[:, None, :] + np.arange(rounds)[:, None] * around
    return turns.reshape(pipelines, -1)[:, :microbatches]


@compiled
def _known(plan, start, row, k, m):
    """When all that (row, k, m) needs is there; NEVER while that is not known."""
    time = 0
    for i in range(2):
        other = plan.before[row, i]
        if other >= 0:
            if start[other, k, m] == UNPLACED:
                return NEVER
            time = max(time, start[other, k, m] + plan.duration[other] + plan.before_lag[row, i])
    other, earlier = plan.gate[row], m - plan.behind[row]
    if other >= 0 and earlier >= 0:
        if start[other, k, earlier] == UNPLACED:
            return NEVER
        time = max(time, start[other, k, earlier] + plan.duration[other])
    return time


@compiled
def _rank(plan, start, row, k, m, arrived):
    """What goes first has the smallest."""
    if row >= 3 * plan.places and row < 4 * plan.places:
        return FILLS + arrived
    if row < plan.places or row >= 2 * plan.places:
        return arrived
    # R stands in for its B once the gradient is there.
    own = row + plan.places
    other = plan.before[own, 0]
    if other < 0 or start[other, k, m] == UNPLACED:
        return FILLS + arrived
    return max(arrived, start[other, k, m] + plan.duration[other] + plan.before_lag[own, 0])


@compiled
def _wake(plan, start, following, free, wake, lanes, release, machine):
    """Sets when a machine has something to decide; NEVER while nothing that it waits for is known."""
    soonest = NEVER
    for i in range(lanes.shape[1]):
        lane = lanes[machine, i]
        if lane < 0:
            break
        m = following[lane]
        if m == plan.microbatches:
            continue
        row, k = lane // plan.pipelines, lane % plan.pipelines
        time = _known(plan, start, row, k, m)
        if row == 0 and time < NEVER:
            time = max(time, release[k, m])
        soonest = min(soonest, time)
    set_wake(wake, machine, np.inf if soonest == NEVER else float(max(soonest, free[machine])))


@compiled
def _choose(plan, start, following, lanes, release, machine, now):
    """The lane that goes first on a machine."""
    chosen, least, shortest = -1, NEVER, NEVER
    for i in range(lanes.shape[1]):
        lane = lanes[machine, i]
        if lane < 0:
            break
        m = following[lane]
        if m == plan.microbatches:
            continue
        row, k = lane // plan.pipelines, lane % plan.pipelines
        arrived = _known(plan, start, row, k, m)
        if row == 0 and arrived < NEVER:
            arrived = max(arrived, release[k, m])
        if arrived > now:
            continue
        rank = _rank(plan, start, row, k, m, arrived)
        # A gradient that is still on its way does not make its R urgent.
        if rank > now and rank < FILLS:
            rank = FILLS + arrived
        if rank < least or (rank == least and plan.duration[row] < shortest):
            chosen, least, shortest = lane, rank, plan.duration[row]
    return chosen


@compiled
def serve(plan, start, following, free, wake, lanes, release, work):
    """Fills an empty `start`, shape (rows, pipelines, microbatches); returns how many operations it placed.

    following : (rows · pipelines,) zeros, the next microbatch of each lane.  free : (machines,) zeros.
    wake : a tree of machines, see `wake_tree`.  release : (pipelines, microbatches), when each may begin.
    work : operations to place at most.
    """
    for machine in range(plan.machines):
        _wake(plan, start, following, free, wake, lanes, release, machine)
    for count in range(work):
        if wake[1] == np.inf:
            return count
        machine = latest_up_to(wake, wake[1])
        now = np.int64(wakes_at(wake, machine))
        lane = _choose(plan, start, following, lanes, release, machine, now)
        row, k = lane // plan.pipelines, lane % plan.pipelines
        m = following[lane]
        start[row, k, m] = now
        following[lane] = m + 1
        free[machine] = now + plan.duration[row]
        _wake(plan, start, following, free, wake, lanes, release, machine)
        for i in range(2):
            for other in (plan.after[row, i], plan.opens[row, i]):
                if other >= 0 and plan.machine[other, k] >= 0:
                    _wake(plan, start, following, free, wake, lanes, release, plan.machine[other, k])
    return work
