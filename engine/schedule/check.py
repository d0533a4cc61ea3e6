"""Checks a schedule that a person wrote: every op once, in a possible order, within the limits."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from engine.schedule.grid import order_grid
from engine.schedule.ir import Op, OpKind, Schedule
from engine.schedule.scenario import LIMITS, Scenario
from engine.schedule.traversal import WITHIN_STAGE


def fault_of(scenario: Scenario, schedule: Schedule) -> str | None:
    """The first fault of `schedule` in one line, then a grid with the op in brackets; None if it has none.

    A schedule without fault has every op and transfer exactly once, in an order that each GPU can follow and
    within both limits. Timing it shows whether GPUs wait for each other.
    """
    return (
        _shape_fault(scenario, schedule)
        or _op_fault(scenario, schedule)
        or _link_fault(schedule)
        or _unlisted(scenario, schedule)
    )


def fits(scenario: Scenario, schedule: Schedule) -> bool:
    """Whether the schedule is for this many pipelines, stages and microbatches."""
    return _shape_fault(scenario, schedule) is None


def _shape_fault(scenario: Scenario, schedule: Schedule) -> str | None:
    expected = (scenario.pipelines, scenario.stages, scenario.microbatches)
    actual = (schedule.pipelines, schedule.stages, schedule.microbatches)
    if expected == actual:
        return None
    return f"schedule: pipelines, stages, microbatches are {actual}; the scenario has {expected}"


def _op_fault(scenario: Scenario, schedule: Schedule) -> str | None:
    split = schedule.has(OpKind.W)
    if split and not np.any(scenario.times.weight):
        return "schedule: has W, but times.weight is 0: B cannot be split"
    recomputes = scenario.per_stage("recompute") > 0
    for pipeline, stage in np.ndindex(schedule.pipelines, schedule.stages):
        order = schedule.order(pipeline, stage)
        for at, fault in _faults(order, schedule, split, bool(recomputes[stage])):
            return _marked(schedule, pipeline, stage, at, fault)
        most_held, most_full = (int(scenario.limits(name)[stage]) for name in LIMITS)
        if not recomputes[stage]:
            most_full = scenario.microbatches
        for at, fault in _limit_faults(order, schedule.chunks, most_held, most_full):
            return _marked(schedule, pipeline, stage, at, fault)
    return None


def _faults(
    order: tuple[Op, ...], schedule: Schedule, split: bool, recomputes: bool
) -> Iterator[tuple[int, str]]:
    """Indexes of ops and their faults: an op twice, too early, not needed, or missing."""
    index: dict[Op, int] = {}
    for at, op in enumerate(order):
        if op in index:
            yield at, f"{op} appears twice"
        if op.kind == OpKind.R and not recomputes:
            yield at, f"{op}, but this stage has no recompute time"
        missing = _needs(op, order[at - 1] if at else None, recomputes)
        if missing is not None and missing not in index:
            yield at, f"{op} before {missing}"
        index[op] = at
    last = OpKind.W if split else OpKind.B
    for kind in (OpKind.F, OpKind.B, last):
        for chunk in range(schedule.chunks):
            for microbatch in range(schedule.microbatches):
                if Op(kind, microbatch, chunk) not in index:
                    yield len(order) - 1, f"{Op(kind, microbatch, chunk)} is missing"


def _needs(op: Op, before: Op | None, recomputes: bool) -> Op | None:
    """The op that must come before `op` on its GPU."""
    forward = Op(OpKind.F, op.microbatch, op.chunk)
    if op.kind == OpKind.B and recomputes and before != forward:
        return Op(OpKind.R, op.microbatch, op.chunk)
    if op.kind == OpKind.W:
        return Op(OpKind.B, op.microbatch, op.chunk)
    return forward if op.kind in (OpKind.B, OpKind.R) else None


def _limit_faults(
    order: tuple[Op, ...], chunks: int, most_held: int, most_full: int
) -> Iterator[tuple[int, str]]:
    split = any(op.kind == OpKind.W for op in order)
    done = OpKind.W if split else OpKind.B
    again = {(op.microbatch, op.chunk) for op in order if op.kind == OpKind.R}
    held = full = 0
    for at, op in enumerate(order):
        key = (op.microbatch, op.chunk)
        held += (op.kind == OpKind.F) - (op.kind == done)
        opens = op.kind == OpKind.R or (op.kind == OpKind.F and key not in again)
        full += int(opens) - (op.kind == done)
        if held > most_held * chunks:
            yield at, f"memory_limit: {held / chunks:g} microbatches held at {op}; {most_held} allowed"
        if full > most_full * chunks:
            yield at, f"full_limit: {full / chunks:g} full sets held at {op}; {most_full} allowed"


def _link_fault(schedule: Schedule) -> str | None:
    traversal, per_pipeline = schedule.traversal, schedule.chunks * schedule.microbatches
    for (sender, receiver), codes in schedule.link_order.items():
        name = f"link {sender}>{receiver}"
        hop, direction = min(sender, receiver), int(sender > receiver)
        if abs(sender - receiver) != 1 or hop >= schedule.stages or not np.any(traversal.hop_of == hop):
            return f"{name}: the schedule's traversal has no such hop"
        producing = [c for c, x in enumerate(traversal.transfer_of[direction, hop].tolist()) if x >= 0]
        wanted = {
            p * per_pipeline + c * schedule.microbatches + m
            for p in range(schedule.pipelines)
            for c in producing
            for m in range(schedule.microbatches)
        }
        fault = _odd_one(Counter(codes.tolist()), wanted)
        if fault is not None:
            code, what = fault
            return f"{name}: {schedule.decode_transfer(code)} {what}"
    return None


def _odd_one(sent: Counter[int], wanted: set[int]) -> tuple[int, str] | None:
    for code, times in sent.items():
        if code not in wanted:
            return code, "does not cross here"
        if times > 1:
            return code, "is sent twice"
    missing = min(wanted - set(sent), default=None)
    return None if missing is None else (missing, "is missing")


def _unlisted(scenario: Scenario, schedule: Schedule) -> str | None:
    crossed = {int(hop) for hop in schedule.traversal.hop_of if hop != WITHIN_STAGE}
    for hop in np.flatnonzero(scenario.shared_hops(schedule.sharing)).tolist():
        for link in ((hop, hop + 1), (hop + 1, hop)):
            if hop in crossed and link not in schedule.link_order:
                return f"link {link[0]}>{link[1]}: is shared by the pipelines, so its order must be listed"
    return None


def _marked(schedule: Schedule, pipeline: int, stage: int, at: int, fault: str) -> str:
    """The fault, and the row of its GPU with the op in brackets; other rows are shown unmarked."""
    marks = np.full((schedule.pipelines, schedule.stages), np.iinfo(np.int64).max)
    marks[pipeline, stage] = at
    return f"schedule: P{pipeline} S{stage}: {fault}\n{order_grid(schedule, marks)}"
