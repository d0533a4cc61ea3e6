"""Builds a schedule chain by chain, compiled.

One idea: a microbatch's whole way down and up again goes into the earliest gaps that earlier chains have left
on GPUs and links. What to vary is the order in which the pipelines insert their next microbatch, and when
each may begin.
"""

from engine.schedule.compiled import compiled
from engine.schedule.searching.board import (
    UNPLACED,
    earliest,
    latest,
    put,
    put_earliest,
    ready,
)


@compiled
def _open(plan, board, row, k, m):
    """Places the W that frees the room which (row, k, m) waits for."""
    gate, earlier = plan.gate[row], m - plan.behind[row]
    if gate >= 3 * plan.places and earlier >= 0 and board.start[gate, k, earlier] == UNPLACED:
        put_earliest(plan, board, gate, k, earlier)


@compiled
def _backward(plan, board, v, k, m, late):
    """Places B, and before it its R: as late as B allows, or as early as it can."""
    own, again = 2 * plan.places + v, plan.places + v
    if plan.machine[again, k] < 0:
        _open(plan, board, own, k, m)
        put_earliest(plan, board, own, k, m)
        return
    _open(plan, board, again, k, m)
    machine, length = plan.machine[own, k], plan.duration[again]
    first = earliest(board, machine, ready(plan, board, again, k, m), length)
    if not late:
        put(plan, board, again, k, m, first)
        put_earliest(plan, board, own, k, m)
        return
    time = max(ready(plan, board, own, k, m), first + length)
    start = earliest(board, machine, time, plan.duration[own])
    put(plan, board, again, k, m, latest(board, machine, start, length))
    put(plan, board, own, k, m, start)


@compiled
def _chain(plan, board, k, m, release, late):
    last = plan.places - 1
    for v in range(last):
        _open(plan, board, v, k, m)
        time = ready(plan, board, v, k, m)
        if v == 0:
            time = max(time, release)
        put(plan, board, v, k, m, earliest(board, plan.machine[v, k], time, plan.duration[v]))
        crossing = 4 * plan.places + v
        if plan.machine[crossing, k] >= 0:
            put_earliest(plan, board, crossing, k, m)
    _backward(plan, board, last, k, m, late)
    for v in range(last - 1, -1, -1):
        crossing = 4 * plan.places + last + v
        if plan.machine[crossing, k] >= 0:
            put_earliest(plan, board, crossing, k, m)
        _backward(plan, board, v, k, m, late)


@compiled
def insert_chains(plan, board, chains, release, late):
    """Fills an empty board.

    chains : (pipelines · microbatches,), ``pipeline · M + microbatch`` in order of insertion.
    release : (pipelines, microbatches), when each may begin.
    late : each R as late as its B allows, else as early as it can.
    """
    for i in range(len(chains)):
        k, m = chains[i] // plan.microbatches, chains[i] % plan.microbatches
        _chain(plan, board, k, m, release[k, m], late)
    for m in range(plan.microbatches):
        for v in range(plan.places):
            for k in range(plan.pipelines):
                row = 3 * plan.places + v
                if plan.machine[row, k] >= 0 and board.start[row, k, m] == UNPLACED:
                    put_earliest(plan, board, row, k, m)
