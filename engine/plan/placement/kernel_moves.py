"""Paths through groups improved by local moves: 2-opt, or-opt, and exchanges of parts, compiled."""

from typing import Any

import numpy as np

from engine.plan.placement.kernel_dice import draw
from engine.schedule.compiled import compiled

STARTS = 6  # groups from which the nearest-neighbour path is begun
# Relative: sums of up to a thousand costs in different orders differ by less.
ROUNDING = 1e-12


@compiled
def length(between: Any, order: Any) -> float:
    """Length of the open path `order`."""
    total = 0.0
    for i in range(order.shape[0] - 1):
        total += between[order[i], order[i + 1]]
    return total


@compiled
def nearest_neighbour(between: Any, start: int, order: Any, room: Any) -> None:
    """Writes the path from `start` that always goes to the nearest group not yet visited."""
    groups = between.shape[0]
    for group in range(groups):
        room.seen[group] = 0
    at = start
    for index in range(groups):
        order[index] = at
        room.seen[at] = 1
        nearest = -1
        for group in range(groups):
            if not room.seen[group] and (nearest < 0 or between[at, group] < between[at, nearest]):
                nearest = group
        at = nearest


@compiled
def fresh(between: Any, order: Any, room: Any) -> None:
    """Writes a good path into `order`: the best of some nearest-neighbour paths, improved."""
    groups = between.shape[0]
    best = np.inf
    for start in range(min(groups, STARTS)):
        nearest_neighbour(between, start * groups // min(groups, STARTS), room.trial, room)
        improve(between, room.trial, room)
        trial_length = length(between, room.trial)
        if trial_length < best:
            best = trial_length
            for index in range(groups):
                order[index] = room.trial[index]


@compiled
def improve(between: Any, order: Any, room: Any) -> None:
    """2-opt and or-opt until neither shortens the path."""
    while _two_opt(between, order) or _or_opt(between, order):
        pass


@compiled
def polish(between: Any, order: Any, dice: Any, exchanges: int, room: Any) -> None:
    """Iterated local search: `exchanges` times an exchange of two parts in the middle, then `improve`."""
    groups = order.shape[0]
    best = length(between, order)
    for _ in range(exchanges if groups >= 4 else 0):
        first = 1 + draw(dice, groups - 3)
        second = first + 1 + draw(dice, groups - first - 2)
        third = second + 1 + draw(dice, groups - second - 1)
        for index in range(groups):
            source = index
            if first <= index < first + third - second:
                source = index - first + second
            elif first + third - second <= index < third:
                source = index - (third - second)
            room.trial[index] = order[source]
        improve(between, room.trial, room)
        trial_length = length(between, room.trial)
        if trial_length < best * (1 - ROUNDING):
            best = trial_length
            for index in range(groups):
                order[index] = room.trial[index]


@compiled
def _edge(between: Any, order: Any, left: int, right: int) -> float:
    """Cost between two indexes of the path; free past either end."""
    if left < 0 or right >= order.shape[0]:
        return 0.0
    return between[order[left], order[right]]


@compiled
def _two_opt(between: Any, order: Any) -> bool:
    """One pass that reverses every stretch whose reversal shortens the path."""
    groups = order.shape[0]
    improved = False
    for first in range(groups - 1):
        for last in range(first + 1, groups):
            old = _edge(between, order, first - 1, first) + _edge(between, order, last, last + 1)
            new = 0.0
            if first > 0:
                new += between[order[first - 1], order[last]]
            if last < groups - 1:
                new += between[order[first], order[last + 1]]
            if new < old - ROUNDING * (old + new):
                _reverse(order, first, last)
                improved = True
    return improved


@compiled
def _reverse(order: Any, first: int, last: int) -> None:
    while first < last:
        order[first], order[last] = order[last], order[first]
        first += 1
        last -= 1


@compiled
def _or_opt(between: Any, order: Any) -> bool:
    """One pass that moves every single group whose move shortens the path."""
    groups = order.shape[0]
    improved = False
    for index in range(groups):
        joined = 0.0
        if 0 < index < groups - 1:
            joined = between[order[index - 1], order[index + 1]]
        gain = _edge(between, order, index - 1, index) + _edge(between, order, index, index + 1) - joined
        group = order[index]
        for gap in range(groups + 1):  # between indexes gap - 1 and gap
            if gap == index or gap == index + 1:
                continue
            cost = 0.0
            if gap > 0:
                cost += between[order[gap - 1], group]
            if gap < groups:
                cost += between[group, order[gap]]
            if 0 < gap < groups:
                cost -= between[order[gap - 1], order[gap]]
            if cost < gain - ROUNDING * (abs(cost) + abs(gain)):
                _move(order, index, gap)
                improved = True
                break
    return improved


@compiled
def _move(order: Any, index: int, gap: int) -> None:
    """Moves the group at `index` into the gap before index `gap`."""
    group = order[index]
    if gap > index:
        for i in range(index, gap - 1):
            order[i] = order[i + 1]
        order[gap - 1] = group
    else:
        for i in range(index, gap, -1):
            order[i] = order[i - 1]
        order[gap] = group
