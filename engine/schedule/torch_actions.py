"""A schedule as the actions of torch.distributed.pipelining: per rank a list of texts such as ``0F3``.

torch numbers its *stages* along the path of a microbatch, which is what Meridian calls positions: a GPU with
two model chunks holds two of torch's stages. An action is ``<position><kind><microbatch>`` with the kinds F,
B (whole backward), I (its input part) and W (its weight part). `_PipelineScheduleRuntime._load_csv` reads the
lists as CSV, one row per rank, and adds sends and receives itself: each output leaves as soon as it is there.

Source: torch 2.13.0, torch/distributed/pipelining/schedules.py, `_Action` and `_add_send_recv`.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Sequence

from engine.schedule.ir import OpKind, Schedule


def torch_actions(schedule: Schedule, pipeline: int = 0) -> list[list[str]]:
    """The actions of one pipeline's ranks in order; rank s is stage s.

    Raises
    ------
    ValueError
        torch's runtime cannot run this order: it recomputes in an op of its own, runs the forwards of the
        last position out of microbatch order, or holds an output back on a link.
    """
    for stage in range(schedule.stages):
        _refuse_recomputation(schedule, pipeline, stage)
    _refuse_loss_order(schedule, pipeline)
    _refuse_link_order(schedule, pipeline)
    letter = {OpKind.F: "F", OpKind.B: "I" if schedule.has(OpKind.W) else "B", OpKind.W: "W"}
    position_of = schedule.traversal.position_of
    return [
        [
            f"{position_of[stage, op.chunk]}{letter[op.kind]}{op.microbatch}"
            for op in schedule.order(pipeline, stage)
        ]
        for stage in range(schedule.stages)
    ]


def torch_csv(actions: Sequence[Sequence[str]]) -> str:
    """The lists of `torch_actions` as the CSV of `_load_csv` (format ``compute_only``)."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(actions)
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


def _refuse_link_order(schedule: Schedule, pipeline: int) -> None:
    """A link of the schedule sends this pipeline's outputs in another order than they are made in."""
    outputs = _outputs(schedule, pipeline)
    for link in schedule.link_order:
        planned = [
            (sent.microbatch, sent.chunk) for sent in schedule.transfers(*link) if sent.pipeline == pipeline
        ]
        for sent, made in zip(planned, outputs[link], strict=True):
            if sent != made:
                raise ValueError(
                    f"link {link[0]}>{link[1]} of P{pipeline} sends microbatch {sent[0]} of chunk {sent[1]} "
                    f"before microbatch {made[0]} of chunk {made[1]}, which is there first: "
                    "torch sends every output as soon as it is there"
                )


def _outputs(schedule: Schedule, pipeline: int) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(microbatch, chunk) of what each link carries for one pipeline, in the order in which it is made."""
    path = schedule.traversal
    outputs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for stage in range(schedule.stages):
        for op in schedule.order(pipeline, stage):
            forward = op.kind is OpKind.F
            edge = int(path.position_of[stage, op.chunk]) - (0 if forward else 1)
            if op.kind is OpKind.W or not 0 <= edge < len(path.hop_of) or path.hop_of[edge] < 0:
                continue
            hop = int(path.hop_of[edge])
            onward = forward == (path.direction_of[edge] == 0)
            outputs[(hop, hop + 1) if onward else (hop + 1, hop)].append((op.microbatch, op.chunk))
    return outputs
