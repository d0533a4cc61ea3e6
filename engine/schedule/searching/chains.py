"""Builds a schedule chain by chain, compiled.

One idea: all operations of a microbatch, forward and back, go into the earliest gaps that earlier chains have
left on GPUs and links. Two things vary: the order in which the pipelines insert their next microbatch, and
the earliest start of each.
"""

from engine.schedule.compiled import compiled
from engine.schedule.searching.timelines import (
    UNPLACED,
    earliest,
    latest,
    put,
    put_earliest,
    ready,
)


@compiled
def _open(arrays, timelines, row, k, m):
    """Places the W that frees the room for (row, k, m)."""
    gate, earlier = arrays.gate[row], m - arrays.behind[row]
    if gate >= 3 * arrays.positions and earlier >= 0 and timelines.start[gate, k, earlier] == UNPLACED:
        put_earliest(arrays, timelines, gate, k, earlier)


@compiled
def _backward(arrays, timelines, v, k, m, late):
    """Places B, and before it its R: as late as B allows, or as early as possible."""
    own, again = 2 * arrays.positions + v, arrays.positions + v
    if arrays.machine[again, k] < 0:
        _open(arrays, timelines, own, k, m)
        put_earliest(arrays, timelines, own, k, m)
        return
    _open(arrays, timelines, again, k, m)
    machine, length = arrays.machine[own, k], arrays.duration[again]
    first = earliest(timelines, machine, ready(arrays, timelines, again, k, m), length)
    if not late:
        put(arrays, timelines, again, k, m, first)
        put_earliest(arrays, timelines, own, k, m)
        return
    time = max(ready(arrays, timelines, own, k, m), first + length)
    start = earliest(timelines, machine, time, arrays.duration[own])
    put(arrays, timelines, again, k, m, latest(timelines, machine, start, length))
    put(arrays, timelines, own, k, m, start)


@compiled
def _chain(arrays, timelines, k, m, release, late):
    last = arrays.positions - 1
    for v in range(last):
        _open(arrays, timelines, v, k, m)
        time = ready(arrays, timelines, v, k, m)
        if v == 0:
            time = max(time, release)
        put(arrays, timelines, v, k, m, earliest(timelines, arrays.machine[v, k], time, arrays.duration[v]))
        transfer = 4 * arrays.positions + v
        if arrays.machine[transfer, k] >= 0:
            put_earliest(arrays, timelines, transfer, k, m)
    _backward(arrays, timelines, last, k, m, late)
    for v in range(last - 1, -1, -1):
        transfer = 4 * arrays.positions + last + v
        if arrays.machine[transfer, k] >= 0:
            put_earliest(arrays, timelines, transfer, k, m)
        _backward(arrays, timelines, v, k, m, late)


@compiled
def insert_chains(arrays, timelines, chains, release, late):
    """Places every operation in empty timelines.

    chains : (pipelines · microbatches,), ``pipeline · M + microbatch`` in order of insertion.
    release : (pipelines, microbatches), earliest start of each.
    late : each R as late as its B allows, else as early as possible.
    """
    for i in range(len(chains)):
        k, m = chains[i] // arrays.microbatches, chains[i] % arrays.microbatches
        _chain(arrays, timelines, k, m, release[k, m], late)
    for m in range(arrays.microbatches):
        for v in range(arrays.positions):
            for k in range(arrays.pipelines):
                row = 3 * arrays.positions + v
                if arrays.machine[row, k] >= 0 and timelines.start[row, k, m] == UNPLACED:
                    put_earliest(arrays, timelines, row, k, m)
