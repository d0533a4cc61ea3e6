"""Moves that make a partition cheaper, compiled: the paper's circular swaps, and annealing by single swaps.

`circle` is DT-FM's local search (§3.4). Only an end of a group's fastest connection moves: its leaving does
not slow the group down, and the connection is likely to be used between stages instead. The paper's gain
function estimates such a move. Moves are chained around a circle of groups as in circular Kernighan–Lin (Kang
and Moon 2000). `anneal` uses the true cost. It accepts a swap that costs at most a little more, less and less
of that (simulated annealing), and draws swaps from three kinds.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.kernel_cost import (
    TOTAL,
    device_cost,
    evaluate,
    exchange,
    finish_swap,
    swap,
    unswap,
)
from engine.plan.placement.kernel_dice import draw, exponential
from engine.plan.placement.kernel_moves import ROUNDING
from engine.schedule.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST_HISTORY = 10_000
# What the shares of `anneal`'s swaps are, in 1/16: fast connections, slowest device; the rest are of any two.
FAST, SLOWEST = 5, 5
# Swaps drawn for each that is evaluated, at most: the others were ruled out by bounds.
SCREENED = 4
# A cost counts as lower only if it is so by more than rounding.
LESS = 1 - 1e-12


class Book(NamedTuple):
    """The results of a search so far."""

    evaluations: Ints  # (1,)
    cost: Floats  # (1,): the least
    members: Ints  # (P, D): where
    order: Ints  # (P,)
    entries: Ints  # (1,): length of the history
    at: Ints  # (LONGEST_HISTORY,): evaluations after which the cost fell
    fell_to: Floats


class CircleRoom(NamedTuple):
    """Working memory for `circle`."""

    locked: Ints  # (N,): devices moved already
    visited: Ints  # (P,): groups in the circle
    devices: Ints  # (P,): device i leaves the group of device i for that of device i + 1
    ends: Ints  # (P, 2): ends of each group's fastest connection, -1 for none
    fastest: Floats  # (P,): its cost
    backup: Ints  # (P, D)


def new_book(groups: int, size: int) -> Book:
    """An empty book for partitions into `groups` groups of `size`."""
    return Book(
        evaluations=np.zeros(1, dtype=np.int64),
        cost=np.full(1, np.inf),
        members=np.zeros((groups, size), dtype=np.int64),
        order=np.zeros(groups, dtype=np.int64),
        entries=np.zeros(1, dtype=np.int64),
        at=np.zeros(LONGEST_HISTORY, dtype=np.int64),
        fell_to=np.zeros(LONGEST_HISTORY),
    )


def circle_room(groups: int, size: int) -> CircleRoom:
    """Working memory for `circle` on `groups` groups of `size`."""
    return CircleRoom(
        locked=np.zeros(groups * size, dtype=np.int64),
        visited=np.zeros(groups, dtype=np.int64),
        devices=np.zeros(groups, dtype=np.int64),
        ends=np.zeros((groups, 2), dtype=np.int64),
        fastest=np.zeros(groups),
        backup=np.zeros((groups, size), dtype=np.int64),
    )


@compiled
def score(costs: Any, state: Any, exact: bool, room: Any, book: Any) -> float:
    """Evaluates a partition (see `evaluate`) and records it."""
    evaluate(costs, state, exact, room)
    note(state, book)
    return state.cost[TOTAL]


@compiled
def note(state: Any, book: Any) -> None:
    """Counts an evaluation, and stores the partition if it is the best so far."""
    book.evaluations[0] += 1
    if not state.cost[TOTAL] < book.cost[0] * LESS:
        return
    book.cost[0] = state.cost[TOTAL]
    groups, size = state.members.shape
    for group in range(groups):
        book.order[group] = state.order[group]
        for slot in range(size):
            book.members[group, slot] = state.members[group, slot]
    entry = min(book.entries[0], book.at.shape[0] - 1)
    book.at[entry] = book.evaluations[0]
    book.fell_to[entry] = state.cost[TOTAL]
    book.entries[0] = entry + 1


@compiled
def anneal(
    costs: Any, state: Any, room: Any, book: Any, dice: Any, evaluations: int, hot: float, cold: float
) -> float:
    """At most `evaluations` swaps from an evaluated `state`; returns the cost at the end.

    A swap that bounds rule out costs no evaluation, but at most SCREENED times as many are drawn.

    hot, cold : mean cost that a swap may add, in seconds, at the first and the last swap.
    """
    groups = state.members.shape[0]
    if groups < 2:
        return state.cost[TOTAL]
    ratio = cold / hot if hot > 0 else 1.0
    drawn = 0
    before = book.evaluations[0]
    while book.evaluations[0] - before < evaluations and drawn < SCREENED * evaluations:
        progress = max((book.evaluations[0] - before) / evaluations, drawn / (SCREENED * evaluations))
        allowance = hot * ratio**progress
        drawn += 1
        one, other = _pair(costs, state, dice)
        limit = (state.cost[TOTAL] + allowance * exponential(dice)) * (1 + ROUNDING)
        if not swap(costs, state, one, other, limit, room):
            unswap(state, one, other, room)
            continue
        if finish_swap(costs, state, one, other, limit, room) <= limit:
            note(state, book)
        else:
            book.evaluations[0] += 1
            unswap(state, one, other, room)
    return state.cost[TOTAL]


@compiled
def _pair(costs: Any, state: Any, dice: Any) -> tuple[int, int]:
    """Two devices of different groups."""
    kind = draw(dice, 16)
    groups, size = state.members.shape
    if kind < FAST:
        a = draw(dice, groups)
        b = (a + 1 + draw(dice, groups - 1)) % groups
        return _fast_end(costs, state, a, dice), _fast_end(costs, state, b, dice)
    one = _slowest_device(costs, state) if kind < FAST + SLOWEST else draw(dice, groups * size)
    b = (state.group[one] + 1 + draw(dice, groups - 1)) % groups
    return one, state.members[b, draw(dice, size)]


@compiled
def _fast_end(costs: Any, state: Any, group: int, dice: Any) -> int:
    """The end of a fast connection inside `group`: a random device, or the device nearest to it."""
    size = state.members.shape[1]
    device = state.members[group, draw(dice, size)]
    if draw(dice, 2):
        return device
    nearest = device
    for slot in range(size):
        other = state.members[group, slot]
        if other != device and (
            nearest == device or costs.pipeline[device, other] < costs.pipeline[device, nearest]
        ):
            nearest = other
    return nearest


@compiled
def _slowest_device(costs: Any, state: Any) -> int:
    """The device whose exchange bounds the data-parallel cost."""
    slowest = 0
    for group in range(state.inside.shape[0]):
        if state.inside[group] > state.inside[slowest]:
            slowest = group
    chosen = state.members[slowest, 0]
    most = -1.0
    for slot in range(state.members.shape[1]):
        device = state.members[slowest, slot]
        total = device_cost(costs, state, device)
        if total > most:
            most = total
            chosen = device
    return chosen


@compiled
def circles(costs: Any, state: Any, room: Any, book: Any, circle: Any, most: int) -> float:
    """The paper's local search from an evaluated `state`: at most `most` circles, then back to the best.

    Each circle is one evaluation. A device moves at most once.
    """
    groups, size = state.members.shape
    for device in range(groups * size):
        circle.locked[device] = 0
    best = state.cost[TOTAL]
    _save_members(state, circle)
    moved = False
    for _ in range(most):
        if not _circle(costs, state, circle):
            break
        score(costs, state, False, room, book)
        moved = state.cost[TOTAL] > best
        if state.cost[TOTAL] <= best:
            best = state.cost[TOTAL]
            _save_members(state, circle)
    if moved:
        for group in range(groups):
            for slot in range(size):
                state.members[group, slot] = circle.backup[group, slot]
        evaluate(costs, state, False, room)
    return best


@compiled
def _save_members(state: Any, circle: Any) -> None:
    for group in range(state.members.shape[0]):
        for slot in range(state.members.shape[1]):
            circle.backup[group, slot] = state.members[group, slot]


@compiled
def _circle(costs: Any, state: Any, circle: Any) -> bool:
    """Moves devices around the circle of groups that gains most; False if none gains."""
    groups = state.members.shape[0]
    for group in range(groups):
        _find_fastest(costs, state, circle, group)
        circle.visited[group] = 0
    start, gained, best, best_length, count = -1, 0.0, 0.0, 0, 0
    at = -1
    while count < groups:
        device, target, gain = _best_move(costs, state, circle, at, start)
        if device < 0:
            break
        if count == 0:
            start = state.group[device]
            circle.visited[start] = 1
        circle.devices[count] = device
        count += 1
        if count > 1:
            closing = gained + _gain(costs, state, circle, device, start)
            if closing > best:
                best = closing
                best_length = count
        if target < 0:
            break
        gained += gain
        circle.visited[target] = 1
        at = target
    if best_length == 0:
        return False
    _rotate(state, circle, best_length)
    return True


@compiled
def _find_fastest(costs: Any, state: Any, circle: Any, group: int) -> None:
    """The fastest connection between two devices of `group` that have not moved yet."""
    size = state.members.shape[1]
    circle.fastest[group] = np.inf
    circle.ends[group, 0] = circle.ends[group, 1] = -1
    for i in range(size):
        one = state.members[group, i]
        if circle.locked[one]:
            continue
        for j in range(i + 1, size):
            other = state.members[group, j]
            if not circle.locked[other] and costs.pipeline[one, other] < circle.fastest[group]:
                circle.fastest[group] = costs.pipeline[one, other]
                circle.ends[group, 0], circle.ends[group, 1] = one, other


@compiled
def _gain(costs: Any, state: Any, circle: Any, device: int, target: int) -> float:
    """The paper's gain of moving an end of its group's fastest connection into group `target`."""
    size = state.members.shape[1]
    total = 0.0
    for slot in range(size):
        total += costs.pipeline[device, state.members[target, slot]]
    return total / size - circle.fastest[state.group[device]]


@compiled
def _best_move(costs: Any, state: Any, circle: Any, at: int, start: int) -> tuple[int, int, float]:
    """The device that leaves group `at` (negative: any group), the unvisited group it goes to, and the gain.

    If every group is visited, the target is -1 and the device is the one that gains most by closing the
    circle.
    """
    groups = state.members.shape[0]
    best_device, best_target, best = -1, -1, -np.inf
    first = 0 if at < 0 else at
    last = groups if at < 0 else at + 1
    for group in range(first, last):
        for end in range(2):
            device = circle.ends[group, end]
            if device < 0:
                continue
            for target in range(groups):
                if target == group or circle.visited[target]:
                    continue
                gain = _gain(costs, state, circle, device, target)
                if gain > best:
                    best_device, best_target, best = device, target, gain
    if best_device < 0 and at >= 0 and circle.ends[at, 0] >= 0:
        left = _gain(costs, state, circle, circle.ends[at, 0], start)
        right = _gain(costs, state, circle, circle.ends[at, 1], start)
        best_device = circle.ends[at, 0] if left >= right else circle.ends[at, 1]
        best = max(left, right)
    return best_device, best_target, best


@compiled
def _rotate(state: Any, circle: Any, length: int) -> None:
    """Device i replaces device i + 1, the last one the first; all are locked."""
    for i in range(length):
        circle.locked[circle.devices[i]] = 1
    for i in range(length - 1):
        exchange(state, circle.devices[i], circle.devices[i + 1])
