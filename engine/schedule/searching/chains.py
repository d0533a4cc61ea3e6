"""Builds a schedule chain by chain, compiled.

One idea: a microbatch's whole way down and up again goes into the earliest gaps that earlier chains have left
on GPUs and links. What to vary is the order in which the pipelines insert their next microbatch, and when
each may begin.
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
def _open(plan, timelines, row, k, m):
    """Places the W that frees the room which (row, k, m) waits for."""
    gate, earlier = plan.gate[row], m - plan.behind[row]
    if gate >= 3 * plan.places and earlier >= 0 and timelines.start[gate, k, earlier] == UNPLACED:
        put_earliest(plan, timelines, gate, k, earlier)


@compiled
def _backward(plan, timelines, v, k, m, late):
    """Places B, and before it its R: as late as B allows, or as early as it can."""
    own, again = 2 * plan.places + v, plan.places + v
    if plan.machine[again, k] < 0:
        _open(plan, timelines, own, k, m)
        put_earliest(plan, timelines, own, k, m)
        return
    _open(plan, timelines, again, k, m)
    machine, length = plan.machine[own, k], plan.duration[again]
    first = earliest(timelines, machine, ready(plan, timelines, again, k, m), length)
    if not late:
        put(plan, timelines, again, k, m, first)
        put_earliest(plan, timelines, own, k, m)
        return
    time = max(ready(plan, timelines, own, k, m), first + length)
    start = earliest(timelines, machine, time, plan.duration[own])
    put(plan, timelines, again, k, m, latest(timelines, machine, start, length))
    put(plan, timelines, own, k, m, start)


@compiled
def _chain(plan, timelines, k, m, release, late):
    last = plan.places - 1
    for v in range(last):
        _open(plan, timelines, v, k, m)
        time = ready(plan, timelines, v, k, m)
        if v == 0:
            time = max(time, release)
        put(plan, timelines, v, k, m, earliest(timelines, plan.machine[v, k], time, plan.duration[v]))
        crossing = 4 * plan.places + v
        if plan.machine[crossing, k] >= 0:
            put_earliest(plan, timelines, crossing, k, m)
    _backward(plan, timelines, last, k, m, late)
    for v in range(last - 1, -1, -1):
        crossing = 4 * plan.places + last + v
        if plan.machine[crossing, k] >= 0:
            put_earliest(plan, timelines, crossing, k, m)
        _backward(plan, timelines, v, k, m, late)


@compiled
def insert_chains(plan, timelines, chains, release, late):
    """Places every operation in empty timelines.

    chains : (pipelines · microbatches,), ``pipeline · M + microbatch`` in order of insertion.
    release : (pipelines, microbatches), when each may begin.
    late : each R as late as its B allows, else as early as it can.
    """
    for i in range(len(chains)):
        k, m = chains[i] // plan.microbatches, chains[i] % plan.microbatches
        _chain(plan, timelines, k, m, release[k, m], late)
    for m in range(plan.microbatches):
        for v in range(plan.places):
            for k in range(plan.pipelines):
                row = 3 * plan.places + v
                if plan.machine[row, k] >= 0 and timelines.start[row, k, m] == UNPLACED:
                    put_earliest(plan, timelines, row, k, m)
