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
    """When everything in `schedule` starts, rounded down to units (which keeps every wait).

    Microbatches of each kind and place are renumbered in the order in which they start, pipelines in the
    order in which the model numbers them. Where the schedule does not split B and the problem does, W follows
    its B at once.
    """
    timing = time_ops(scenario, schedule)
    pipelines = _numbered(problem, timing.transfer_end)
    start: dict[OpKey, int] = {}
    for k, s, i in np.argwhere(schedule.ops[pipelines] != NO_OP).tolist():
        op = schedule.decode(int(schedule.ops[pipelines[k], s, i]))
        place = int(problem.traversal.place_of[s, op.chunk])
        start[op.kind, k, place, op.microbatch] = _units(problem, timing.op_start[pipelines[k], s, i])
    if problem.split and not schedule.has(OpKind.W):
        for (kind, k, place, m), begin in list(start.items()):
            if kind == OpKind.B:
                start[OpKind.W, k, place, m] = begin + problem.length(OpKind.B, place)
    sent: dict[TransferKey, int] = {}
    for payload, edge, k, m in np.argwhere(~np.isnan(timing.transfer_start[:, :, pipelines])).tolist():
        sent[payload, edge, k, m] = _units(problem, timing.transfer_start[payload, edge, pipelines[k], m])
    return Times(start=_sorted(start), sent=_sorted(sent))


def _units(problem: Problem, time: float) -> int:
    return int(np.round(time / problem.unit) if problem.exact else np.floor(time / problem.unit))


def _numbered(problem: Problem, transfer_end: NDArray[np.float64]) -> list[int]:
    """Pipelines in the order in which their first activations cross the first shared hop."""
    for edge in range(problem.places - 1):
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
    for (kind, k, place, m), begin in start.items():
        stage, chunk = problem.traversal.places[place]
        code = (chunk * problem.microbatches + m) * 4 + kind
        # Ops without length come before what starts with them: they only give way.
        rows[k][stage].append((begin, begin + problem.length(kind, place), m, kind, code))
    longest = max(len(row) for stages in rows for row in stages)
    ops = np.full((problem.pipelines, problem.traversal.stages, longest), NO_OP, dtype=np.int32)
    for k, stages in enumerate(rows):
        for stage, row in enumerate(stages):
            ops[k, stage, : len(row)] = [code for *_, code in sorted(row)]
    return ops


def one_by_one(problem: Problem) -> Times:
    """One microbatch at a time through all places and back: within any limit, and slow."""
    start: dict[OpKey, int] = {}
    pause = int(problem.durations.max()) + 1
    for m in range(problem.microbatches):
        now = m * 4 * problem.places * pause
        for k in range(problem.pipelines):
            for place in range(problem.places):
                start[OpKind.F, k, place, m] = now + place * pause
            for place in range(problem.places):
                back = now + (4 * problem.places - 3 * (place + 1)) * pause
                highest = place == problem.places_on(problem.stage(place))[-1]
                if problem.recomputes(place) and not highest:
                    start[OpKind.R, k, place, m] = back
                start[OpKind.B, k, place, m] = back + pause
                if problem.split:
                    start[OpKind.W, k, place, m] = back + 2 * pause
    return Times(start=start, sent={})


def _link_order(problem: Problem, times: Times) -> dict[tuple[int, int], NDArray[np.int32]]:
    """The order on every link that a Schedule lists: shared ones, or every pipeline's own."""
    traversal = problem.traversal
    found: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    for edge in range(problem.places - 1):
        hop = int(traversal.hop_of[edge])
        if hop == WITHIN_STAGE or problem.ordered_by_ops(hop):
            continue
        for payload in range(2):
            direction = int(traversal.direction_of[edge]) ^ payload
            link = (hop + 1, hop) if direction else (hop, hop + 1)
            for k in range(problem.pipelines):
                for m in range(problem.microbatches):
                    key = (payload, edge, k, m)
                    kind, _, place, _ = maker = problem.maker(key)
                    made = times.start[maker] + problem.length(kind, place)
                    chunk = int(traversal.chunk_of[place])
                    code = (k * traversal.chunks + chunk) * problem.microbatches + m
                    found.setdefault(link, []).append((times.sent.get(key, made), made, k, code))
    return {
        link: np.array([code for *_, code in sorted(sends)], dtype=np.int32) for link, sends in found.items()
    }
