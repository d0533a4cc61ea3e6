"""Schedules that the memory of the GPUs holds.

The limit of microbatches in flight is counted for stages that the model goes straight through. In chunks a
stage may hold more: a wave has the head on the GPU of the embedding, and keeps it of the microbatches of one
chunk alone. A split backward pass holds gradients between B and W. So what such a schedule holds is counted
once it is there, and where it is too much, the limit is lowered.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from engine.cluster.gpus import Gpu
from engine.errors import Infeasible
from engine.plan.held import memory_per_stage
from engine.plan.result import MemoryUse
from engine.plan.stages import Stages
from engine.schedule import OpKind, Schedule
from engine.schedule.ir import NO_OP
from engine.schedule.scenario import LIMITS, Scenario

B = TypeVar("B")


def fits(stages: Stages, gpus: tuple[Gpu, ...], schedule: Schedule) -> bool:
    """Whether `gpus[i]` holds what stage i needs; `schedule` obeys the limits of its scenario."""
    return not _over(stages, gpus, schedule)


def fitting(
    scenario: Scenario,
    stages: Stages,
    gpus: tuple[Gpu, ...],
    build: Callable[[Scenario], B | Infeasible],
    schedule_of: Callable[[B], Schedule],
) -> tuple[B, bool] | Infeasible:
    """What `build` builds with the largest limit whose schedule fits, and whether that is lower than the
    scenario's; or why none does.
    """
    built = build(scenario)
    if isinstance(built, Infeasible):
        return built
    over = _over(stages, gpus, schedule_of(built))
    if not over:
        return built, False
    best: B | None = None
    low, high = 1, int(scenario.limits("memory_limit").max()) - 1
    while low <= high:
        limit = (low + high) // 2
        lower = build(_capped(scenario, limit))
        if not isinstance(lower, Infeasible) and fits(stages, gpus, schedule_of(lower)):
            best, low = lower, limit + 1
        else:
            high = limit - 1
    return Infeasible(reason=_too_much(scenario, gpus, over)) if best is None else (best, True)


def _capped(scenario: Scenario, most: int) -> Scenario:
    """`scenario` with no limit of a stage above `most`."""
    limits: dict[str, Any] = {name: np.minimum(scenario.limits(name), most).tolist() for name in LIMITS}
    return scenario.model_copy(update=limits)


def _over(stages: Stages, gpus: tuple[Gpu, ...], schedule: Schedule) -> dict[int, MemoryUse]:
    """The stages that need more than their GPU has."""
    if schedule.chunks == 1 and not _splits(schedule):
        return {}  # its limits are those of this memory
    uses = memory_per_stage(stages, gpus, schedule) or ()
    return {stage: use for stage, use in enumerate(uses) if use.total_bytes > use.gpu_bytes}


def _splits(schedule: Schedule) -> bool:
    """Whether backward passes are split: all are, or none."""
    first = schedule.ops[0, 0]
    return bool(np.any((first & 3 == OpKind.W) & (first != NO_OP)))


def _too_much(scenario: Scenario, gpus: Sequence[Gpu], over: dict[int, MemoryUse]) -> str:
    stage, use = max(over.items(), key=lambda item: item[1].total_bytes - item[1].gpu_bytes)
    needed = f"stage {stage} needs {use.total_bytes / 1e9:.1f} GB per GPU with {scenario.policy}"
    return f"{needed}; {gpus[stage].name} has {use.gpu_bytes / 1e9:.1f}"
