"""Replays the graph of a step, compiled: each op once, causes first, all steps together."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Plan(NamedTuple):
    """A graph in the order in which its ops are replayed; see `engine.analyze.graph.Graph`."""

    order: Ints  # (nodes,), each after all that it waits for
    before_begin: Ints
    before: Ints
    group: Ints
    members_begin: Ints
    members: Ints


@compiled
def sort(plan, after_begin, after, missing, started):
    """Fill `plan.order`; returns how many nodes were placed: fewer than all where ops wait for themselves.

    missing : how many each node waits for.  started : zeros, of each group the nodes that have started.
    """
    placed = 0
    for node in range(len(missing)):
        if missing[node] == 0:
            plan.order[placed] = node
            placed += 1
    at = 0
    while at < placed:
        node = plan.order[at]
        at += 1
        group = plan.group[node]
        if group < 0:
            placed = _release(plan, after_begin, after, missing, node, placed)
            continue
        started[group] += 1
        begin, end = plan.members_begin[group], plan.members_begin[group + 1]
        if started[group] == end - begin:
            for i in range(begin, end):
                placed = _release(plan, after_begin, after, missing, plan.members[i], placed)
    return placed


@compiled
def _release(plan, after_begin, after, missing, node, placed):
    for i in range(after_begin[node], after_begin[node + 1]):
        waiting = after[i]
        missing[waiting] -= 1
        if missing[waiting] == 0:
            plan.order[placed] = waiting
            placed += 1
    return placed


@compiled
def replay(plan, durations, ideal, measured, started, start, end):
    """Fill `start` and `end`, shape (nodes, steps).

    measured : of each node, whether it takes its own of `durations` (nodes, steps), or its `ideal` (nodes,).
    started : zeros, one a group.
    """
    steps = durations.shape[1]
    for at in range(len(plan.order)):
        node = plan.order[at]
        for step in range(steps):
            begin = 0.0
            for i in range(plan.before_begin[node], plan.before_begin[node + 1]):
                begin = max(begin, end[plan.before[i], step])
            start[node, step] = begin
        group = plan.group[node]
        if group < 0:
            for step in range(steps):
                took = durations[node, step] if measured[node] else ideal[node]
                end[node, step] = start[node, step] + took
            continue
        started[group] += 1
        first, last = plan.members_begin[group], plan.members_begin[group + 1]
        if started[group] == last - first:
            _finish(plan, durations, ideal, measured, start, end, first, last)


@compiled
def _finish(plan, durations, ideal, measured, start, end, first, last):
    """End a communication: each end takes its own transfer, from the last start on."""
    for step in range(durations.shape[1]):
        latest = 0.0
        for i in range(first, last):
            latest = max(latest, start[plan.members[i], step])
        for i in range(first, last):
            node = plan.members[i]
            took = durations[node, step] if measured[node] else ideal[node]
            end[node, step] = latest + took
