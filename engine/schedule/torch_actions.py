"""A schedule as the actions of torch.distributed.pipelining: per rank a list of texts such as ``0F3``.

torch numbers its *stages* along the path of a microbatch, which is what Meridian calls positions: a GPU with
two model chunks holds two of torch's stages. An action is ``<position><kind><microbatch>`` with the kinds F,
B (whole backward), I (its input part) and W (its weight part). REDUCE_GRAD scales a position's gradients, and
sums them where torch holds replicas. `torch_exchange` adds sends and receives.

Source: torch 2.13.0, torch/distributed/pipelining/schedules.py, `_Action`.
"""

import csv
import io
import re
from collections.abc import Sequence

from engine.schedule.ir import OpKind, Schedule

_ADDS = re.compile(r"(\d+)[BW]\d+")


def torch_actions(schedule: Schedule, pipeline: int = 0) -> list[list[str]]:
    """The actions of one pipeline's ranks in order; rank s is stage s.

    Raises
    ------
    ValueError
        torch's runtime cannot run this order: it recomputes in an op of its own, or runs the forwards of the
        last position out of microbatch order.
    """
    for stage in range(schedule.stages):
        _refuse_recomputation(schedule, pipeline, stage)
    _refuse_loss_order(schedule, pipeline)
    letter = {OpKind.F: "F", OpKind.B: "I" if schedule.has(OpKind.W) else "B", OpKind.W: "W"}
    position_of = schedule.traversal.position_of
    return [
        [
            f"{position_of[stage, op.chunk]}{letter[op.kind]}{op.microbatch}"
            for op in schedule.order(pipeline, stage)
        ]
        for stage in range(schedule.stages)
    ]


def add_reductions(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Put REDUCE_GRAD of each position behind the last op that adds to its gradients."""
    return [_with_reductions(row) for row in rows]


def _with_reductions(row: Sequence[str]) -> list[str]:
    last = {match[1]: at for at, action in enumerate(row) if (match := _ADDS.fullmatch(action))}
    behind = {at: f"{position}REDUCE_GRAD" for position, at in last.items()}
    return [one for at, action in enumerate(row) for one in (action, behind.get(at)) if one is not None]


def torch_csv(rows: Sequence[Sequence[str]]) -> str:
    """The actions as the CSV of `_PipelineScheduleRuntime._load_csv`, one row per rank."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _refuse_recomputation(schedule: Schedule, pipeline: int, stage: int) -> None:
    recomputed = [op for op in schedule.order(pipeline, stage) if op.kind is OpKind.R]
    if recomputed:
        raise ValueError(
            f"P{pipeline} S{stage} runs {recomputed[0]}, and torch has no action for recomputation: "
            "set times.recompute to 0, add its time to times.backward, and use torch.utils.checkpoint in the "
            "stages"
        )


def _refuse_loss_order(schedule: Schedule, pipeline: int) -> None:
    """torch takes the loss of microbatch m from the m-th forward of its last stage."""
    stage, chunk = schedule.traversal.positions[-1]
    forwards = (op for op in schedule.order(pipeline, stage) if (op.kind, op.chunk) == (OpKind.F, chunk))
    for microbatch, op in enumerate(forwards):
        if op.microbatch != microbatch:
            raise ValueError(
                f"P{pipeline} S{stage} runs {op} where torch expects microbatch {microbatch}: "
                "the last position must run its forwards in microbatch order"
            )
