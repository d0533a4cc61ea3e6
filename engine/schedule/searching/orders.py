"""Converts starts of a problem's operations to a Schedule, and back."""

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.schedule.scenario import LIMITS, Scenario
from engine.schedule.searching.problem import Ints, SchedulingProblem
from engine.schedule.searching.timelines import UNPLACED
from engine.schedule.timing import Timing
from engine.schedule.traversal import WITHIN_STAGE

Codes = NDArray[np.int32]


def schedule_of(problem: SchedulingProblem, start: Ints) -> Schedule:
    """The order in which ops and transfers start; shape of `start` as in `MachineTimelines`.

    Raises
    ------
    ValueError
        An operation has not been placed.
    """
    if np.any(start[problem.exists] == UNPLACED):
        raise ValueError("not every operation has been placed")
    copies = problem.scenario.pipelines if problem.pipelines == 1 else 1
    ops = np.stack([_gpu_orders(problem, start, k) for k in range(problem.pipelines)])
    return Schedule(
        microbatches=problem.scenario.microbatches,
        traversal=problem.traversal,
        ops=np.repeat(ops, copies, axis=0),
        sharing=problem.frame.sharing,
        link_order=_link_orders(problem, start),
        recompute_gate="none",
    )


def _gpu_orders(problem: SchedulingProblem, start: Ints, k: int) -> Codes:
    """Op codes of one pipeline, shape (stages, longest)."""
    m = np.arange(problem.scenario.microbatches)
    last = problem.rows.positions - 1
    when: list[list[Ints]] = [[] for _ in range(problem.scenario.stages)]
    codes: list[list[Ints]] = [[] for _ in range(problem.scenario.stages)]
    for row in np.flatnonzero(problem.exists[: problem.rows.transfer]).tolist():
        kind, v = divmod(row, problem.rows.positions)
        stage, chunk = problem.traversal.positions[v]
        code = (chunk * len(m) + m) * 4
        kinds = (OpKind.F, OpKind.B) if row == problem.rows.backward + last else (OpKind(kind),)
        for part in kinds:
            # A W of no duration comes before operations that start with it.
            when[stage].append(2 * start[row, k] + (problem.arrays.duration[row] > 0))
            codes[stage].append(code + part)
    longest = max(sum(map(len, parts)) for parts in codes)
    table = np.full((problem.scenario.stages, longest), NO_OP, dtype=np.int32)
    for stage, parts in enumerate(codes):
        order = np.argsort(np.concatenate(when[stage]), kind="stable")
        table[stage, : len(order)] = np.concatenate(parts)[order]
    return table


def _link_orders(problem: SchedulingProblem, start: Ints) -> dict[tuple[int, int], Codes]:
    """Order on every shared link, and on every other link that a Schedule may list.

    Under temporal sharing every listed link is shared, so the others send in the order of their ops.
    """
    traversal, n = problem.traversal, problem.scenario.pipelines
    of = np.arange(n) % problem.pipelines
    m = np.arange(problem.scenario.microbatches)
    when: dict[tuple[int, int], list[Ints]] = {}
    codes: dict[tuple[int, int], list[Ints]] = {}
    for edge in np.flatnonzero(traversal.hop_of != WITHIN_STAGE).tolist():
        hop, direction = int(traversal.hop_of[edge]), int(traversal.direction_of[edge])
        if not problem.shared[hop] and problem.frame.sharing == "temporal":
            continue
        for payload, towards in enumerate((direction, 1 - direction)):
            link = (hop, hop + 1) if towards == 0 else (hop + 1, hop)
            sent = (np.arange(n)[:, None] * traversal.chunks + traversal.positions[edge + payload][1]) * len(
                m
            ) + m
            when.setdefault(link, []).append(_sent(problem, start, edge, payload)[of].ravel())
            codes.setdefault(link, []).append(sent.ravel())
    return {
        link: np.concatenate(parts)[np.argsort(np.concatenate(when[link]), kind="stable")].astype(np.int32)
        for link, parts in codes.items()
    }


def _sent(problem: SchedulingProblem, start: Ints, edge: int, payload: int) -> Ints:
    """When transfers over an edge begin, shape (pipelines, microbatches); at once if they take no time."""
    rows = problem.rows
    row = rows.transfer + payload * (rows.positions - 1) + edge
    if problem.exists[row]:
        return start[row]
    producer = rows.backward + edge + 1 if payload else edge
    return start[producer] + problem.arrays.duration[producer]


def keys_of(problem: SchedulingProblem, schedule: Schedule, timing: Timing) -> Ints:
    """Starts of a timed schedule's operations in ticks; sorting by them gives the schedule's order.

    An R that the schedule leaves out is UNPLACED.
    """
    arrays, rows = problem.arrays, problem.rows
    start = np.full((len(arrays.duration), arrays.pipelines, arrays.microbatches), UNPLACED, dtype=np.int64)
    k, s, i = np.nonzero(schedule.ops[: problem.pipelines] != NO_OP)
    code = schedule.ops[k, s, i]
    chunk, m = np.divmod(code >> 2, schedule.microbatches)
    start[(code & 3) * rows.positions + schedule.traversal.position_of[s, chunk], k, m] = problem.ticks(
        timing.op_start[k, s, i]
    )
    # F and B of the last position are one operation.
    both = rows.backward + rows.positions - 1
    start[both] = np.maximum(
        0, start[both] - problem.ticks(problem.row_times[rows.positions - 1 : rows.positions])
    )
    sent = timing.transfer_start[:, :, : problem.pipelines].reshape(-1, *start.shape[1:])
    crosses = problem.exists[rows.transfer :]
    start[rows.transfer :][crosses] = problem.ticks(sent[crosses])
    return start


def limits_hold(scenario: Scenario, schedule: Schedule) -> bool:
    """Whether every GPU keeps both limits, counted in chunks, and runs R wherever it must."""
    release = OpKind.W if schedule.has(OpKind.W) else OpKind.B
    most, most_full = (schedule.chunks * scenario.limits(name) for name in LIMITS)
    recomputes = scenario.per_stage("recompute") > 0
    for k, s in np.ndindex(*schedule.ops.shape[:2]):
        codes = schedule.ops[k, s][schedule.ops[k, s] != NO_OP]
        kind, own = codes & 3, codes >> 2
        has_again = np.isin(own, own[kind == OpKind.R])
        taken = np.cumsum(kind == OpKind.F) - np.cumsum(kind == release)
        begins = (kind == OpKind.R) | ((kind == OpKind.F) & ~has_again)
        full = np.cumsum(begins) - np.cumsum(kind == release)
        alone = np.flatnonzero((kind == OpKind.F) & ~has_again)
        if recomputes[s] and np.any((kind[alone + 1] != OpKind.B) | (own[alone + 1] != own[alone])):
            return False
        if taken.max() > most[s] or (recomputes[s] and full.max() > most_full[s]):
            return False
    return True
