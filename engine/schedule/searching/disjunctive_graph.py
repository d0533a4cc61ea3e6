"""Orders on all machines and when everything runs in them, compiled: heads, tails, and what a move changes.

Nodes stand in a topological order. A move turns a few neighbours on one machine; the order is repaired in the
window between them (as Pearce and Kelly, 2006, do for an arc), and only nodes whose head or tail changes are
visited again.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled
from engine.schedule.searching.problem import NONE, Ints, Plan
from engine.schedule.searching.timelines import UNPLACED

TABU_SLOTS = 1 << 14
MOST_MOVES = 64

Bytes = NDArray[np.uint8]


class DisjunctiveGraph(NamedTuple):
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
    topological: Ints  # (operations,), causes first
    position: Ints  # (nodes,), place in `topological`
    dirty: Bytes  # (operations,), places in it whose head or tail is to be found again; all 0 between moves
    degree: Ints  # (nodes,), free for any use within a step
    path: Ints  # (operations,), a longest path, last node first
    best: Ints  # (nodes,), heads of the best orders so far
    tabu: Ints  # (TABU_SLOTS,), until which step a pair of nodes must not be turned
    moves: (
        Ints  # (MOST_MOVES, 3), node, neighbour it goes to, whether after it; then its estimate in `values`
    )
    values: Ints  # (MOST_MOVES,)
    random: NDArray[np.uint64]  # (1,)
    step: Ints  # (1,)
    visited: Ints  # (1,), nodes looked at so far: what the work is counted in


def graph_of(plan: Plan, seed: int) -> DisjunctiveGraph:
    """The graph of a problem, its machines still without orders."""
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
    return DisjunctiveGraph(
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
        position=np.full(nodes, NONE, dtype=np.int64),
        dirty=np.zeros(operations, dtype=np.uint8),
        degree=np.zeros(nodes, dtype=np.int64),
        path=np.zeros(operations, dtype=np.int64),
        best=np.full(nodes, UNPLACED, dtype=np.int64),
        tabu=np.zeros(TABU_SLOTS, dtype=np.int64),
        moves=np.zeros((MOST_MOVES, 3), dtype=np.int64),
        values=np.zeros(MOST_MOVES, dtype=np.int64),
        random=np.array([seed * 2 + 88172645463325253], dtype=np.uint64),
        step=np.zeros(1, dtype=np.int64),
        visited=np.zeros(1, dtype=np.int64),
    )


def take_orders(graph: DisjunctiveGraph, start: Ints) -> None:
    """Sets the orders to those of `start`, shape (rows, pipelines, microbatches)."""
    # A W that takes no time comes before what starts with it.
    times = 2 * start.ravel() + (graph.length > 0)
    nodes = np.flatnonzero(graph.machine >= 0)
    nodes = nodes[np.lexsort((times[nodes], graph.machine[nodes]))]
    machine = graph.machine[nodes]
    first = np.searchsorted(machine, machine)
    graph.order[:] = NONE
    graph.at[nodes] = np.arange(len(nodes)) - first
    graph.order[machine, graph.at[nodes]] = nodes
    graph.used[:] = np.bincount(machine, minlength=len(graph.used))


@compiled
def left_of(graph, node):
    """The node before it on its machine, −1 where it is the first."""
    at = graph.at[node]
    return graph.order[graph.machine[node], at - 1] if at > 0 else -1


@compiled
def right_of(graph, node):
    machine, at = graph.machine[node], graph.at[node] + 1
    return graph.order[machine, at] if at < graph.used[machine] else -1


@compiled
def inputs(graph, node):
    """When all that `node` needs from other machines is there."""
    time = 0
    for i in range(2):
        other = graph.before[node, i]
        if other >= 0:
            time = max(time, graph.head[other] + graph.length[other] + graph.before_lag[node, i])
    return time


@compiled
def outputs(graph, node):
    """Longest way from its end to the end of all, over other machines."""
    way = 0
    for i in range(2):
        other = graph.after[node, i]
        if other >= 0:
            way = max(way, graph.after_lag[node, i] + graph.length[other] + graph.tail[other])
    return way


@compiled
def _sort(graph):
    """Puts the nodes into `topological`; returns how many: where some are missing, they wait in a circle."""
    count = 0
    for node in range(len(graph.machine)):
        if graph.machine[node] < 0:
            continue
        degree = 1 if graph.at[node] > 0 else 0
        for i in range(2):
            if graph.before[node, i] >= 0:
                degree += 1
        graph.degree[node] = degree
        if degree == 0:
            graph.topological[count] = node
            count += 1
    i = 0
    while i < count:
        node = graph.topological[i]
        i += 1
        right = right_of(graph, node)
        for j in range(3):
            other = right if j == 2 else graph.after[node, j]
            if other >= 0:
                graph.degree[other] -= 1
                if graph.degree[other] == 0:
                    graph.topological[count] = other
                    count += 1
    return count


@compiled
def time_all(graph):
    """Finds heads and tails; returns the makespan, −1 where nodes wait in a circle."""
    total = len(graph.topological)
    graph.visited[0] += total
    if _sort(graph) < total:
        return -1
    makespan = 0
    for i in range(total):
        node = graph.topological[i]
        graph.position[node] = i
        left = left_of(graph, node)
        time = inputs(graph, node)
        if left >= 0:
            time = max(time, graph.head[left] + graph.length[left])
        graph.head[node] = time
        makespan = max(makespan, time + graph.length[node])
    for i in range(total - 1, -1, -1):
        node = graph.topological[i]
        right = right_of(graph, node)
        way = outputs(graph, node)
        if right >= 0:
            way = max(way, graph.length[right] + graph.tail[right])
        graph.tail[node] = way
    return makespan


@compiled
def makespan_of(graph):
    """The last end of all."""
    makespan = 0
    for machine in range(len(graph.used)):
        if graph.used[machine] > 0:
            node = graph.order[machine, graph.used[machine] - 1]
            makespan = max(makespan, graph.head[node] + graph.length[node])
    return makespan


@compiled
def _turn(graph, node, goal, after):
    """Puts `node` next to `goal` in its machine's order."""
    machine = graph.machine[node]
    order = graph.order[machine]
    at, to = graph.at[node], graph.at[goal]
    way = 1 if after else -1
    while at != to:
        order[at] = order[at + way]
        graph.at[order[at]] = at
        at += way
    order[to] = node
    graph.at[node] = to


@compiled
def _is_marked(graph, node, stamp):
    return node >= 0 and graph.degree[node] == stamp


@compiled
def _leads_on(graph, node, after, stamp):
    """Whether a marked node leads to this one (`after`), or this one to a marked one."""
    beside = left_of(graph, node) if after else right_of(graph, node)
    if _is_marked(graph, beside, stamp):
        return True
    for i in range(2):
        other = graph.before[node, i] if after else graph.after[node, i]
        if _is_marked(graph, other, stamp):
            return True
    return False


@compiled
def _reorder(graph, node, goal, after):
    """Moves `node`, and what goes with it, past `goal` in `topological`; False where they wait in a circle.

    What goes with it are, in the window between the two, all that it leads to (or that lead to it).
    """
    stamp = -1 - graph.step[0]
    way = 1 if after else -1
    begin, end = graph.position[node], graph.position[goal]
    graph.degree[node] = stamp
    count = 0
    i = begin
    while i != end + way:
        other = graph.topological[i]
        if other == node or _leads_on(graph, other, after, stamp):
            if other == goal:
                return False
            graph.degree[other] = stamp
            graph.path[count] = other
            count += 1
        i += way
    free, i = begin, begin
    while i != end + way:
        other = graph.topological[i]
        if graph.degree[other] != stamp:
            graph.topological[free] = other
            graph.position[other] = free
            free += way
        i += way
    for j in range(count):
        graph.topological[free] = graph.path[j]
        graph.position[graph.path[j]] = free
        free += way
    graph.visited[0] += abs(end - begin)
    return True


@compiled
def _touch(graph, node):
    """Notes that a node must be looked at again; returns 1 where that was not known."""
    place = graph.position[node]
    if graph.dirty[place]:
        return 0
    graph.dirty[place] = 1
    return 1


@compiled
def _update_heads(graph, machine, first, last):
    """Heads from the nodes of a machine's turns `first` to `last` on."""
    waiting, place = 0, len(graph.topological)
    for i in range(first, min(last + 2, graph.used[machine])):
        node = graph.order[machine, i]
        waiting += _touch(graph, node)
        place = min(place, graph.position[node])
    while waiting > 0:
        if graph.dirty[place]:
            graph.dirty[place] = 0
            waiting -= 1
            graph.visited[0] += 1
            node = graph.topological[place]
            left, right = left_of(graph, node), right_of(graph, node)
            time = inputs(graph, node)
            if left >= 0:
                time = max(time, graph.head[left] + graph.length[left])
            if time != graph.head[node]:
                graph.head[node] = time
                for j in range(3):
                    other = right if j == 2 else graph.after[node, j]
                    if other >= 0:
                        waiting += _touch(graph, other)
        place += 1


@compiled
def _update_tails(graph, machine, first, last):
    """Tails from the nodes of a machine's turns `first` to `last` back."""
    waiting, place = 0, -1
    for i in range(max(0, first - 1), last + 1):
        node = graph.order[machine, i]
        waiting += _touch(graph, node)
        place = max(place, graph.position[node])
    while waiting > 0:
        if graph.dirty[place]:
            graph.dirty[place] = 0
            waiting -= 1
            graph.visited[0] += 1
            node = graph.topological[place]
            left, right = left_of(graph, node), right_of(graph, node)
            way = outputs(graph, node)
            if right >= 0:
                way = max(way, graph.length[right] + graph.tail[right])
            if way != graph.tail[node]:
                graph.tail[node] = way
                for j in range(3):
                    other = left if j == 2 else graph.before[node, j]
                    if other >= 0:
                        waiting += _touch(graph, other)
        place -= 1


@compiled
def move(graph, node, goal, after):
    """Moves `node` next to `goal` on its machine; returns whether it did: not where nodes wait in a circle.

    Heads and tails must have been found; they are right again afterwards.
    """
    machine, at, to = graph.machine[node], graph.at[node], graph.at[goal]
    back = graph.order[machine, at + (1 if after else -1)]
    _turn(graph, node, goal, after)
    if not _reorder(graph, node, goal, after):
        _turn(graph, node, back, not after)
        return False
    _update_heads(graph, machine, min(at, to), max(at, to))
    _update_tails(graph, machine, min(at, to), max(at, to))
    return True
