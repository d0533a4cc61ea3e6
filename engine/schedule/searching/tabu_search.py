"""Improves an order of operations move by move, compiled: tabu search on the disjunctive graph.

Source: the job-shop neighbourhoods of Nowicki and Smutnicki (1996) and Balas and Vazacopoulos (1998). On a
longest path, runs of operations of one machine are blocks. Only a move of an operation to the edge of its
block can shorten the path. Each move is estimated from the heads and tails around it. The best move that is
not tabu is made, and the heads and tails that it changes are updated.

Limits are counted along each GPU's order, so they hold exactly for any number of chunks.
"""

import numpy as np

from engine.schedule.compiled import compiled
from engine.schedule.searching.disjunctive_graph import (
    MOST_MOVES,
    TABU_SLOTS,
    inputs,
    left_of,
    makespan_of,
    move,
    outputs,
    time_all,
)

FAR = 2**62


@compiled
def _draw(graph, below):
    """A random number in [0, below): xorshift."""
    x = graph.random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    graph.random[0] = x
    return np.int64(x >> np.uint64(33)) % below


@compiled
def _find_path(graph, makespan):
    """Fills `path` with a random longest path; returns its length."""
    seen, node = 0, -1
    for machine in range(len(graph.used)):
        if graph.used[machine] == 0:
            continue
        other = graph.order[machine, graph.used[machine] - 1]
        if graph.head[other] + graph.length[other] == makespan:
            seen += 1
            if _draw(graph, seen) == 0:
                node = other
    count = 0
    while node >= 0:
        graph.path[count] = node
        count += 1
        seen, chosen = 0, -1
        left = left_of(graph, node)
        if left >= 0 and graph.head[left] + graph.length[left] == graph.head[node]:
            seen, chosen = 1, left
        for i in range(2):
            other = graph.before[node, i]
            if (
                other >= 0
                and graph.head[other] + graph.length[other] + graph.before_lag[node, i] == graph.head[node]
            ):
                seen += 1
                if _draw(graph, seen) == 0:
                    chosen = other
        node = chosen
    return count


@compiled
def _fits(arrays, graph, machine, first, last, turn_left):
    """Whether limits hold once the order on a GPU from `first` to `last` is rotated by one."""
    per_row = arrays.pipelines * arrays.microbatches
    stage = arrays.stage[graph.order[machine, 0] // per_row]
    if stage < 0:
        return True
    held, full = 0, 0
    for i in range(last + 1):
        j = i
        if first <= i:
            j = (i + 1 if i < last else first) if turn_left else (i - 1 if i > first else last)
        row = graph.order[machine, j] // per_row
        held += arrays.takes[row]
        full += arrays.full_takes[row]
        if held > arrays.room[stage] or full > arrays.full_room[stage]:
            return False
        held -= arrays.frees[row]
        full -= arrays.full_frees[row]
    return True


@compiled
def _may_pass(arrays, graph, node, machine, first, last):
    """Whether `node` may pass all from `first` to `last`: none of them has its row and pipeline."""
    lane = node // arrays.microbatches
    for i in range(first, last + 1):  # noqa: SIM110 (a generator does not compile)
        if graph.order[machine, i] // arrays.microbatches == lane:
            return False
    return True


@compiled
def _estimate(graph, machine, first, last, turn_left):
    """Longest path through the nodes from `first` to `last` once they are rotated by one.

    Heads are written to `degree`, which is free at this time.
    """
    order = graph.order[machine]
    time = 0
    if first > 0:
        time = graph.head[order[first - 1]] + graph.length[order[first - 1]]
    count = last - first + 1
    for i in range(count):
        j = (i + 1) % count if turn_left else (i - 1) % count
        node = order[first + j]
        time = max(time, inputs(graph, node))
        graph.degree[node] = time
        time += graph.length[node]
    tail, longest = 0, 0
    if last + 1 < graph.used[machine]:
        tail = graph.length[order[last + 1]] + graph.tail[order[last + 1]]
    for i in range(count - 1, -1, -1):
        j = (i + 1) % count if turn_left else (i - 1) % count
        node = order[first + j]
        tail = max(tail, outputs(graph, node))
        tail += graph.length[node]
        longest = max(longest, graph.degree[node] + tail)
    return longest


@compiled
def _offer_move(arrays, graph, count, node, goal, after):
    """Adds the move of `node` next to `goal` on its machine if it is allowed; returns the new count."""
    machine = graph.machine[node]
    if after:
        first, last = graph.at[node], graph.at[goal]
        if not _may_pass(arrays, graph, node, machine, first + 1, last):
            return count
        reach = graph.length[goal] + graph.tail[goal]
        for i in range(2):
            other = graph.after[node, i]
            if other >= 0 and graph.length[other] + graph.tail[other] > reach:
                return count
    else:
        first, last = graph.at[goal], graph.at[node]
        if not _may_pass(arrays, graph, node, machine, first, last - 1):
            return count
        reach = graph.head[goal] + graph.length[goal]
        for i in range(2):
            other = graph.before[node, i]
            if other >= 0 and graph.head[other] + graph.length[other] > reach:
                return count
    if count == MOST_MOVES or not _fits(arrays, graph, machine, first, last, after):
        return count
    graph.moves[count, 0], graph.moves[count, 1], graph.moves[count, 2] = node, goal, after
    graph.values[count] = _estimate(graph, machine, first, last, after)
    return count + 1


@compiled
def _block_moves(arrays, graph, count, newest, oldest):
    """Moves of the block path[newest … oldest] (the path runs backward in time)."""
    first, last = graph.path[oldest], graph.path[newest]
    size = oldest - newest + 1
    # Of a long block only some inner nodes, the outer ones always.
    some = max(1, size // 8)
    for i in range(newest, oldest + 1):
        node = graph.path[i]
        inner = i > newest + 1 and i < oldest - 1
        if inner and _draw(graph, some) > 0:
            continue
        if node != last:
            count = _offer_move(arrays, graph, count, node, last, True)
        if node != first and size > 2:
            count = _offer_move(arrays, graph, count, node, first, False)
    return count


@compiled
def _find_moves(arrays, graph, makespan):
    length = _find_path(graph, makespan)
    graph.visited[0] += length
    count, i = 0, 0
    while i < length:
        j = i
        while j + 1 < length and left_of(graph, graph.path[j]) == graph.path[j + 1]:
            j += 1
        if j > i:
            count = _block_moves(arrays, graph, count, i, j)
        i = j + 1
    return count


@compiled
def _slot(before, after):
    return (before * 1000003 + after * 7919) % TABU_SLOTS


@compiled
def _is_tabu(graph, i):
    node, goal, after = graph.moves[i, 0], graph.moves[i, 1], graph.moves[i, 2]
    slot = _slot(goal, node) if after else _slot(node, goal)
    return graph.tabu[slot] > graph.step[0]


@compiled
def _choose(graph, count, best):
    """The move with the least estimate that is not tabu or promises a new best; else a random one."""
    chosen, least, seen = -1, FAR, 0
    for i in range(count):
        if _is_tabu(graph, i) and graph.values[i] >= best:
            continue
        if graph.values[i] < least:
            chosen, least, seen = i, graph.values[i], 1
        elif graph.values[i] == least:
            seen += 1
            if _draw(graph, seen) == 0:
                chosen = i
    return chosen if chosen >= 0 else _draw(graph, count)


@compiled
def _forbid(graph, node, goal, after):
    """Forbids for a while to move `node` back to the other side of `goal`."""
    slot = _slot(node, goal) if after else _slot(goal, node)
    graph.tabu[slot] = graph.step[0] + 8 + _draw(graph, 12)


@compiled
def _remember(graph):
    for node in range(len(graph.head)):
        graph.best[node] = graph.head[node]


@compiled
def improve(arrays, graph, best, enough, work):
    """Moves until about `work` nodes have been visited, or `enough` or less is reached; returns the best.

    best : the best makespan so far; `graph.best` receives the heads of any better one.
    """
    until = graph.visited[0] + work
    makespan = time_all(graph)
    if makespan < 0:
        return best
    while True:
        if makespan < best:
            best = makespan
            _remember(graph)
        if best <= enough or graph.visited[0] >= until:
            return best
        count = _find_moves(arrays, graph, makespan)
        if count == 0:
            return best
        i = _choose(graph, count, best)
        node, goal, after = graph.moves[i, 0], graph.moves[i, 1], graph.moves[i, 2] > 0
        graph.step[0] += 1
        # A move that would close a cycle is not made, and not tried again for a while.
        moved = move(graph, node, goal, after)
        _forbid(graph, node, goal, after if moved else not after)
        makespan = makespan_of(graph)
