"""ZB-V: two model chunks per stage that go out and back, backward split, no bubbles where F = B = W.

Source: Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), §6: stage s runs 2 (P − s) − 1 forwards of
chunk 0, then in turn forwards of both chunks, then forwards and backwards of chunk 1, until every op of one
chunk is followed by one of the other; W goes right after its B until the cool-down. Every stage holds P
microbatches. It was published without recomputation; here R goes right before its B and may start as soon as
its GPU is free (``idle``), which is the fastest rule. Where `times.weight` is 0 nothing is split.
"""

import numpy as np

from engine.errors import Infeasible
from engine.schedule.compiled import compiled
from engine.schedule.ir import NO_OP, OpKind
from engine.schedule.scenario import Scenario
from engine.schedule.static import Codes, Static, allowed, peak
from engine.schedule.traversal import Traversal

F, B, W = int(OpKind.F), int(OpKind.B), int(OpKind.W)


def orders(scenario: Scenario, traversal: Traversal) -> Codes | Infeasible:
    """ZB-V's order of each stage."""
    if traversal.chunks != 2:
        return Infeasible(reason=f"chunks: ZB-V has 2 per stage, not {traversal.chunks}")
    micro, stages = scenario.microbatches, scenario.stages
    split = bool(np.any(scenario.per_stage("weight") > 0))
    result = np.full((stages, (4 + 2 * split) * micro), NO_OP, dtype=np.int32)
    full = 2 * np.where(scenario.per_stage("recompute") > 0, scenario.limits("full_limit"), micro)
    _fill(micro, split, full, np.zeros((2, 3), dtype=np.int64), result)
    held, most = peak(result, OpKind.W if split else OpKind.B) / 2, scenario.limits("memory_limit")
    if np.any(held > most):
        stage = int(np.argmax(held - most))
        holds = f"ZB-V holds {held[stage]:g} microbatches on a stage"
        return Infeasible(reason=f"memory_limit: {holds}; {allowed(most, stage)}")
    return result


@compiled
def _emit(result, s, at, micro, done, kind, chunk):
    """Appends the next op of a kind and chunk, unless it is beyond the last microbatch."""
    m = done[chunk, 2 if kind == W else 1 if kind == B else 0]
    done[chunk, 2 if kind == W else 1 if kind == B else 0] += 1
    if m >= micro:
        return at
    result[s, at] = (chunk * micro + m) * 4 + kind
    return at + 1


@compiled
def _emit_backward(result, s, at, micro, done, chunk, split, at_once):
    at = _emit(result, s, at, micro, done, B, chunk)
    if split and at_once:
        at = _emit(result, s, at, micro, done, W, chunk)
    return at


@compiled
def _fill(micro, split, full, done, result):
    stages = len(result)
    micros = max(2 * stages - 1, micro)
    for s in range(stages):
        at = 0
        done[:] = 0
        for _ in range(2 * (stages - s) - 1):
            at = _emit(result, s, at, micro, done, F, 0)
        for _ in range(s):
            at = _emit(result, s, at, micro, done, F, 1)
            at = _emit(result, s, at, micro, done, F, 0)
        for _ in range(stages - s):
            at = _emit(result, s, at, micro, done, F, 1)
            at = _emit_backward(result, s, at, micro, done, 1, split, True)
        while done[1, 0] < micros:
            if done[0, 0] < micros:
                at = _emit(result, s, at, micro, done, F, 0)
            at = _emit_backward(result, s, at, micro, done, 0, split, True)
            at = _emit(result, s, at, micro, done, F, 1)
            at = _emit_backward(result, s, at, micro, done, 1, split, True)
        _cool_down(micro, micros, split, full[s], done, result, s, at)


@compiled
def _cool_down(micro, micros, split, full, done, result, s, at):
    """Backwards of both chunks, of chunk 0 with its W, then the remaining W (sooner if `full` needs it)."""
    while done[0, 1] < micros:
        both = done[1, 1] < micros
        for chunk in range(2 if both else 1):
            while split and done[0, 1] - done[0, 2] + done[1, 1] - done[1, 2] >= full:
                at = _emit(result, s, at, micro, done, W, 0 if done[0, 2] < done[0, 1] else 1)
            at = _emit_backward(result, s, at, micro, done, chunk, split, not both)
    for chunk in (1, 0):
        while split and done[chunk, 2] < micros:
            at = _emit(result, s, at, micro, done, W, chunk)


policy = Static(orders=orders, traversal="wave", chunks=2, chunks_from=2, chunks_to=2, recompute="idle")
