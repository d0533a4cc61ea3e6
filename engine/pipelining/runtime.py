"""Builds torch's runtime of pipelines from a Schedule.

The schedule says what each rank computes and sends, and in which order. torch's `PipelineStage` holds the
model, and its `_PipelineScheduleRuntime` computes, sends and receives. One of torch's stages is one position
of the schedule's path, so a rank with two model chunks has two of them (engine.schedule.torch_actions).

torch 2.13.0 marks the runtime as internal; this module and `exchange` are all that know it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    _Action,
    _add_unshard_reshard,
    _PipelineScheduleRuntime,
)

from engine.pipelining.exchange import check_exchange
from engine.schedule.ir import Schedule
from engine.schedule.torch_actions import add_reductions, torch_actions
from engine.schedule.torch_exchange import add_exchange


def positions_of(schedule: Schedule, rank: int) -> tuple[int, ...]:
    """The positions that a rank holds, which are the indexes of its PipelineStages, in order of chunks."""
    if not 0 <= rank < schedule.stages:
        raise ValueError(f"rank {rank}: must be from 0 to {schedule.stages - 1}")
    return tuple(int(position) for position in schedule.traversal.position_of[rank])


def runtime_of(
    schedule: Schedule,
    stages: Sequence[PipelineStage],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    pipeline: int = 0,
    **options: Any,
) -> _PipelineScheduleRuntime:
    """Return torch's runtime with this schedule; its `step` runs one iteration.

    Parameters
    ----------
    stages : of this rank, with the indexes that `positions_of` gives; in all there are as many as the path
        has positions. Their process group has one rank for each stage of the schedule.
    loss : from the output and the target of a microbatch.
    pipeline : of the cell, whose order is taken.
    options : further arguments of the runtime, such as `scale_grads`.

    Raises
    ------
    ValueError
        The stages are not those of this rank, torch has no action for an op of the schedule, or its ranks
        would wait for each other.
    """
    computed = torch_actions(schedule, pipeline)
    _check_stages(schedule, stages)
    # What a stage that is sharded with FSDP needs; of no effect on others.
    sharded = [[str(action) for action in _add_unshard_reshard(row)] for row in _parsed(computed)]
    actions = _parsed(add_exchange(add_reductions(sharded), schedule, pipeline))
    runtime = _PipelineScheduleRuntime(list(stages), schedule.microbatches, loss_fn=loss, **options)
    runtime.pipeline_order = dict(enumerate(_parsed(computed)))
    runtime._prepare_schedule_with_comms(dict(enumerate(actions)), format="compute_comms")
    check_exchange(runtime.pipeline_order_with_comms, runtime.stage_index_to_group_rank)
    return runtime


def _parsed(rows: Sequence[Sequence[str]]) -> list[list[_Action | None]]:
    return [[_Action.from_str(action) for action in row] for row in rows]


def _check_stages(schedule: Schedule, stages: Sequence[PipelineStage]) -> None:
    if not stages:
        raise ValueError("stages: empty: must be those of this rank")
    first = stages[0]
    if first.group_size != schedule.stages:
        raise ValueError(
            f"process group of {first.group_size} ranks: the schedule has {schedule.stages} stages"
        )
    length = len(schedule.traversal.positions)
    if first.num_stages != length:
        raise ValueError(f"num_stages {first.num_stages}: the schedule's path has {length} positions")
    indexes = tuple(sorted(stage.stage_index for stage in stages))
    expected = tuple(sorted(positions_of(schedule, first.group_rank)))
    if indexes != expected:
        raise ValueError(f"stages {indexes} on rank {first.group_rank}: must be {expected}")
