"""Builds a schedule forward in time, compiled: first come, first served.

One idea: on every machine the operation whose inputs came first goes first, of two that came together the
shorter one, and R and W fill what is left, R earlier where its gradient is there. Nothing waits for what is
still to come, so two streams that cross each other delay each crossing by as little as they can; what to
vary is when each microbatch may begin, and whether pipelines take the links that they share in turns, each
waiting for its own: a delay at one place does not spread to the order of all later ones then.

Or F goes first: before a B that came at most that B's length earlier, and a GPU waits for an F that it
knows to come rather than let a B run into it. F then flows as evenly as it enters and only B is delayed, by
no more than crossing costs.
"""

from math import gcd
from typing import NamedTuple

import numpy as np

from engine.schedule.compiled import compiled
from engine.schedule.searching.problem import NONE, Floats, Ints, Plan
from engine.schedule.searching.timelines import UNPLACED
from engine.schedule.wake_tree import first_up_to, latest_up_to, set_wake, sleeping, wakes_at

NEVER = 2**62
# Ranks of what fills gaps come after all times.
FILLS = 2**60
# A third of a problem's machines are GPUs; they have the first numbers (`SchedulingProblem.machine_count`).
LINKS_AND_GPUS = 3


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


def rotation(pipelines: int, microbatches: int, shifts: list[int]) -> Ints:
    """Turns of the first link, shape (pipelines, microbatches): all pipelines but one take turns; after each
    shift (its length in turns; the last one lasts) the one that has done so longest rests, and the one that
    rested takes its turns over.

    A pipeline comes every pipelines − 1 turns then: where that is the time of an F and a B, its F's and B's,
    coming from both sides, pass each other everywhere without waiting, but for those of different shifts.

    Raises
    ------
    ValueError
        A length is not one more than a multiple of pipelines − 1, so that there is no turn to take over.
    """
    at_once = pipelines - 1
    if any(length < 1 or (length - 1) % at_once for length in shifts):
        raise ValueError(f"shifts {shifts}: must be one more than a multiple of {at_once}")
    slots = (pipelines + 1) * (microbatches + max(shifts)) * 2
    lengths = np.array(shifts + [shifts[-1]] * (slots // shifts[-1] + 1))
    begins = np.concatenate([[0], np.cumsum(lengths)])
    slot = np.arange(slots)
    shift = np.searchsorted(begins, slot, side="right") - 1
    owner = (shift - (shift - slot) % at_once) % pipelines
    own = np.stack([np.flatnonzero(owner == k)[:microbatches] for k in range(pipelines)])
    # Towards the end some have had their share: nobody waits for their turns.
    return np.argsort(np.argsort(own.ravel(), kind="stable"), kind="stable").reshape(own.shape)


class Queues(NamedTuple):
    """What waits where.

    following : (rows · pipelines,), the next microbatch of each lane.  free : (machines,), when each is.
    wake : a tree of machines, see `wake_tree`.  lanes : see `lanes_of`.
    release : (pipelines, microbatches), when each may begin.
    turns : (pipelines · microbatches,), the pipelines in the order in which they take shared links.
    taken : (machines,), turns taken; −1: no turns on this machine.
    forwards_first : whether F goes before B, and B waits for an F to come.
    """

    following: Ints
    free: Ints
    wake: Floats
    lanes: Ints
    release: Ints
    turns: Ints
    taken: Ints
    forwards_first: bool


def queues_of(plan: Plan, release: Ints, turns: Ints | None, *, forwards_first: bool) -> Queues:
    """Everything still waits. turns : None: pipelines take shared links as they come."""
    lanes = lanes_of(plan)
    return Queues(
        following=np.zeros(plan.machine.size, dtype=np.int64),
        free=np.zeros(plan.machines, dtype=np.int64),
        wake=sleeping(plan.machines),
        lanes=lanes,
        release=release,
        turns=np.zeros(0, dtype=np.int64) if turns is None else turns,
        taken=np.full(plan.machines, NONE) if turns is None else _no_turn_taken(lanes, plan.pipelines),
        forwards_first=forwards_first,
    )


def _no_turn_taken(lanes: Ints, pipelines: int) -> Ints:
    """0 for each machine on which every pipeline has one lane, a link that they share; else −1."""
    each = np.arange(pipelines)
    owners = np.where(lanes == NONE, NONE, lanes % pipelines)
    shared = [pipelines > 1 and np.array_equal(np.sort(own[own != NONE]), each) for own in owners]
    return np.where(shared, 0, NONE)


@compiled
def _has_turn(queues, machine, k):
    """Whether pipeline k comes next on a machine."""
    return queues.taken[machine] < 0 or queues.turns[queues.taken[machine]] == k


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
def _arrival(plan, start, queues, row, k, m):
    """When (row, k, m) has all that it needs and may begin; NEVER while that is not known."""
    time = _known(plan, start, row, k, m)
    return max(time, queues.release[k, m]) if row == 0 and time < NEVER else time


@compiled
def _wake(plan, start, queues, machine):
    """Sets when a machine has something to decide; NEVER while nothing that it waits for is known."""
    soonest = NEVER
    for i in range(queues.lanes.shape[1]):
        lane = queues.lanes[machine, i]
        if lane < 0:
            break
        m = queues.following[lane]
        row, k = lane // plan.pipelines, lane % plan.pipelines
        if m < plan.microbatches and _has_turn(queues, machine, k):
            soonest = min(soonest, _arrival(plan, start, queues, row, k, m))
    set_wake(queues.wake, machine, np.inf if soonest == NEVER else float(max(soonest, queues.free[machine])))


@compiled
def _head_start(plan, row):
    """By how much an F counts as earlier: the time of a B at its place."""
    return plan.duration[2 * plan.places + row]


@compiled
def _coming(plan, start, queues, machine, now):
    """The F that is known to come next to a machine and goes first there: when it comes, and its rank."""
    soonest, least = NEVER, NEVER
    if queues.forwards_first:
        for i in range(queues.lanes.shape[1]):
            lane = queues.lanes[machine, i]
            if lane < 0:
                break
            m = queues.following[lane]
            row, k = lane // plan.pipelines, lane % plan.pipelines
            if m < plan.microbatches and row < plan.places:
                time = _arrival(plan, start, queues, row, k, m)
                if now < time < soonest:
                    soonest, least = time, time - _head_start(plan, row)
    return soonest, least


@compiled
def _choose(plan, start, queues, machine, now):
    """The lane that goes first on a machine; −1, and the machine sleeps, where an F to come goes first."""
    coming, coming_rank = _coming(plan, start, queues, machine, now)
    chosen, least, shortest = -1, NEVER, NEVER
    for i in range(queues.lanes.shape[1]):
        lane = queues.lanes[machine, i]
        if lane < 0:
            break
        m = queues.following[lane]
        row, k = lane // plan.pipelines, lane % plan.pipelines
        if m == plan.microbatches or not _has_turn(queues, machine, k):
            continue
        arrived = _arrival(plan, start, queues, row, k, m)
        if arrived > now:
            continue
        rank = _rank(plan, start, row, k, m, arrived)
        if queues.forwards_first and row < plan.places:
            rank -= _head_start(plan, row)
        # A gradient that is still on its way does not make its R urgent.
        if rank > now and rank < FILLS:
            rank = FILLS + arrived
        if now + plan.duration[row] > coming and rank > coming_rank:
            continue
        if rank < least or (rank == least and plan.duration[row] < shortest):
            chosen, least, shortest = lane, rank, plan.duration[row]
    if chosen < 0:
        set_wake(queues.wake, machine, float(coming))
    return chosen


@compiled
def _next_machine(plan, queues):
    """Who decides first: links; then GPUs from the last stage, or from the first, to see F come."""
    soonest = queues.wake[1]
    machine = latest_up_to(queues.wake, soonest)
    if queues.forwards_first and machine < plan.machines // LINKS_AND_GPUS:
        machine = first_up_to(queues.wake, soonest)
    return machine


@compiled
def serve(plan, start, queues, work):
    """Fills an empty `start`, shape (rows, pipelines, microbatches); returns how many operations it placed.

    queues : as `queues_of` makes them.  work : operations to place at most.
    """
    for machine in range(plan.machines):
        _wake(plan, start, queues, machine)
    placed = 0
    while placed < work and queues.wake[1] < np.inf:
        machine = _next_machine(plan, queues)
        now = np.int64(wakes_at(queues.wake, machine))
        lane = _choose(plan, start, queues, machine, now)
        if lane < 0:
            continue
        placed += 1
        row, k = lane // plan.pipelines, lane % plan.pipelines
        m = queues.following[lane]
        start[row, k, m] = now
        queues.following[lane] = m + 1
        queues.free[machine] = now + plan.duration[row]
        if queues.taken[machine] >= 0:
            queues.taken[machine] += 1
        _wake(plan, start, queues, machine)
        for i in range(2):
            for other in (plan.after[row, i], plan.opens[row, i]):
                if other >= 0 and plan.machine[other, k] >= 0:
                    _wake(plan, start, queues, plan.machine[other, k])
    return placed
