"""The shortest open path through all groups (DT-FM §3.3, Eq. 4: open-loop travelling salesman), compiled.

Up to EXACT groups the answer can be exact, up to DIRECT groups by Held–Karp alone. Beyond, a path by 2-opt
and or-opt is first compared with Held and Karp's 1-tree bound. If they meet, the path is optimal. If the
bound is above the caller's limit, the rest need not be computed. Only otherwise branch and bound runs, and
Held–Karp if that takes too long. Past EXACT groups the path is that of 2-opt and or-opt.

Held, Karp: "A dynamic programming approach to sequencing problems" (1962); "The traveling-salesman problem
and minimum spanning trees" (1970).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.kernel_moves import ROUNDING, improve, length
from engine.schedule.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EXACT = 16
DIRECT = 10
MOST_NODES = 20_000  # of branch and bound, which then took about as long as Held–Karp
FEW_NODES = 300  # where the path need not be proven
ASCENTS = 60  # steps of the 1-tree bound


class PathRoom(NamedTuple):
    """Working memory for P groups."""

    table: Floats  # (2^P, P) to EXACT groups: shortest path through a set that ends in one of it
    key: Floats  # (P,)
    parent: Ints  # (P,)
    seen: Ints  # (P,)
    degree: Ints  # (P,)
    price: Floats  # (P,)
    trial: Ints  # (P,)
    weight: Floats  # (P, P): costs with prices at both ends
    best_price: Floats  # (P,): prices that gave the best bound
    so_far: Floats  # (P,): priced length of the path to each depth
    candidates: Ints  # (P, P): by depth, what may come next, nearest first
    next: Ints  # (P,): by depth, how many candidates were tried


def path_room(groups: int) -> PathRoom:
    """Working memory for `groups` groups."""
    rows = 1 << groups if groups <= EXACT else 1
    return PathRoom(
        table=np.empty((rows, groups)),
        key=np.empty(groups),
        parent=np.empty(groups, dtype=np.int64),
        seen=np.empty(groups, dtype=np.int64),
        degree=np.empty(groups, dtype=np.int64),
        price=np.empty(groups),
        trial=np.empty(groups, dtype=np.int64),
        weight=np.empty((groups, groups)),
        best_price=np.empty(groups),
        so_far=np.empty(groups),
        candidates=np.empty((groups, groups), dtype=np.int64),
        next=np.empty(groups, dtype=np.int64),
    )


@compiled
def shortest(between: Any, order: Any, limit: float, exact: bool, room: Any) -> float:
    """Length of the shortest open path, or ``inf`` where it is known to be longer than `limit`.

    `order` is a path to begin with, and the path found afterwards. (To DIRECT groups it is left as it is.)
    Where not `exact` the path may be longer than the shortest if that is hard to prove.
    """
    groups = between.shape[0]
    if groups <= 2:
        return length(between, order)
    if groups <= DIRECT:
        return held_karp(between, room)
    if spanning_tree(between, room, False) > limit * (1 + ROUNDING):
        return np.inf
    improve(between, order, room)
    path_length = length(between, order)
    if groups > EXACT:
        return path_length
    bound = _one_tree_bound(between, min(path_length, limit), room)
    if bound > limit * (1 + ROUNDING):
        return np.inf
    if path_length <= bound * (1 + ROUNDING):
        return path_length
    return _branch_and_bound(between, order, min(path_length, limit), exact, room)


@compiled
def held_karp(between: Any, room: Any) -> float:
    """Length of the shortest open path through all groups, by dynamic programming over sets of groups."""
    groups = between.shape[0]
    table = room.table
    full = (1 << groups) - 1
    for chosen in range(1, full + 1):
        for last in range(groups):
            if not chosen >> last & 1:
                continue
            before = chosen ^ (1 << last)
            best = np.inf if before else 0.0
            for other in range(groups):
                if before >> other & 1:
                    best = min(best, table[before, other] + between[other, last])
            table[chosen, last] = best
    best = np.inf
    for last in range(groups):
        best = min(best, table[full, last])
    return best


@compiled
def trace(between: Any, order: Any, room: Any) -> None:
    """Writes the shortest path of the last `held_karp` into `order`."""
    groups = between.shape[0]
    chosen = (1 << groups) - 1
    last = 0
    for group in range(groups):
        if room.table[chosen, group] < room.table[chosen, last]:
            last = group
    for index in range(groups):
        order[index] = last
        chosen ^= 1 << last
        if not chosen:
            return
        best = -1
        for other in range(groups):
            if chosen >> other & 1 and (
                best < 0
                or room.table[chosen, other] + between[other, last]
                < room.table[chosen, best] + between[best, last]
            ):
                best = other
        last = best


@compiled
def spanning_tree(between: Any, room: Any, priced: bool) -> float:
    """Weight of the least spanning tree (Prim), with node prices if `priced`; sets ``room.degree``."""
    groups = between.shape[0]
    for group in range(groups):
        room.key[group] = np.inf
        room.seen[group] = 0
        room.degree[group] = 0
        room.parent[group] = -1
    total = 0.0
    at = 0
    for _ in range(groups):
        room.seen[at] = 1
        if room.parent[at] >= 0:
            total += room.key[at]
            room.degree[at] += 1
            room.degree[room.parent[at]] += 1
        nearest = -1
        for group in range(groups):
            if room.seen[group]:
                continue
            weight = between[at, group]
            if priced:
                weight += room.price[at] + room.price[group]
            if weight < room.key[group]:
                room.key[group] = weight
                room.parent[group] = at
            if nearest < 0 or room.key[group] < room.key[nearest]:
                nearest = group
        at = nearest
    return total


@compiled
def _one_tree_bound(between: Any, target: float, room: Any) -> float:
    """A lower bound on the open path: 1-trees with node prices, a free dummy node joining both ends.

    Polyak's step raises the price of a node with more than two edges and lowers that of a node with fewer,
    towards `target`.
    """
    groups = between.shape[0]
    for group in range(groups):
        room.price[group] = 0.0
    best = 0.0
    for _ in range(ASCENTS):
        bound = spanning_tree(between, room, True)
        first, second = _two_cheapest(room.price)
        bound += room.price[first] + room.price[second]
        room.degree[first] += 1
        room.degree[second] += 1
        squares = 0
        for group in range(groups):
            bound -= 2 * room.price[group]
            squares += (room.degree[group] - 2) ** 2
        if bound > best or best == 0.0:
            best = max(best, bound)
            for group in range(groups):
                room.best_price[group] = room.price[group]
        if squares == 0 or best > target * (1 - ROUNDING):
            break
        step = (target * (1 + 1e-3) - bound) / squares
        for group in range(groups):
            room.price[group] += step * (room.degree[group] - 2)
    return best


@compiled
def _two_cheapest(price: Any) -> tuple[int, int]:
    first, second = 0, 1
    if price[1] < price[0]:
        first, second = 1, 0
    for group in range(2, price.shape[0]):
        if price[group] < price[first]:
            first, second = group, first
        elif price[group] < price[second]:
            second = group
    return first, second


@compiled
def _branch_and_bound(between: Any, order: Any, limit: float, exact: bool, room: Any) -> float:
    """Length of the shortest open path, ``inf`` if it is above `limit`; writes it into `order`.

    Depth first, nearest group first. A partial path cannot end shorter than its priced length and the least
    priced spanning tree of the other groups (with the best prices of `_one_tree_bound`). If that takes too
    long, Held–Karp answers.
    """
    groups = between.shape[0]
    twice = 0.0
    for i in range(groups):
        twice += 2 * room.best_price[i]
        room.seen[i] = 0
        for j in range(groups):
            room.weight[i, j] = between[i, j] + room.best_price[i] + room.best_price[j]
    best = length(between, order)
    upper = min(best, limit * (1 + 2 * ROUNDING))
    nodes = 0
    depth = 0
    _rank(room, -1, 0)
    while depth >= 0:
        if room.next[depth] == groups - depth:
            depth -= 1
            if depth >= 0:
                room.seen[room.trial[depth]] = 0
            continue
        group = room.candidates[depth, room.next[depth]]
        room.next[depth] += 1
        nodes += 1
        if nodes > FEW_NODES and not exact:
            return best
        if nodes > MOST_NODES:
            best = held_karp(between, room)
            trace(between, order, room)
            return best
        room.trial[depth] = group
        room.so_far[depth] = (
            room.so_far[depth - 1] + room.weight[room.trial[depth - 1], group] if depth else 0.0
        )
        first = room.trial[0]
        if depth == groups - 1:
            path_length = length(between, room.trial)
            if path_length < upper:
                upper = best = path_length
                for index in range(groups):
                    order[index] = room.trial[index]
            continue
        room.seen[group] = 1
        rest = _rest(room, group)
        if room.so_far[depth] + rest + room.best_price[first] - twice >= upper * (1 - ROUNDING):
            room.seen[group] = 0
            continue
        depth += 1
        _rank(room, group, depth)
    return best


@compiled
def _rank(room: Any, at: int, depth: int) -> None:
    """Lists the groups not on the path, nearest to `at` first."""
    count = 0
    for group in range(room.seen.shape[0]):
        if room.seen[group]:
            continue
        index = count
        while (
            at >= 0
            and index > 0
            and room.weight[at, group] < room.weight[at, room.candidates[depth, index - 1]]
        ):
            room.candidates[depth, index] = room.candidates[depth, index - 1]
            index -= 1
        room.candidates[depth, index] = group
        count += 1
    room.next[depth] = 0


@compiled
def _rest(room: Any, at: int) -> float:
    """The least priced spanning tree of `at` and all groups off the path, and the least price of an end."""
    groups = room.seen.shape[0]
    count = 0
    for group in range(groups):
        room.key[group] = np.inf
        room.parent[group] = room.seen[group]  # here: 1 for what is in the tree or on the path
        count += 1 - room.seen[group]
    total = 0.0
    end = np.inf
    for _ in range(count):
        nearest = -1
        for group in range(groups):
            if room.parent[group]:
                continue
            room.key[group] = min(room.key[group], room.weight[at, group])
            if nearest < 0 or room.key[group] < room.key[nearest]:
                nearest = group
        total += room.key[nearest]
        end = min(end, room.best_price[nearest])
        room.parent[nearest] = 1
        at = nearest
    return total + end
