"""The event loop of the greedy policies (Varuna, Atlas), compiled.

One idea: the loop holds, for each stage, the time of the next decision of one of its GPUs. The stage with the
earliest such time decides for all its idle GPUs. The arrivals of what it starts are known at once, and wake
the adjacent stages. Ties in time go to the later stage (its backward opens recompute gates upstream), then to
pipelines by the contention rule.

All ops that feed one link in one direction belong to one stage and have one duration, so links can be booked
in the order in which ops start.

Why not `position_kernel`, the event loop for any traversal? There a link picks among messages that wait, so
contention is decided after an op has run. Atlas decides it before: an op starts only when its link is free
right after it, and the contention rule orders GPUs (`_hold`, `_turn`). Priorities differ, too. Here B goes
before R and R before F by rule; there each op has a key, and an R whose gradient is missing runs only if
nothing else can. It was tried on 60 stages, 60 microbatches and 4 pipelines that share links: the orders are
not the published ones (Varuna takes 476 instead of 500 slots), and the loop takes 1.7 times the CPU time of
this one.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled, inlined
from engine.schedule.wake_tree import latest_up_to, set_wake, wakes_at

F, R, B = 0, 1, 2
JIT, IDLE, LATE, BLOCKING = 0, 1, 2, 3
RANK, ROUND_ROBIN, FIFO = 0, 1, 2
# Two events closer than this share of the longest op are one instant: sums of the same durations
# in another order differ in their last bits, which must not decide the order.
SAME_INSTANT = 1e-9

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Cell(NamedTuple):
    """The constant input. `pipelines` is 1 if pipelines share no link: all of them then do the same."""

    pipelines: int
    microbatches: int
    forward: Floats  # (stages,)
    recompute: Floats
    backward: Floats
    transfer_time: Floats  # (stages - 1,), time that one transfer holds its link
    latency: Floats
    shared: NDArray[np.bool_]  # (stages - 1,), one link for all pipelines of the cell
    held: NDArray[np.bool_]  # (stages - 1,), an op waits until its transfer can follow at once
    in_flight: Ints  # (stages,)
    rule: int
    tie: int
    instant: float


class State(NamedTuple):
    """The progress so far, per GPU [pipeline, stage] and per link [direction, pipeline, hop]."""

    started: Ints  # (3, pipelines, stages), ops of each kind: the next microbatch of that kind
    last: Ints  # (pipelines, stages), kind of the last op
    free: Floats  # (pipelines, stages), when the GPU is free
    activation: Floats  # (pipelines, stages, microbatches), arrival; inf while unknown
    gradient: Floats
    link_free: Floats  # (2, pipelines, stages - 1); shared links use pipeline 0
    link_last: Ints  # (2, stages - 1), the last sender on a shared link
    wake: Floats  # a tree of stages, see `wake_tree`
    order: NDArray[np.int32]  # (pipelines, stages, longest), op codes
    length: Ints  # (pipelines, stages)
    sent: NDArray[np.int32]  # (2, stages - 1, pipelines · microbatches), senders in order
    sent_length: Ints  # (2, stages - 1)


@inlined
def _hold(cell, state, direction, k, hop, duration):
    """Earliest start of an op of `duration` whose transfer over `hop` follows at once."""
    if not cell.held[hop]:
        return 0.0
    owner = 0 if cell.shared[hop] else k
    return state.link_free[direction, owner, hop] - duration


@inlined
def _earliest_backward(cell, state, k, s):
    m = state.started[B, k, s]
    forwards = state.started[F, k, s]
    if m >= forwards:
        return np.inf
    fresh = state.last[k, s] == F and m == forwards - 1
    if cell.recompute[s] > 0 and state.started[R, k, s] <= m and not fresh:
        return np.inf
    ready = state.gradient[k, s, m]
    if s > 0:
        ready = max(ready, _hold(cell, state, 1, k, s - 1, cell.backward[s]))
    return ready


@inlined
def _earliest_recompute(cell, state, k, s):
    m = state.started[B, k, s]
    forwards = state.started[F, k, s]
    if cell.recompute[s] == 0 or m >= forwards or state.started[R, k, s] > m:
        return np.inf
    if cell.rule == IDLE:
        return 0.0
    if cell.rule == LATE or s + 1 == len(cell.forward):
        return state.gradient[k, s, m]
    return 0.0 if state.started[B, k, s + 1] > m else np.inf


@inlined
def _earliest_forward(cell, state, k, s):
    m = state.started[F, k, s]
    if m >= cell.microbatches or m - state.started[B, k, s] >= cell.in_flight[s]:
        return np.inf
    if cell.rule == BLOCKING and state.last[k, s] == R:
        return np.inf
    ready = state.activation[k, s, m]
    if s + 1 < len(cell.forward):
        ready = max(ready, _hold(cell, state, 0, k, s, cell.forward[s]))
    return ready


@inlined
def _choose(cell, state, k, s, now):
    """The op that the idle GPU (k, s) starts now, or (-1, time of its next decision)."""
    backward = _earliest_backward(cell, state, k, s)
    if backward <= now:
        return B, backward
    recompute = _earliest_recompute(cell, state, k, s)
    forward = _earliest_forward(cell, state, k, s)
    # Backward first means its recompute too: even an idle R goes before F once its gradient is there.
    if cell.rule == IDLE and forward <= now and not state.gradient[k, s, state.started[B, k, s]] <= now:
        return F, forward
    if recompute <= now:
        return R, recompute
    if forward <= now:
        return F, forward
    return -1, min(backward, recompute, forward)


@inlined
def _send(cell, state, direction, k, hop, m, end):
    """Books the transfer on its link; returns its arrival."""
    owner = 0 if cell.shared[hop] else k
    start = max(end, state.link_free[direction, owner, hop])
    state.link_free[direction, owner, hop] = start + cell.transfer_time[hop]
    if cell.shared[hop]:
        at = state.sent_length[direction, hop]
        state.sent[direction, hop, at] = k * cell.microbatches + m
        state.sent_length[direction, hop] = at + 1
        state.link_last[direction, hop] = k
    return start + cell.transfer_time[hop] + cell.latency[hop]


@inlined
def _wake(state, s, time):
    if time < wakes_at(state.wake, s):
        set_wake(state.wake, s, time)


@inlined
def _start(cell, state, kind, k, s, now):
    m = state.started[kind, k, s] if kind != R else state.started[B, k, s]
    duration = cell.forward[s] if kind == F else cell.backward[s] if kind == B else cell.recompute[s]
    end = now + duration
    state.order[k, s, state.length[k, s]] = m * 4 + kind
    state.length[k, s] += 1
    state.started[kind, k, s] = m + 1
    state.last[k, s] = kind
    state.free[k, s] = end
    if kind == F and s + 1 < len(cell.forward):
        arrival = _send(cell, state, 0, k, s, m, end)
        state.activation[k, s + 1, m] = arrival
        _wake(state, s + 1, max(arrival, state.free[k, s + 1]))
    elif kind == F:
        state.gradient[k, s, m] = end
    elif kind == B and s > 0:
        arrival = _send(cell, state, 1, k, s - 1, m, end)
        state.gradient[k, s - 1, m] = arrival
        # Under jit the start of B matters upstream, not only the arrival of its gradient.
        opens = now if cell.rule == JIT or cell.rule == BLOCKING else arrival
        _wake(state, s - 1, max(opens, state.free[k, s - 1]))


@inlined
def _turn(cell, state, kind, k, s):
    """Priority of pipeline k for its op; the smallest starts first."""
    if cell.tie == FIFO and kind != R:
        # When its input was there and its GPU free: since then it has waited for the link.
        inputs = state.activation if kind == F else state.gradient
        return max(inputs[k, s, state.started[kind, k, s]], state.free[k, s])
    hop, direction = (s, 0) if kind == F else (s - 1, 1)
    if cell.tie == RANK or kind == R or hop < 0 or hop >= len(cell.transfer_time):
        return float(k)
    return float((k - state.link_last[direction, hop] - 1) % cell.pipelines)


@inlined
def _by_rank(cell, state, s, now, horizon):
    """Starts the idle GPUs of stage s in order of rank: one pass, as no start helps another's."""
    wake = np.inf
    for k in range(cell.pipelines):
        if state.free[k, s] <= horizon:
            kind, ready = _choose(cell, state, k, s, horizon)
            if kind < 0:
                wake = min(wake, ready)
                continue
            _start(cell, state, kind, k, s, now)
        wake = min(wake, state.free[k, s])
    return wake


@inlined
def _decide(cell, state, s, now):
    """Starts all ops that idle GPUs of stage s can start now, and sets the stage's next decision."""
    horizon = now + cell.instant
    if cell.pipelines == 1 or cell.tie == RANK:
        set_wake(state.wake, s, _by_rank(cell, state, s, now, horizon))
        return
    while True:
        chosen, op, turn = -1, -1, np.inf
        wake = np.inf
        for k in range(cell.pipelines):
            if state.free[k, s] > horizon:
                wake = min(wake, state.free[k, s])
                continue
            kind, ready = _choose(cell, state, k, s, horizon)
            if kind < 0:
                wake = min(wake, ready)
                continue
            mine = _turn(cell, state, kind, k, s)
            if mine < turn:
                chosen, op, turn = k, kind, mine
        if chosen < 0:
            set_wake(state.wake, s, wake)
            return
        _start(cell, state, op, chosen, s, now)


@compiled
def run(cell, state):
    """Fills `state` until no decision is left."""
    while state.wake[1] < np.inf:
        s = latest_up_to(state.wake, state.wake[1] + cell.instant)
        _decide(cell, state, s, wakes_at(state.wake, s))
