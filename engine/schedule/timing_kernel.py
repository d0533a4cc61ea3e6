"""Times a Schedule, compiled: each op and transfer once, causes first.

A stack holds the GPUs and link queues that may be able to go on. A popped GPU runs ops off its list until
one lacks an input whose time is not known yet. Each finished op puts the actors that wait for it back on the
stack. Work is linear in ops and transfers. If the stack runs empty with ops left, they wait for each other.

A transfer is ``payload · (L − 1) + edge``: payload 0 an activation over edge v, 1 a gradient back over it
(`engine.schedule.traversal`). A link is ``direction · P + hop``.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled, inlined

F, R, B, W = 0, 1, 2, 3
GATE_NONE, GATE_JIT, GATE_LATE = 0, 1, 2
UNKNOWN = np.nan
NOTHING = -1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Case(NamedTuple):
    """The schedule to time."""

    microbatches: int
    chunks: int
    durations: Floats  # (4 kinds, stages) of one chunk
    jitter: Floats  # as ops, factor of each op's duration; (0, 0, 0) if there is none
    transfer_time: Floats  # (hops,)
    latency: Floats
    transfer_jitter: Floats  # as Clock.sent_start, or (0, 0, 0)
    stage_of: Ints  # (positions,)
    position_of: Ints  # (stages, chunks)
    link_of: Ints  # (2 · edges,) link of each transfer, -1 within a stage
    transfer_of: Ints  # (2, hops, chunks), see Traversal.transfer_of
    ops: NDArray[np.int32]  # (pipelines, stages, longest), -1 after the last
    queue_of: Ints  # (2 · hops, pipelines), the queue that orders a link's transfers, -1 if none does
    queue_link: Ints  # (queues,)
    queue_owner: Ints  # (queues,), the pipeline whose link it is; pipeline 0 for a shared one
    queue_begin: Ints  # (queues + 1,), start of each queue in `sent`
    sent: NDArray[np.int32]  # codes of transfers in sending order, queue after queue
    gate: int
    sends_block: bool  # a GPU waits until its message has arrived


class Clock(NamedTuple):
    """Times known so far (NaN: not yet), and the progress of each GPU and link."""

    op_start: Floats  # as ops
    op_end: Floats
    sent_start: Floats  # (2 · edges, pipelines, microbatches), by transfer
    sent_end: Floats
    produced_at: Floats  # as sent_start: end of the producing op
    backward_start: Floats  # (pipelines, positions, microbatches)
    backward_end: Floats
    forward_end: Floats
    at: Ints  # (pipelines, stages), the next op
    free: Floats
    sending: Ints  # as free: transfer · microbatches + microbatch that the GPU waits for, or NOTHING
    queue_at: Ints  # (queues,), the next transfer of a queue
    link_free: Floats  # (2 · hops, pipelines); a shared link uses pipeline 0
    stack: Ints
    top: Ints  # (1,)
    stacked: NDArray[np.bool_]  # GPUs, then queues


@compiled
def _push(clock, actor):
    if not clock.stacked[actor]:
        clock.stacked[actor] = True
        clock.stack[clock.top[0]] = actor
        clock.top[0] += 1


@compiled
def _arrival(case, clock, transfer, k, m):
    hop = case.link_of[transfer] % len(case.transfer_time)
    return clock.sent_end[transfer, k, m] + case.latency[hop]


@compiled
def _activation(case, clock, k, v, m):
    """When the input of F at position v is there; NaN if not known yet."""
    if v == 0:
        return 0.0
    if case.link_of[v - 1] < 0:
        return clock.forward_end[k, v - 1, m]
    return _arrival(case, clock, v - 1, k, m)


@compiled
def _gradient(case, clock, k, v, m):
    """When the gradient for the output of F at position v is there; NaN if not known yet."""
    edges = len(case.stage_of) - 1
    if v == edges:
        return clock.forward_end[k, v, m]
    if case.link_of[v] < 0:
        return clock.backward_end[k, v + 1, m]
    return _arrival(case, clock, edges + v, k, m)


@compiled
def _ready(case, clock, kind, k, v, m):
    """When the inputs of an op are there and its gate is open; NaN if not known yet."""
    if kind == F:
        return _activation(case, clock, k, v, m)
    if kind == W:
        return clock.backward_start[k, v, m]
    if kind == B or case.gate == GATE_LATE:
        return _gradient(case, clock, k, v, m)
    if case.gate == GATE_JIT and v + 1 < len(case.stage_of):
        return clock.backward_start[k, v + 1, m]
    return 0.0


@compiled
def _sender(case, transfer):
    """The stage that sends a transfer."""
    edges = len(case.stage_of) - 1
    return case.stage_of[transfer if transfer < edges else transfer - edges + 1]


@compiled
def _time_transfer(case, clock, transfer, k, m, owner, produced_at):
    """Sends it as soon as its link is free, and wakes the receiver."""
    link = case.link_of[transfer]
    duration = case.transfer_time[link % len(case.transfer_time)]
    if case.transfer_jitter.size:
        duration *= case.transfer_jitter[transfer, k, m]
    start = max(produced_at, clock.link_free[link, owner])
    clock.sent_start[transfer, k, m] = start
    clock.sent_end[transfer, k, m] = start + duration
    clock.link_free[link, owner] = start + duration
    edges = len(case.stage_of) - 1
    position = transfer + 1 if transfer < edges else transfer - edges
    _push(clock, k * case.ops.shape[1] + case.stage_of[position])
    if case.sends_block:
        _push(clock, k * case.ops.shape[1] + _sender(case, transfer))


@compiled
def _deliver(case, clock, transfer, k, m, end):
    """Hands the output of an op to its link, or to the next chunk on the same GPU."""
    link = case.link_of[transfer]
    if link < 0:
        return
    if case.sends_block:
        clock.sending[k, _sender(case, transfer)] = transfer * case.microbatches + m
    queue = case.queue_of[link, k]
    if queue < 0:
        _time_transfer(case, clock, transfer, k, m, k, end)
        return
    clock.produced_at[transfer, k, m] = end
    _push(clock, len(case.ops) * case.ops.shape[1] + queue)


@inlined
def _finish(case, clock, kind, k, v, m, start, end):
    edges = len(case.stage_of) - 1
    if kind == F:
        clock.forward_end[k, v, m] = end
        if v < edges:
            _deliver(case, clock, v, k, m, end)
    elif kind == B:
        clock.backward_start[k, v, m] = start
        clock.backward_end[k, v, m] = end
        if v > 0:
            _deliver(case, clock, edges + v - 1, k, m, end)
            if case.gate == GATE_JIT:
                _push(clock, k * case.ops.shape[1] + case.stage_of[v - 1])


@compiled
def _waits_for_send(case, clock, k, s):
    """Whether it is not known yet when the last message of a GPU arrives; else the GPU is free then."""
    if clock.sending[k, s] < 0:
        return False
    transfer, m = divmod(clock.sending[k, s], case.microbatches)
    arrival = _arrival(case, clock, transfer, k, m)
    if np.isnan(arrival):
        return True
    clock.free[k, s] = max(clock.free[k, s], arrival)
    clock.sending[k, s] = NOTHING
    return False


@inlined
def _run_gpu(case, clock, k, s):
    longest = case.ops.shape[2]
    while clock.at[k, s] < longest and not _waits_for_send(case, clock, k, s):
        i = clock.at[k, s]
        code = case.ops[k, s, i]
        if code < 0:
            return
        kind, rest = code & 3, code >> 2
        chunk, m = rest // case.microbatches, rest % case.microbatches
        v = case.position_of[s, chunk]
        ready = _ready(case, clock, kind, k, v, m)
        if np.isnan(ready):
            return
        duration = case.durations[kind, s]
        if case.jitter.size:
            duration *= case.jitter[k, s, i]
        start = max(ready, clock.free[k, s])
        end = start + duration
        clock.op_start[k, s, i] = start
        clock.op_end[k, s, i] = end
        clock.free[k, s] = end
        clock.at[k, s] = i + 1
        _finish(case, clock, kind, k, v, m, start, end)


@compiled
def _run_queue(case, clock, queue):
    link, owner = case.queue_link[queue], case.queue_owner[queue]
    hops = len(case.transfer_time)
    per_pipeline = case.chunks * case.microbatches
    while clock.queue_at[queue] < case.queue_begin[queue + 1]:
        code = case.sent[clock.queue_at[queue]]
        k, rest = code // per_pipeline, code % per_pipeline
        chunk, m = rest // case.microbatches, rest % case.microbatches
        transfer = case.transfer_of[link // hops, link % hops, chunk]
        produced_at = clock.produced_at[transfer, k, m]
        if np.isnan(produced_at):
            return
        _time_transfer(case, clock, transfer, k, m, owner, produced_at)
        clock.queue_at[queue] += 1


@compiled
def run(case, clock):
    """Fills `clock`; `at` counts the ops of each GPU that could be timed."""
    pipelines, stages = case.ops.shape[0], case.ops.shape[1]
    gpus = pipelines * stages
    for actor in range(gpus - 1, -1, -1):
        _push(clock, actor)
    while clock.top[0] > 0:
        clock.top[0] -= 1
        actor = clock.stack[clock.top[0]]
        clock.stacked[actor] = False
        if actor < gpus:
            _run_gpu(case, clock, actor // stages, actor % stages)
        else:
            _run_queue(case, clock, actor - gpus)
