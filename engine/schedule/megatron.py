"""A schedule as the settings of Megatron-LM's pipeline, where Megatron runs exactly that order.

Megatron takes no list of ops: its two pipelines follow from the number of stages, of model chunks, of
microbatches, and of the microbatches that go through a chunk in a row. So an order is handed over as these
numbers, after every op of it was compared with what Megatron runs under them.

Source: megatron-core 0.16.1, megatron/core/pipeline_parallel/schedules.py:
`forward_backward_pipelining_without_interleaving`, `forward_backward_pipelining_with_interleaving`,
`get_schedule_table` and `get_pp_rank_microbatches`.
"""

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from engine.schedule.ir import Op, OpKind, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronPipeline:
    """The numbers that Megatron's order follows from.

    chunks : model chunks of a stage; 1: 1F1B, more: interleaved 1F1B.
    group : microbatches that go through a chunk in a row, if interleaved.
    """

    stages: int
    chunks: int
    microbatches: int
    group: int

    def arguments(self) -> list[str]:
        """The options of Megatron-LM's training command that say so.

        The number of microbatches is the global batch over micro-batch size and data-parallel size there.
        """
        sizes = ["--pipeline-model-parallel-size", str(self.stages)]
        if self.chunks == 1:
            return sizes
        return [
            *sizes,
            "--num-virtual-stages-per-pipeline-rank",
            str(self.chunks),
            "--microbatch-group-size-per-virtual-pipeline-stage",
            str(self.group),
        ]

    def config(self) -> dict[str, Any]:
        """The same as fields of megatron.core's `ModelParallelConfig`."""
        interleaves = self.chunks > 1
        return {
            "pipeline_model_parallel_size": self.stages,
            "virtual_pipeline_model_parallel_size": self.chunks if interleaves else None,
            "microbatch_group_size_per_vp_stage": self.group if interleaves else None,
            "overlap_p2p_comm": interleaves,
            "batch_p2p_comm": not interleaves,
        }

    def order(self, stage: int) -> list[Op]:
        """What Megatron runs on the rank of a stage, in order."""
        forwards = self._forwards()
        backwards = [(m, self.chunks - 1 - chunk) for m, chunk in forwards]
        further = self.stages - 1 - stage
        warm_up = further if self.chunks == 1 else 2 * further + (self.chunks - 1) * self.group
        warm_up = min(warm_up, len(forwards))
        ops = [Op(OpKind.F, *each) for each in forwards[:warm_up]]
        for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
            ops += [Op(OpKind.F, *forward), Op(OpKind.B, *backward)]
        return ops + [Op(OpKind.B, *each) for each in backwards[len(forwards) - warm_up :]]

    def _forwards(self) -> list[tuple[int, int]]:
        """(microbatch, chunk) in the order of the forwards: Megatron's `get_schedule_table`."""
        return [
            (m, chunk)
            for first in range(0, self.microbatches, self.group)
            for chunk in range(self.chunks)
            for m in range(first, min(first + self.group, self.microbatches))
        ]


def megatron_pipeline(schedule: Schedule, pipeline: int = 0) -> MegatronPipeline:
    """The settings under which Megatron runs the order of one pipeline, op for op.

    Raises
    ------
    ValueError
        Megatron runs no such order; the message has the first op that differs, or the setting that Megatron
        refuses.
    """
    _refuse_kinds(schedule, pipeline)
    settings = MegatronPipeline(
        stages=schedule.stages,
        chunks=schedule.chunks,
        microbatches=schedule.microbatches,
        group=_group(schedule, pipeline),
    )
    _refuse_path(schedule)
    for stage in range(schedule.stages):
        pairs = zip_longest(schedule.order(pipeline, stage), settings.order(stage))
        for at, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                where = f"P{pipeline} S{stage}: op {at} is {ours or 'missing'}"
                name = "1F1B" if settings.chunks == 1 else f"interleaved 1F1B in groups of {settings.group}"
                raise ValueError(f"{where}, and {theirs or 'none'} in Megatron's {name}")
    _refuse_groups(settings)
    return settings


def _refuse_kinds(schedule: Schedule, pipeline: int) -> None:
    remedies = {
        OpKind.R: "set times.recompute to 0, add its time to times.backward, and let Megatron recompute in "
        "the backward pass",
        OpKind.W: "set times.weight to 0 and add its time to times.backward",
    }
    for stage in range(schedule.stages):
        for op in schedule.order(pipeline, stage):
            if op.kind in remedies:
                reason = "Megatron's pipeline has no op of that kind"
                raise ValueError(f"P{pipeline} S{stage} runs {op}, and {reason}: {remedies[op.kind]}")


def _refuse_path(schedule: Schedule) -> None:
    traversal = schedule.traversal
    if schedule.stages < 2:
        raise ValueError("one stage: Megatron has a pipeline from two stages on")
    if schedule.chunks > 1 and traversal.name != "loop":
        raise ValueError(f"a microbatch goes through the chunks in a {traversal.name}: Megatron has a loop")


def _group(schedule: Schedule, pipeline: int) -> int:
    """The forwards of chunk 0 with which the first stage begins, or all if there is one chunk."""
    order = schedule.order(pipeline, 0)
    further = (at for at, op in enumerate(order) if op.kind is OpKind.F and op.chunk != 0)
    return min(next(further, schedule.microbatches), schedule.microbatches)


def _refuse_groups(settings: MegatronPipeline) -> None:
    if settings.chunks == 1:
        return
    rest = settings.microbatches % settings.group
    if settings.group < settings.stages or 0 < rest < settings.stages:
        sizes = f"{settings.microbatches} microbatches in groups of {settings.group}"
        raise ValueError(f"{sizes}: Megatron needs at least {settings.stages}, the stages, in each group")
