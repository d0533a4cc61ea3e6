"""Between schedules and the solver's variables: a schedule as start times, start times as a schedule."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.schedule.optimal_problem import OpKey, Problem, TransferKey
from engine.schedule.scenario import Scenario
from engine.schedule.timing import time_ops
from engine.schedule.traversal import WITHIN_STAGE

Key = TypeVar("Key", OpKey, TransferKey)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Start of every op and transfer, in units; an R that is missing is elided."""

    start: dict[OpKey, int]
    sent: dict[TransferKey, int]


def times_of(problem: Problem, scenario: Scenario, schedule: Schedule) -> Times:
    """Start of every op and transfer of `schedule`, rounded down to units (which keeps every wait).

    Microbatches of each kind and position are renumbered in the order in which they start, pipelines in the
    order in which the model numbers them. If the problem splits B and the schedule does not, W follows its B
    at once.
    """
    timing = time_ops(scenario, schedule)
    pipelines = _numbered(problem, timing.transfer_end)
    start: dict[OpKey, int] = {}
    for k, s, i in np.argwhere(schedule.ops[pipelines] != NO_OP).tolist():
        op = schedule.decode(int(schedule.ops[pipelines[k], s, i]))
        position = int(problem.traversal.position_of[s, op.chunk])
        start[op.kind, k, position, op.microbatch] = _units(problem, timing.op_start[pipelines[k], s, i])
    if problem.split and not schedule.has(OpKind.W):
        for (kind, k, position, m), begin in list(start.items()):
            if kind == OpKind.B:
                start[OpKind.W, k, position, m] = begin + problem.length(OpKind.B, position)
    sent: dict[TransferKey, int] = {}
    for payload, edge, k, m in np.argwhere(~np.isnan(timing.transfer_start[:, :, pipelines])).tolist():
        sent[payload, edge, k, m] = _units(problem, timing.transfer_start[payload, edge, pipelines[k], m])
    return Times(start=_sorted(start), sent=_sorted(sent))


def _units(problem: Problem, time: float) -> int:
    return int(np.round(time / problem.unit) if problem.exact else np.floor(time / problem.unit))


def _numbered(problem: Problem, transfer_end: NDArray[np.float64]) -> list[int]:
    """Pipelines in the order of their first activations on the first shared hop."""
    for edge in range(problem.positions - 1):
        if problem.crosses(edge) and problem.shared[problem.traversal.hop_of[edge]]:
            return [int(k) for k in np.argsort(transfer_end[0, edge, :, :].min(axis=1), kind="stable")]
    return [0]


def _sorted(times: dict[Key, int]) -> dict[Key, int]:
    """Times of each class (all but the microbatch) handed out in microbatch order."""
    classes: dict[tuple[int, ...], list[Key]] = {}
    for key in times:
        classes.setdefault(key[:3], []).append(key)
    return {
        key: time
        for keys in classes.values()
        for key, time in zip(sorted(keys), sorted(times[key] for key in keys), strict=True)
    }


def schedule_of(problem: Problem, scenario: Scenario, times: Times) -> Schedule:
    """The Schedule of an answer: the orders of ops and of transfers, without their times."""
    ops = _ops(problem, times.start)
    link_order = _link_order(problem, times)
    if problem.pipelines < scenario.pipelines:
        # Pipelines with links of their own do not meet: each does what the one computed does.
        ops = np.broadcast_to(ops, (scenario.pipelines, *ops.shape[1:])).copy()
        per_pipeline = problem.traversal.chunks * problem.microbatches
        first = np.arange(scenario.pipelines, dtype=np.int32)[:, None] * per_pipeline
        link_order = {link: (first + codes).T.ravel().astype(np.int32) for link, codes in link_order.items()}
    return Schedule(
        microbatches=problem.microbatches,
        traversal=problem.traversal,
        ops=ops,
        sharing="temporal" if problem.temporal else "spatial",
        link_order=link_order,
        recompute_gate="none",
    )


def _ops(problem: Problem, start: dict[OpKey, int]) -> NDArray[np.int32]:
    rows: list[list[list[tuple[int, int, int, int, int]]]] = [
        [[] for _ in range(problem.traversal.stages)] for _ in range(problem.pipelines)
    ]
    for (kind, k, position, m), begin in start.items():
        stage, chunk = problem.traversal.positions[position]
        code = (chunk * problem.microbatches + m) * 4 + kind
        # Ops of no duration come before ops that start with them, so they delay nothing.
        rows[k][stage].append((begin, begin + problem.length(kind, position), m, kind, code))
    longest = max(len(row) for stages in rows for row in stages)
    ops = np.full((problem.pipelines, problem.traversal.stages, longest), NO_OP, dtype=np.int32)
    for k, stages in enumerate(rows):
        for stage, row in enumerate(stages):
            ops[k, stage, : len(row)] = [code for *_, code in sorted(row)]
    return ops


def one_by_one(problem: Problem) -> Times:
    """One microbatch at a time through all positions and back: within any limit, and slow."""
    start: dict[OpKey, int] = {}
    pause = int(problem.durations.max()) + 1
    for m in range(problem.microbatches):
        now = m * 4 * problem.positions * pause
        for k in range(problem.pipelines):
            for position in range(problem.positions):
                start[OpKind.F, k, position, m] = now + position * pause
            for position in range(problem.positions):
                back = now + (4 * problem.positions - 3 * (position + 1)) * pause
                highest = position == problem.positions_on(problem.stage(position))[-1]
                if problem.recomputes(position) and not highest:
                    start[OpKind.R, k, position, m] = back
                start[OpKind.B, k, position, m] = back + pause
                if problem.split:
                    start[OpKind.W, k, position, m] = back + 2 * pause
    return Times(start=start, sent={})


def _link_order(problem: Problem, times: Times) -> dict[tuple[int, int], NDArray[np.int32]]:
    """The order on every link that a Schedule lists: shared ones, or every pipeline's own."""
    traversal = problem.traversal
    orders: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    for edge in range(problem.positions - 1):
        hop = int(traversal.hop_of[edge])
        if hop == WITHIN_STAGE or problem.ordered_by_ops(hop):
            continue
        for payload in range(2):
            direction = int(traversal.direction_of[edge]) ^ payload
            link = (hop + 1, hop) if direction else (hop, hop + 1)
            for k in range(problem.pipelines):
                for m in range(problem.microbatches):
                    key = (payload, edge, k, m)
                    kind, _, position, _ = producer = problem.producer(key)
                    ended = times.start[producer] + problem.length(kind, position)
                    chunk = int(traversal.chunk_of[position])
                    code = (k * traversal.chunks + chunk) * problem.microbatches + m
                    orders.setdefault(link, []).append((times.sent.get(key, ended), ended, k, code))
    return {
        link: np.array([code for *_, code in sorted(sends)], dtype=np.int32) for link, sends in orders.items()
    }
