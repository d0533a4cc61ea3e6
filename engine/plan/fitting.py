"""Schedules that the memory of the GPUs holds.

The limit of microbatches in flight is counted for stages that the model goes straight through. In chunks a
stage may hold more: a wave has the head on the GPU of the embedding, and keeps it of the microbatches of one
chunk alone. A split backward pass holds gradients between B and W. So what such a schedule holds is counted
once it is there, and where it is too much, the limits are lowered.

A list schedule may get longer with more room. So where some stages have more room than others, the schedule
for one limit, that of the stage with the least room, is built too.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from engine.cluster.gpus import Gpu
from engine.errors import Infeasible
from engine.plan.held import memory_per_stage
from engine.plan.result import MemoryUse
from engine.plan.stages import Stages, of_margin
from engine.schedule import OpKind, Schedule
from engine.schedule.ir import NO_OP
from engine.schedule.scenario import LIMITS, Scenario
from engine.simulate import Timeline

# A timeline, and what it is of.
Timed = TypeVar("Timed", bound=tuple[Timeline, Any])
SAME = 1e-9


def fits(stages: Stages, gpus: tuple[Gpu, ...], schedule: Schedule) -> bool:
    """Whether `gpus[i]` holds what stage i needs; `schedule` obeys the limits of its scenario."""
    return not _over(stages, gpus, schedule)


def fitting(
    scenario: Scenario,
    stages: Stages,
    gpus: tuple[Gpu, ...],
    build: Callable[[Scenario], Timed | Infeasible],
) -> tuple[Timed, bool] | Infeasible:
    """The fastest of what `build` builds that fits, and whether its limits are lower than the scenario's; or
    why nothing fits.

    If the schedule of the scenario does not fit, the largest cap on its limits with which one does.
    """
    built = build(scenario)
    if isinstance(built, Infeasible):
        return built
    over = _over(stages, gpus, built[0].schedule)
    if over:
        lowered = _lowered(scenario, stages, gpus, build)
        return Infeasible(reason=_too_much(scenario, gpus, over)) if lowered is None else (lowered, True)
    limits = scenario.limits("memory_limit")
    if limits.min() < limits.max():
        even = build(_capped(scenario, int(limits.min())))
        if not isinstance(even, Infeasible):
            is_better = even[0].makespan < built[0].makespan * (1 - SAME)
            if is_better and fits(stages, gpus, even[0].schedule):
                return even, True
    return built, False


def _lowered(
    scenario: Scenario,
    stages: Stages,
    gpus: tuple[Gpu, ...],
    build: Callable[[Scenario], Timed | Infeasible],
) -> Timed | None:
    """What `build` builds with the largest cap on the limits whose schedule fits, by bisection."""
    best: Timed | None = None
    low, high = 1, int(scenario.limits("memory_limit").max()) - 1
    while low <= high:
        limit = (low + high) // 2
        lower = build(_capped(scenario, limit))
        if not isinstance(lower, Infeasible) and fits(stages, gpus, lower[0].schedule):
            best, low = lower, limit + 1
        else:
            high = limit - 1
    return best


def _capped(scenario: Scenario, most: int) -> Scenario:
    """`scenario` with no limit of a stage above `most`."""
    limits: dict[str, Any] = {name: np.minimum(scenario.limits(name), most).tolist() for name in LIMITS}
    return scenario.model_copy(update=limits)


def _over(stages: Stages, gpus: tuple[Gpu, ...], schedule: Schedule) -> dict[int, MemoryUse]:
    """The stages that need more than their GPU has."""
    if schedule.chunks == 1 and not _splits(schedule):
        return {}  # its limits are those of this memory
    uses = memory_per_stage(stages, gpus, schedule) or ()
    return {i: use for i, use in enumerate(uses) if use.total_bytes > round(gpus[i].usable_bytes)}


def _splits(schedule: Schedule) -> bool:
    """Whether backward passes are split: all are, or none."""
    first = schedule.ops[0, 0]
    return bool(np.any((first & 3 == OpKind.W) & (first != NO_OP)))


def _too_much(scenario: Scenario, gpus: Sequence[Gpu], over: dict[int, MemoryUse]) -> str:
    stage, use = max(over.items(), key=lambda item: item[1].total_bytes - item[1].gpu_bytes)
    needed = f"stage {stage} needs {use.total_bytes / 1e9:.1f} GB per GPU with {scenario.policy}"
    return f"{needed}{of_margin(gpus[stage])}; {gpus[stage].name} has {use.gpu_bytes / 1e9:.1f}"
