"""Times a Schedule, compiled: each op and transfer once, in an order in which causes come first.

A stack holds the GPUs and shared links that may be able to go on. Popped, a GPU runs ops off its list
until one lacks an input whose time is not known yet; what it finishes puts back on the stack whoever
waits for it. Work is linear in ops and transfers. If the stack runs empty with ops left, they wait for each
other.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled

F, R, B, W = 0, 1, 2, 3
GATE_NONE, GATE_JIT, GATE_LATE = 0, 1, 2
UNKNOWN = np.nan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Case(NamedTuple):
    """What is to be timed."""

    microbatches: int
    durations: Floats  # (4 kinds, stages)
    transfer: Floats  # (stages - 1,)
    latency: Floats
    shared: NDArray[np.bool_]  # (stages - 1,)
    ops: NDArray[np.int32]  # (pipelines, stages, longest), -1 after the last
    sent: NDArray[np.int32]  # (2, stages - 1, pipelines · microbatches), sending order of shared links
    gate: int


class Clock(NamedTuple):
    """Times found so far (NaN: not yet), and where each GPU and link stands."""

    op_start: Floats  # as ops
    op_end: Floats
    sent_start: Floats  # (2, pipelines, stages - 1, microbatches): [0] activations over hop s, [1] gradients
    sent_end: Floats
    made: Floats  # as sent_start: when the producing op ended
    backward_start: Floats  # (pipelines, stages, microbatches)
    forward_end: Floats
    at: Ints  # (pipelines, stages), the next op
    free: Floats
    link_at: Ints  # (2, stages - 1), the next transfer of a shared link
    link_free: Floats  # (2, pipelines, stages - 1)
    stack: Ints
    top: Ints  # (1,)
    stacked: NDArray[np.bool_]  # GPUs, then links


@compiled
def _push(clock, actor):
    if not clock.stacked[actor]:
        clock.stacked[actor] = True
        clock.stack[clock.top[0]] = actor
        clock.top[0] += 1


@compiled
def _arrival(case, clock, direction, k, hop, m):
    return clock.sent_end[direction, k, hop, m] + case.latency[hop]


@compiled
def _ready(case, clock, kind, k, s, m):
    """When the inputs of an op are there and its gate is open; NaN if not known yet."""
    last = len(case.durations[0]) - 1
    if kind == F:
        return 0.0 if s == 0 else _arrival(case, clock, 0, k, s - 1, m)
    if kind == W:
        return clock.backward_start[k, s, m]
    gradient = clock.forward_end[k, s, m] if s == last else _arrival(case, clock, 1, k, s, m)
    if kind == B or case.gate == GATE_LATE:
        return gradient
    if case.gate == GATE_JIT and s < last:
        return clock.backward_start[k, s + 1, m]
    return 0.0


@compiled
def _deliver(case, clock, direction, k, hop, m, end):
    """Hands the output of an op to its link; the receiver is woken once the transfer is timed."""
    stages = len(case.durations[0])
    clock.made[direction, k, hop, m] = end
    if case.shared[hop]:
        _push(clock, len(case.ops) * stages + direction * (stages - 1) + hop)
        return
    start = max(end, clock.link_free[direction, k, hop])
    clock.sent_start[direction, k, hop, m] = start
    clock.sent_end[direction, k, hop, m] = start + case.transfer[hop]
    clock.link_free[direction, k, hop] = start + case.transfer[hop]
    _push(clock, k * stages + hop + 1 - direction)


@compiled
def _run_gpu(case, clock, k, s):
    stages = len(case.durations[0])
    longest = case.ops.shape[2]
    while clock.at[k, s] < longest:
        i = clock.at[k, s]
        code = case.ops[k, s, i]
        if code < 0:
            return
        kind, m = code & 3, code >> 2
        ready = _ready(case, clock, kind, k, s, m)
        if np.isnan(ready):
            return
        start = max(ready, clock.free[k, s])
        end = start + case.durations[kind, s]
        clock.op_start[k, s, i] = start
        clock.op_end[k, s, i] = end
        clock.free[k, s] = end
        clock.at[k, s] = i + 1
        if kind == F:
            clock.forward_end[k, s, m] = end
            if s + 1 < stages:
                _deliver(case, clock, 0, k, s, m, end)
        elif kind == B:
            clock.backward_start[k, s, m] = start
            if s > 0:
                _deliver(case, clock, 1, k, s - 1, m, end)
                if case.gate == GATE_JIT:
                    _push(clock, k * stages + s - 1)


@compiled
def _run_link(case, clock, direction, hop):
    stages = len(case.durations[0])
    while clock.link_at[direction, hop] < case.sent.shape[2]:
        code = case.sent[direction, hop, clock.link_at[direction, hop]]
        k, m = code // case.microbatches, code % case.microbatches
        made = clock.made[direction, k, hop, m]
        if np.isnan(made):
            return
        start = max(made, clock.link_free[direction, 0, hop])
        clock.sent_start[direction, k, hop, m] = start
        clock.sent_end[direction, k, hop, m] = start + case.transfer[hop]
        clock.link_free[direction, 0, hop] = start + case.transfer[hop]
        clock.link_at[direction, hop] += 1
        _push(clock, k * stages + hop + 1 - direction)


@compiled
def run(case, clock):
    """Fills `clock`; returns the number of ops that could be timed."""
    pipelines, stages = case.ops.shape[0], case.ops.shape[1]
    for actor in range(pipelines * stages):
        _push(clock, actor)
    while clock.top[0] > 0:
        clock.top[0] -= 1
        actor = clock.stack[clock.top[0]]
        clock.stacked[actor] = False
        if actor < pipelines * stages:
            _run_gpu(case, clock, actor // stages, actor % stages)
        else:
            link = actor - pipelines * stages
            _run_link(case, clock, link // (stages - 1), link % (stages - 1))
    return clock.at.sum()
