"""Improves an order of operations move by move, compiled: tabu search on the disjunctive graph.

Source: the job-shop neighbourhoods of Nowicki and Smutnicki (1996) and Balas and Vazacopoulos (1998). On a
longest path, runs of operations of one machine are blocks; only a move of an operation to the edge of its
block can shorten the path. Each move is estimated from heads and tails around it, the best that is not tabu
is made, and all heads and tails are found anew.

Limits are counted along each GPU's order, so they hold exactly for any number of chunks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled
from engine.schedule.searching.board import UNPLACED
from engine.schedule.searching.shop import NONE, Ints, Plan

TABU_SLOTS = 1 << 14
MOST_MOVES = 64
FAR = 2**62


class Floor(NamedTuple):
    """Orders on all machines, and when everything runs in them. Nodes are (row, pipeline, microbatch)."""

    before: Ints  # (nodes, 2), nodes that must have ended, −1: none
    before_lag: Ints
    after: Ints  # (nodes, 2)
    after_lag: Ints
    length: Ints  # (nodes,), 0 where the node is no operation
    machine: Ints  # (nodes,), −1 where the node is no operation
    order: Ints  # (machines, longest), nodes in order, −1 after the last
    used: Ints  # (machines,)
    at: Ints  # (nodes,), place in its machine's order
    head: Ints  # (nodes,), earliest start
    tail: Ints  # (nodes,), longest way from its end to the end of all
    topological: Ints  # (operations,)
    degree: Ints  # (nodes,)
    path: Ints  # (operations,), a longest path, last node first
    best: Ints  # (nodes,), heads of the best orders so far
    best_order: Ints  # as `order`
    tabu: Ints  # (TABU_SLOTS,), until which step a pair of nodes must not be turned
    moves: (
        Ints  # (MOST_MOVES, 3), node, neighbour it goes to, whether after it; then its estimate in `values`
    )
    values: Ints  # (MOST_MOVES,)
    random: NDArray[np.uint64]  # (1,)
    step: Ints  # (1,)


def floor_of(plan: Plan, seed: int) -> Floor:
    """A floor without orders."""
    rows, n, m = len(plan.duration), plan.pipelines, plan.microbatches
    nodes = rows * n * m
    exists = np.repeat((plan.machine >= 0).ravel(), m)
    offset = np.arange(n * m)

    def spread(of_row: Ints) -> Ints:
        spread = np.where(
            of_row[:, None, :] == NONE, NONE, of_row[:, None, :] * (n * m) + offset[None, :, None]
        )
        return np.ascontiguousarray(spread.reshape(nodes, -1))

    def every(of_row: Ints) -> Ints:
        return np.ascontiguousarray(np.repeat(of_row, n * m, axis=0))

    operations = int(exists.sum())
    return Floor(
        before=spread(plan.before),
        before_lag=every(plan.before_lag),
        after=spread(plan.after),
        after_lag=every(plan.after_lag),
        length=np.where(exists, every(plan.duration), 0),
        machine=np.repeat(plan.machine.ravel(), m),
        order=np.full((plan.machines, plan.longest), NONE, dtype=np.int64),
        used=np.zeros(plan.machines, dtype=np.int64),
        at=np.full(nodes, NONE, dtype=np.int64),
        head=np.zeros(nodes, dtype=np.int64),
        tail=np.zeros(nodes, dtype=np.int64),
        topological=np.zeros(operations, dtype=np.int64),
        degree=np.zeros(nodes, dtype=np.int64),
        path=np.zeros(operations, dtype=np.int64),
        best=np.full(nodes, UNPLACED, dtype=np.int64),
        best_order=np.full((plan.machines, plan.longest), NONE, dtype=np.int64),
        tabu=np.zeros(TABU_SLOTS, dtype=np.int64),
        moves=np.zeros((MOST_MOVES, 3), dtype=np.int64),
        values=np.zeros(MOST_MOVES, dtype=np.int64),
        random=np.array([seed * 2 + 88172645463325253], dtype=np.uint64),
        step=np.zeros(1, dtype=np.int64),
    )


def take_orders(floor: Floor, start: Ints) -> None:
    """Sets the orders to those of `start`, shape (rows, pipelines, microbatches)."""
    # A W that takes no time comes before what starts with it.
    times = 2 * start.ravel() + (floor.length > 0)
    nodes = np.flatnonzero(floor.machine >= 0)
    nodes = nodes[np.lexsort((times[nodes], floor.machine[nodes]))]
    machine = floor.machine[nodes]
    first = np.searchsorted(machine, machine)
    floor.order[:] = NONE
    floor.at[nodes] = np.arange(len(nodes)) - first
    floor.order[machine, floor.at[nodes]] = nodes
    floor.used[:] = np.bincount(machine, minlength=len(floor.used))


@compiled
def _draw(floor, below):
    """A random number in [0, below): xorshift."""
    x = floor.random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    floor.random[0] = x
    return np.int64(x >> np.uint64(33)) % below


@compiled
def _left(floor, node):
    """The node before it on its machine, −1 where it is the first."""
    at = floor.at[node]
    return floor.order[floor.machine[node], at - 1] if at > 0 else -1


@compiled
def _right(floor, node):
    machine, at = floor.machine[node], floor.at[node] + 1
    return floor.order[machine, at] if at < floor.used[machine] else -1


@compiled
def _inputs(floor, node):
    """When all that `node` needs from other machines is there."""
    time = 0
    for i in range(2):
        other = floor.before[node, i]
        if other >= 0:
            time = max(time, floor.head[other] + floor.length[other] + floor.before_lag[node, i])
    return time


@compiled
def _outputs(floor, node):
    """Longest way from its end to the end of all, over other machines."""
    way = 0
    for i in range(2):
        other = floor.after[node, i]
        if other >= 0:
            way = max(way, floor.after_lag[node, i] + floor.length[other] + floor.tail[other])
    return way


@compiled
def _sort(floor):
    """Puts the nodes into `topological`; returns how many: where some are missing, they wait in a circle."""
    count = 0
    for node in range(len(floor.machine)):
        if floor.machine[node] < 0:
            continue
        degree = 1 if floor.at[node] > 0 else 0
        for i in range(2):
            if floor.before[node, i] >= 0:
                degree += 1
        floor.degree[node] = degree
        if degree == 0:
            floor.topological[count] = node
            count += 1
    i = 0
    while i < count:
        node = floor.topological[i]
        i += 1
        right = _right(floor, node)
        for j in range(3):
            other = right if j == 2 else floor.after[node, j]
            if other >= 0:
                floor.degree[other] -= 1
                if floor.degree[other] == 0:
                    floor.topological[count] = other
                    count += 1
    return count


@compiled
def _time(floor):
    """Finds heads and tails; returns the makespan, −1 where nodes wait in a circle."""
    total = len(floor.topological)
    if _sort(floor) < total:
        return -1
    makespan = 0
    for i in range(total):
        node = floor.topological[i]
        left = _left(floor, node)
        time = _inputs(floor, node)
        if left >= 0:
            time = max(time, floor.head[left] + floor.length[left])
        floor.head[node] = time
        makespan = max(makespan, time + floor.length[node])
    for i in range(total - 1, -1, -1):
        node = floor.topological[i]
        right = _right(floor, node)
        way = _outputs(floor, node)
        if right >= 0:
            way = max(way, floor.length[right] + floor.tail[right])
        floor.tail[node] = way
    return makespan


@compiled
def _find_path(floor, makespan):
    """Fills `path` with a random longest path; returns its length."""
    seen, node = 0, -1
    for i in range(len(floor.topological)):
        other = floor.topological[i]
        if floor.head[other] + floor.length[other] == makespan:
            seen += 1
            if _draw(floor, seen) == 0:
                node = other
    count = 0
    while node >= 0:
        floor.path[count] = node
        count += 1
        seen, chosen = 0, -1
        left = _left(floor, node)
        if left >= 0 and floor.head[left] + floor.length[left] == floor.head[node]:
            seen, chosen = 1, left
        for i in range(2):
            other = floor.before[node, i]
            if (
                other >= 0
                and floor.head[other] + floor.length[other] + floor.before_lag[node, i] == floor.head[node]
            ):
                seen += 1
                if _draw(floor, seen) == 0:
                    chosen = other
        node = chosen
    return count


@compiled
def _fits(plan, floor, machine, first, last, turn_left):
    """Whether limits hold once the order on a GPU from `first` to `last` is turned by one place."""
    per_row = plan.pipelines * plan.microbatches
    stage = plan.stage[floor.order[machine, 0] // per_row]
    if stage < 0:
        return True
    held, full = 0, 0
    for i in range(last + 1):
        j = i
        if first <= i:
            j = (i + 1 if i < last else first) if turn_left else (i - 1 if i > first else last)
        row = floor.order[machine, j] // per_row
        held += plan.takes[row]
        full += plan.full_takes[row]
        if held > plan.room[stage] or full > plan.full_room[stage]:
            return False
        held -= plan.frees[row]
        full -= plan.full_frees[row]
    return True


@compiled
def _may_pass(plan, floor, node, machine, first, last):
    """Whether `node` may pass all from `first` to `last`: none of its own row and pipeline among them."""
    lane = node // plan.microbatches
    for i in range(first, last + 1):  # noqa: SIM110 (a generator does not compile)
        if floor.order[machine, i] // plan.microbatches == lane:
            return False
    return True


@compiled
def _estimate(floor, machine, first, last, turn_left):
    """Longest path through the nodes from `first` to `last` once they are turned by one place.

    Heads go to `degree`, which is free meanwhile.
    """
    order = floor.order[machine]
    time = 0
    if first > 0:
        time = floor.head[order[first - 1]] + floor.length[order[first - 1]]
    count = last - first + 1
    for i in range(count):
        j = (i + 1) % count if turn_left else (i - 1) % count
        node = order[first + j]
        time = max(time, _inputs(floor, node))
        floor.degree[node] = time
        time += floor.length[node]
    way, longest = 0, 0
    if last + 1 < floor.used[machine]:
        way = floor.length[order[last + 1]] + floor.tail[order[last + 1]]
    for i in range(count - 1, -1, -1):
        j = (i + 1) % count if turn_left else (i - 1) % count
        node = order[first + j]
        way = max(way, _outputs(floor, node))
        way += floor.length[node]
        longest = max(longest, floor.degree[node] + way)
    return longest


@compiled
def _offer_move(plan, floor, count, node, goal, after):
    """Adds the move of `node` next to `goal` on its machine, where it is allowed; returns the new count."""
    machine = floor.machine[node]
    if after:
        first, last = floor.at[node], floor.at[goal]
        if not _may_pass(plan, floor, node, machine, first + 1, last):
            return count
        reach = floor.length[goal] + floor.tail[goal]
        for i in range(2):
            other = floor.after[node, i]
            if other >= 0 and floor.length[other] + floor.tail[other] > reach:
                return count
    else:
        first, last = floor.at[goal], floor.at[node]
        if not _may_pass(plan, floor, node, machine, first, last - 1):
            return count
        reach = floor.head[goal] + floor.length[goal]
        for i in range(2):
            other = floor.before[node, i]
            if other >= 0 and floor.head[other] + floor.length[other] > reach:
                return count
    if count == MOST_MOVES or not _fits(plan, floor, machine, first, last, after):
        return count
    floor.moves[count, 0], floor.moves[count, 1], floor.moves[count, 2] = node, goal, after
    floor.values[count] = _estimate(floor, machine, first, last, after)
    return count + 1


@compiled
def _block_moves(plan, floor, count, newest, oldest):
    """Moves of the block path[newest … oldest] (the path runs backward in time)."""
    first, last = floor.path[oldest], floor.path[newest]
    size = oldest - newest + 1
    # Of a long block only some inner nodes, the outer ones always.
    some = max(1, size // 8)
    for i in range(newest, oldest + 1):
        node = floor.path[i]
        inner = i > newest + 1 and i < oldest - 1
        if inner and _draw(floor, some) > 0:
            continue
        if node != last:
            count = _offer_move(plan, floor, count, node, last, True)
        if node != first and size > 2:
            count = _offer_move(plan, floor, count, node, first, False)
    return count


@compiled
def _find_moves(plan, floor, makespan):
    length = _find_path(floor, makespan)
    count, i = 0, 0
    while i < length:
        j = i
        while j + 1 < length and _left(floor, floor.path[j]) == floor.path[j + 1]:
            j += 1
        if j > i:
            count = _block_moves(plan, floor, count, i, j)
        i = j + 1
    return count


@compiled
def _slot(before, after):
    return (before * 1000003 + after * 7919) % TABU_SLOTS


@compiled
def _is_tabu(floor, i):
    node, goal, after = floor.moves[i, 0], floor.moves[i, 1], floor.moves[i, 2]
    slot = _slot(goal, node) if after else _slot(node, goal)
    return floor.tabu[slot] > floor.step[0]


@compiled
def _make(floor, node, goal, after):
    """Moves `node` next to `goal`."""
    machine = floor.machine[node]
    order = floor.order[machine]
    at, to = floor.at[node], floor.at[goal]
    way = 1 if after else -1
    while at != to:
        order[at] = order[at + way]
        floor.at[order[at]] = at
        at += way
    order[to] = node
    floor.at[node] = to


@compiled
def _choose(floor, count, best):
    """The move with the least estimate that is not tabu or promises a new best; a random one if all are."""
    chosen, least, seen = -1, FAR, 0
    for i in range(count):
        if _is_tabu(floor, i) and floor.values[i] >= best:
            continue
        if floor.values[i] < least:
            chosen, least, seen = i, floor.values[i], 1
        elif floor.values[i] == least:
            seen += 1
            if _draw(floor, seen) == 0:
                chosen = i
    return chosen if chosen >= 0 else _draw(floor, count)


@compiled
def _forbid(floor, node, goal, after):
    """Forbids to turn them back for a while."""
    slot = _slot(node, goal) if after else _slot(goal, node)
    floor.tabu[slot] = floor.step[0] + 8 + _draw(floor, 12)


@compiled
def _remember(floor):
    for node in range(len(floor.head)):
        floor.best[node] = floor.head[node]
    for machine in range(len(floor.used)):
        for i in range(floor.used[machine]):
            floor.best_order[machine, i] = floor.order[machine, i]


@compiled
def restore(floor):
    """Goes back to the best orders."""
    for machine in range(len(floor.used)):
        for i in range(floor.used[machine]):
            floor.order[machine, i] = floor.best_order[machine, i]
            floor.at[floor.order[machine, i]] = i


@compiled
def improve(plan, floor, best, enough, steps):
    """Makes up to `steps` moves; stops at `enough` or below. Returns the best makespan.

    best : what counts as the best so far; `floor.best` holds the heads of anything better.
    """
    makespan = _time(floor)
    if makespan < 0:
        return best
    for _ in range(steps):
        if makespan < best:
            best = makespan
            _remember(floor)
        if best <= enough:
            return best
        count = _find_moves(plan, floor, makespan)
        if count == 0:
            return best
        i = _choose(floor, count, best)
        node, goal, after = floor.moves[i, 0], floor.moves[i, 1], floor.moves[i, 2]
        back = floor.order[floor.machine[node], floor.at[node] + (1 if after else -1)]
        floor.step[0] += 1
        _forbid(floor, node, goal, after)
        _make(floor, node, goal, after)
        makespan = _time(floor)
        if makespan < 0:
            _make(floor, node, back, not after)
            makespan = _time(floor)
    return best
