"""The disjunctive graph of a problem, compiled: orders of all machines, heads and tails, and moves.

Nodes are kept in a topological order. A move reorders a few adjacent nodes of one machine. The topological
order is repaired in the window between them (as Pearce and Kelly, 2006, do for an arc). Only nodes whose head
or tail changes are visited again.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled
from engine.schedule.searching.problem import NONE, Ints, ProblemArrays
from engine.schedule.searching.timelines import UNPLACED

TABU_SLOTS = 1 << 14
MOST_MOVES = 64

Bytes = NDArray[np.uint8]


class DisjunctiveGraph(NamedTuple):
    """Orders on all machines, and the times that they imply. Nodes are (row, pipeline, microbatch)."""

    before: Ints  # (nodes, 2), predecessors, −1: none
    before_lag: Ints
    after: Ints  # (nodes, 2)
    after_lag: Ints
    length: Ints  # (nodes,), 0 if the node is no operation
    machine: Ints  # (nodes,), −1 if the node is no operation
    order: Ints  # (machines, longest), nodes in order, −1 after the last
    used: Ints  # (machines,)
    at: Ints  # (nodes,), index in its machine's order
    head: Ints  # (nodes,), earliest start
    tail: Ints  # (nodes,), longest path from its end to the end of the schedule
    topological: Ints  # (operations,), causes first
    topological_at: Ints  # (nodes,), index in `topological`
    dirty: Bytes  # (operations,), indexes in it whose head or tail must be updated; all 0 between moves
    degree: Ints  # (nodes,), scratch within a step
    path: Ints  # (operations,), a longest path, last node first
    best: Ints  # (nodes,), heads of the best orders so far
    tabu: Ints  # (TABU_SLOTS,), the step until which a pair of nodes must not be turned
    moves: Ints  # (MOST_MOVES, 3), node, goal, whether it goes after the goal; estimates are in `values`
    values: Ints  # (MOST_MOVES,)
    random: NDArray[np.uint64]  # (1,)
    step: Ints  # (1,)
    visited: Ints  # (1,), nodes visited so far, the measure of work


def graph_of(arrays: ProblemArrays, seed: int) -> DisjunctiveGraph:
    """The graph of a problem, its machines still without orders."""
    rows, n, m = len(arrays.duration), arrays.pipelines, arrays.microbatches
    nodes = rows * n * m
    exists = np.repeat((arrays.machine >= 0).ravel(), m)
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
        before=spread(arrays.before),
        before_lag=every(arrays.before_lag),
        after=spread(arrays.after),
        after_lag=every(arrays.after_lag),
        length=np.where(exists, every(arrays.duration), 0),
        machine=np.repeat(arrays.machine.ravel(), m),
        order=np.full((arrays.machines, arrays.longest), NONE, dtype=np.int64),
        used=np.zeros(arrays.machines, dtype=np.int64),
        at=np.full(nodes, NONE, dtype=np.int64),
        head=np.zeros(nodes, dtype=np.int64),
        tail=np.zeros(nodes, dtype=np.int64),
        topological=np.zeros(operations, dtype=np.int64),
        topological_at=np.full(nodes, NONE, dtype=np.int64),
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
    # A W of no duration comes before operations that start with it.
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
    """The previous node on its machine, −1 if it is the first."""
    at = graph.at[node]
    return graph.order[graph.machine[node], at - 1] if at > 0 else -1


@compiled
def right_of(graph, node):
    """The next node on its machine, −1 if it is the last."""
    machine, at = graph.machine[node], graph.at[node] + 1
    return graph.order[machine, at] if at < graph.used[machine] else -1


@compiled
def inputs(graph, node):
    """When all inputs of `node` from other machines have arrived."""
    time = 0
    for i in range(2):
        other = graph.before[node, i]
        if other >= 0:
            time = max(time, graph.head[other] + graph.length[other] + graph.before_lag[node, i])
    return time


@compiled
def outputs(graph, node):
    """Longest path from the end of `node` to the end of the schedule, over other machines."""
    tail = 0
    for i in range(2):
        other = graph.after[node, i]
        if other >= 0:
            tail = max(tail, graph.after_lag[node, i] + graph.length[other] + graph.tail[other])
    return tail


@compiled
def _sort(graph):
    """Writes the nodes to `topological`; returns their number, smaller if the orders contain a cycle."""
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
    """Computes heads and tails; returns the makespan, −1 if the orders contain a cycle."""
    total = len(graph.topological)
    graph.visited[0] += total
    if _sort(graph) < total:
        return -1
    makespan = 0
    for i in range(total):
        node = graph.topological[i]
        graph.topological_at[node] = i
        left = left_of(graph, node)
        time = inputs(graph, node)
        if left >= 0:
            time = max(time, graph.head[left] + graph.length[left])
        graph.head[node] = time
        makespan = max(makespan, time + graph.length[node])
    for i in range(total - 1, -1, -1):
        node = graph.topological[i]
        right = right_of(graph, node)
        tail = outputs(graph, node)
        if right >= 0:
            tail = max(tail, graph.length[right] + graph.tail[right])
        graph.tail[node] = tail
    return makespan


@compiled
def makespan_of(graph):
    """The last end of all operations."""
    makespan = 0
    for machine in range(len(graph.used)):
        if graph.used[machine] > 0:
            node = graph.order[machine, graph.used[machine] - 1]
            makespan = max(makespan, graph.head[node] + graph.length[node])
    return makespan


@compiled
def _turn(graph, node, goal, after):
    """Moves `node` next to `goal` in its machine's order."""
    machine = graph.machine[node]
    order = graph.order[machine]
    at, to = graph.at[node], graph.at[goal]
    step = 1 if after else -1
    while at != to:
        order[at] = order[at + step]
        graph.at[order[at]] = at
        at += step
    order[to] = node
    graph.at[node] = to


@compiled
def _is_marked(graph, node, stamp):
    return node >= 0 and graph.degree[node] == stamp


@compiled
def _leads_on(graph, node, after, stamp):
    """Whether a marked node precedes this one (`after`), or this one precedes a marked one."""
    adjacent = left_of(graph, node) if after else right_of(graph, node)
    if _is_marked(graph, adjacent, stamp):
        return True
    for i in range(2):
        other = graph.before[node, i] if after else graph.after[node, i]
        if _is_marked(graph, other, stamp):
            return True
    return False


@compiled
def _reorder(graph, node, goal, after):
    """Moves `node`, and its successors in the window, past `goal` in `topological`; False if that makes a
    cycle.

    The window lies between the two nodes. With `after` false, the predecessors move instead.
    """
    stamp = -1 - graph.step[0]
    step = 1 if after else -1
    begin, end = graph.topological_at[node], graph.topological_at[goal]
    graph.degree[node] = stamp
    count = 0
    i = begin
    while i != end + step:
        other = graph.topological[i]
        if other == node or _leads_on(graph, other, after, stamp):
            if other == goal:
                return False
            graph.degree[other] = stamp
            graph.path[count] = other
            count += 1
        i += step
    free, i = begin, begin
    while i != end + step:
        other = graph.topological[i]
        if graph.degree[other] != stamp:
            graph.topological[free] = other
            graph.topological_at[other] = free
            free += step
        i += step
    for j in range(count):
        graph.topological[free] = graph.path[j]
        graph.topological_at[graph.path[j]] = free
        free += step
    graph.visited[0] += abs(end - begin)
    return True


@compiled
def _touch(graph, node):
    """Marks a node to be visited again; returns 1 if it was not marked."""
    index = graph.topological_at[node]
    if graph.dirty[index]:
        return 0
    graph.dirty[index] = 1
    return 1


@compiled
def _update_heads(graph, machine, first, last):
    """Updates heads from the machine's operations `first` to `last` onwards."""
    waiting, index = 0, len(graph.topological)
    for i in range(first, min(last + 2, graph.used[machine])):
        node = graph.order[machine, i]
        waiting += _touch(graph, node)
        index = min(index, graph.topological_at[node])
    while waiting > 0:
        if graph.dirty[index]:
            graph.dirty[index] = 0
            waiting -= 1
            graph.visited[0] += 1
            node = graph.topological[index]
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
        index += 1


@compiled
def _update_tails(graph, machine, first, last):
    """Updates tails from the machine's operations `first` to `last` backwards."""
    waiting, index = 0, -1
    for i in range(max(0, first - 1), last + 1):
        node = graph.order[machine, i]
        waiting += _touch(graph, node)
        index = max(index, graph.topological_at[node])
    while waiting > 0:
        if graph.dirty[index]:
            graph.dirty[index] = 0
            waiting -= 1
            graph.visited[0] += 1
            node = graph.topological[index]
            left, right = left_of(graph, node), right_of(graph, node)
            tail = outputs(graph, node)
            if right >= 0:
                tail = max(tail, graph.length[right] + graph.tail[right])
            if tail != graph.tail[node]:
                graph.tail[node] = tail
                for j in range(3):
                    other = left if j == 2 else graph.before[node, j]
                    if other >= 0:
                        waiting += _touch(graph, other)
        index -= 1


@compiled
def move(graph, node, goal, after):
    """Moves `node` next to `goal` on its machine; returns False, and moves nothing, if that makes a cycle.

    Heads and tails must be up to date before, and are afterwards.
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
