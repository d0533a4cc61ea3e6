"""Interleaved 1F1B as in Megatron: several model chunks per stage, a loop through all stages for each.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (SC 2021), §2.2:
groups of microbatches go through chunk 0, then chunk 1, and so on; backwards through the chunks in reverse.
Stage s runs (C − 1) g + 2 (P − 1 − s) forwards before its first turn, g being the size of a group. Recomputes
when the gradient has arrived (``late``).

Megatron needs M to be a multiple of P, and g = P. Here any M is allowed. There are ⌊M / P⌋ groups (at least
one) whose sizes differ by at most one, the larger first; for M = r · ⌊M / P⌋ PyTorch runs the same. Megatron
has no `memory_limit` below its warm-up. Here smaller groups are tried, each with a warm-up that falls evenly
and is as long as the limit of each stage allows; the fastest is taken.
"""

import numpy as np

from engine.schedule.ir import OpKind, Schedule
from engine.schedule.scenario import MOST_CHUNKS, Scenario
from engine.schedule.static import Codes, Ints, Static, peak, sorted_by_turn
from engine.schedule.timing import DeadlockError, time_ops
from engine.schedule.traversal import Traversal

MOST_TRIED = 12


def orders(scenario: Scenario, traversal: Traversal) -> Codes:
    """The interleaved order of each stage."""
    chunks, micro = traversal.chunks, scenario.microbatches
    count = max(1, micro // scenario.stages)
    published = _orders(scenario, chunks, count, None)
    limits = chunks * scenario.limits("memory_limit")
    if np.all(peak(published, OpKind.B) <= limits):
        return published
    most = limits - 1
    # All chunks but one of a group, and one op more, are held before the first B.
    largest = min(-(-micro // count), int(most.min()) // (chunks - 1))
    sizes = np.unique(np.linspace(1, largest, MOST_TRIED).astype(int)).tolist()
    tried = [
        _orders(scenario, chunks, count, most) for count in sorted({-(-micro // size) for size in sizes})
    ]
    return min(tried, key=lambda codes: _makespan(scenario, traversal, codes))


def _orders(scenario: Scenario, chunks: int, count: int, most: Ints | None) -> Codes:
    """The order with `count` groups and at most `most` forwards before the first turn, shape (stages,)."""
    micro = scenario.microbatches
    groups = np.array_split(np.arange(micro), count)
    forwards = [chunk * micro + group for group in groups for chunk in range(chunks)]
    backwards = [chunk * micro + group for group in groups for chunk in range(chunks)[::-1]]
    first = len(groups[0])
    further = 2 * np.arange(scenario.stages)[::-1]
    if most is not None:
        left = most - (chunks - 1) * first
        least = int(np.argmin(left / np.maximum(1, further)))
        further = np.minimum(further, further * left[least] // max(1, further[least]))
    if count > 1:
        further = np.minimum(further, 2 * first)
    return sorted_by_turn(
        np.concatenate(forwards) * 4 + OpKind.F,
        np.concatenate(backwards) * 4 + OpKind.B,
        (chunks - 1) * first + further,
        None,
    )


def _makespan(scenario: Scenario, traversal: Traversal, orders: Codes) -> float:
    """Of one pipeline by itself, without recomputation; infinite where groups smaller than P deadlock."""
    alone = scenario.model_copy(update={"pipelines": 1})
    schedule = Schedule(
        microbatches=scenario.microbatches,
        traversal=traversal,
        ops=orders[None],
        sharing="spatial",
        link_order={},
        recompute_gate="none",
    )
    try:
        return time_ops(alone, schedule).makespan
    except DeadlockError:
        return np.inf


policy = Static(orders=orders, traversal="loop", chunks=2, chunks_from=2, chunks_to=MOST_CHUNKS)
