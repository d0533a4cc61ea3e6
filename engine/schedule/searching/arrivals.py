"""Builds a schedule forward in time, compiled: first come, first served.

One idea: on every machine the operation whose inputs came first goes first; of two that came together, the
shorter one. R and W fill the gaps, R earlier if its gradient is there. No operation waits for a later one. So
two opposite streams delay each transfer as little as they can. Two things vary: the earliest start of each
microbatch, and whether pipelines take shared links in turns, each waiting for its own. With turns, a delay at
one position does not change the order at all later ones.

Optionally F goes first: before a B that came at most that B's length earlier. A GPU also waits for an F that
it knows to come rather than start a B that would delay it. F then flows as evenly as it enters. Only B is
delayed, by no more than a transfer costs.
"""

from math import gcd
from typing import NamedTuple

import numpy as np

from engine.schedule.compiled import compiled
from engine.schedule.searching.problem import NONE, Floats, Ints, ProblemArrays
from engine.schedule.searching.timelines import UNPLACED
from engine.schedule.wake_tree import first_up_to, latest_up_to, set_wake, sleeping, wakes_at

NEVER = 2**62
# Ranks of ops that fill gaps are larger than all times.
FILLS = 2**60
# A third of a problem's machines are GPUs; they have the first numbers (`SchedulingProblem.machine_count`).
LINKS_AND_GPUS = 3


def lanes_of(arrays: ProblemArrays) -> Ints:
    """The (row, pipeline) of each machine, as ``row · pipelines + pipeline``; −1 after the last."""
    lane = np.flatnonzero(arrays.machine.ravel() != NONE)
    machine = arrays.machine.ravel()[lane]
    order = np.argsort(machine, kind="stable")
    lane, machine = lane[order], machine[order]
    used = np.bincount(machine, minlength=arrays.machines)
    lanes = np.full((arrays.machines, int(used.max())), NONE, dtype=np.int64)
    lanes[machine, np.arange(len(lane)) - np.searchsorted(machine, machine)] = lane
    return lanes


def bursts(pipelines: int, microbatches: int, pace: int, burst: int) -> Ints:
    """Turns of the first link, shape (pipelines, microbatches), in bursts.

    Each pipeline comes every `pace` turns, `burst` times, then rests until it has had its share. A cycle has
    pipelines · burst turns. The bursts of all pipelines fill it if pace and burst have no common divisor.

    Raises
    ------
    ValueError
        They have one, or some turn would be taken twice.
    """
    if gcd(pace, burst) > 1:
        raise ValueError(f"pace {pace}, burst {burst}: must have no common divisor")
    turns_per_cycle = pipelines * burst
    own = (np.arange(pipelines)[:, None] * burst + np.arange(burst) * pace) % turns_per_cycle
    if len(np.unique(own)) < turns_per_cycle:
        raise ValueError(f"pace {pace}, burst {burst}: {pipelines} pipelines meet in a turn")
    cycles = -(-microbatches // burst)
    turns = np.sort(own, axis=1)[:, None, :] + np.arange(cycles)[:, None] * turns_per_cycle
    return turns.reshape(pipelines, -1)[:, :microbatches]


def rotation(pipelines: int, microbatches: int, shifts: list[int]) -> Ints:
    """Turns of the first link, shape (pipelines, microbatches), with one pipeline at rest in each shift.

    All pipelines but one take turns. After each shift (a length in turns; the last one repeats) the pipeline
    that has worked longest rests, and the rested one takes over its turns. So a pipeline comes every
    pipelines − 1 turns. If that is the time of an F and a B, its F's and B's pass each other everywhere
    without waiting, except across shifts.

    Raises
    ------
    ValueError
        A length is not one more than a multiple of pipelines − 1: there is no turn to take over.
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
    # Towards the end some pipelines have had their share; their turns are skipped.
    return np.argsort(np.argsort(own.ravel(), kind="stable"), kind="stable").reshape(own.shape)


class Queues(NamedTuple):
    """The waiting operations of each machine.

    following : (rows · pipelines,), the next microbatch of each lane.  free : (machines,), when each is free.
    wake : a tree of machines, see `wake_tree`.  lanes : see `lanes_of`.
    release : (pipelines, microbatches), earliest start of each.
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


def queues_of(arrays: ProblemArrays, release: Ints, turns: Ints | None, *, forwards_first: bool) -> Queues:
    """Queues with every operation waiting. turns : None: pipelines take shared links in order of arrival."""
    lanes = lanes_of(arrays)
    return Queues(
        following=np.zeros(arrays.machine.size, dtype=np.int64),
        free=np.zeros(arrays.machines, dtype=np.int64),
        wake=sleeping(arrays.machines),
        lanes=lanes,
        release=release,
        turns=np.zeros(0, dtype=np.int64) if turns is None else turns,
        taken=np.full(arrays.machines, NONE) if turns is None else _no_turn_taken(lanes, arrays.pipelines),
        forwards_first=forwards_first,
    )


def _no_turn_taken(lanes: Ints, pipelines: int) -> Ints:
    """0 for each machine on which every pipeline has one lane (a shared link); else −1."""
    each = np.arange(pipelines)
    owners = np.where(lanes == NONE, NONE, lanes % pipelines)
    shared = [pipelines > 1 and np.array_equal(np.sort(own[own != NONE]), each) for own in owners]
    return np.where(shared, 0, NONE)


@compiled
def _has_turn(queues, machine, k):
    """Whether pipeline k comes next on a machine."""
    return queues.taken[machine] < 0 or queues.turns[queues.taken[machine]] == k


@compiled
def _known(arrays, start, row, k, m):
    """When all inputs of (row, k, m) are there; NEVER if that is not known."""
    time = 0
    for i in range(2):
        other = arrays.before[row, i]
        if other >= 0:
            if start[other, k, m] == UNPLACED:
                return NEVER
            time = max(time, start[other, k, m] + arrays.duration[other] + arrays.before_lag[row, i])
    other, earlier = arrays.gate[row], m - arrays.behind[row]
    if other >= 0 and earlier >= 0:
        if start[other, k, earlier] == UNPLACED:
            return NEVER
        time = max(time, start[other, k, earlier] + arrays.duration[other])
    return time


@compiled
def _rank(arrays, start, row, k, m, arrived):
    """Priority of an operation; the smallest goes first."""
    if row >= 3 * arrays.positions and row < 4 * arrays.positions:
        return FILLS + arrived
    if row < arrays.positions or row >= 2 * arrays.positions:
        return arrived
    # R stands in for its B once the gradient is there.
    own = row + arrays.positions
    other = arrays.before[own, 0]
    if other < 0 or start[other, k, m] == UNPLACED:
        return FILLS + arrived
    return max(arrived, start[other, k, m] + arrays.duration[other] + arrays.before_lag[own, 0])


@compiled
def _arrival(arrays, start, queues, row, k, m):
    """When (row, k, m) has its inputs and may begin; NEVER if that is not known."""
    time = _known(arrays, start, row, k, m)
    return max(time, queues.release[k, m]) if row == 0 and time < NEVER else time


@compiled
def _wake(arrays, start, queues, machine):
    """Sets the next decision of a machine; NEVER if none of its inputs is known."""
    soonest = NEVER
    for i in range(queues.lanes.shape[1]):
        lane = queues.lanes[machine, i]
        if lane < 0:
            break
        m = queues.following[lane]
        row, k = lane // arrays.pipelines, lane % arrays.pipelines
        if m < arrays.microbatches and _has_turn(queues, machine, k):
            soonest = min(soonest, _arrival(arrays, start, queues, row, k, m))
    set_wake(queues.wake, machine, np.inf if soonest == NEVER else float(max(soonest, queues.free[machine])))


@compiled
def _head_start(arrays, row):
    """The time by which an F counts as earlier: that of a B at its position."""
    return arrays.duration[2 * arrays.positions + row]


@compiled
def _coming(arrays, start, queues, machine, now):
    """Arrival and rank of the next F that is known to come to a machine and goes first there."""
    soonest, least = NEVER, NEVER
    if queues.forwards_first:
        for i in range(queues.lanes.shape[1]):
            lane = queues.lanes[machine, i]
            if lane < 0:
                break
            m = queues.following[lane]
            row, k = lane // arrays.pipelines, lane % arrays.pipelines
            if m < arrays.microbatches and row < arrays.positions:
                time = _arrival(arrays, start, queues, row, k, m)
                if now < time < soonest:
                    soonest, least = time, time - _head_start(arrays, row)
    return soonest, least


@compiled
def _choose(arrays, start, queues, machine, now):
    """The lane that goes first on a machine; −1, and the machine sleeps, if it must wait for an F."""
    coming, coming_rank = _coming(arrays, start, queues, machine, now)
    chosen, least, shortest = -1, NEVER, NEVER
    for i in range(queues.lanes.shape[1]):
        lane = queues.lanes[machine, i]
        if lane < 0:
            break
        m = queues.following[lane]
        row, k = lane // arrays.pipelines, lane % arrays.pipelines
        if m == arrays.microbatches or not _has_turn(queues, machine, k):
            continue
        arrived = _arrival(arrays, start, queues, row, k, m)
        if arrived > now:
            continue
        rank = _rank(arrays, start, row, k, m, arrived)
        if queues.forwards_first and row < arrays.positions:
            rank -= _head_start(arrays, row)
        # A gradient that has not arrived does not make its R urgent.
        if rank > now and rank < FILLS:
            rank = FILLS + arrived
        if now + arrays.duration[row] > coming and rank > coming_rank:
            continue
        if rank < least or (rank == least and arrays.duration[row] < shortest):
            chosen, least, shortest = lane, rank, arrays.duration[row]
    if chosen < 0:
        set_wake(queues.wake, machine, float(coming))
    return chosen


@compiled
def _next_machine(arrays, queues):
    """The machine that decides next: links, then GPUs from the last stage (`forwards_first`: the first)."""
    soonest = queues.wake[1]
    machine = latest_up_to(queues.wake, soonest)
    if queues.forwards_first and machine < arrays.machines // LINKS_AND_GPUS:
        machine = first_up_to(queues.wake, soonest)
    return machine


@compiled
def serve(arrays, start, queues, work):
    """Fills an empty `start`, shape (rows, pipelines, microbatches); returns the number of operations placed.

    queues : as `queues_of` returns them.  work : most operations to place.
    """
    for machine in range(arrays.machines):
        _wake(arrays, start, queues, machine)
    placed = 0
    while placed < work and queues.wake[1] < np.inf:
        machine = _next_machine(arrays, queues)
        now = np.int64(wakes_at(queues.wake, machine))
        lane = _choose(arrays, start, queues, machine, now)
        if lane < 0:
            continue
        placed += 1
        row, k = lane // arrays.pipelines, lane % arrays.pipelines
        m = queues.following[lane]
        start[row, k, m] = now
        queues.following[lane] = m + 1
        queues.free[machine] = now + arrays.duration[row]
        if queues.taken[machine] >= 0:
            queues.taken[machine] += 1
        _wake(arrays, start, queues, machine)
        for i in range(2):
            for other in (arrays.after[row, i], arrays.opens[row, i]):
                if other >= 0 and arrays.machine[other, k] >= 0:
                    _wake(arrays, start, queues, arrays.machine[other, k])
    return placed
