"""The most memory that the GPUs of each stage need while they follow a schedule."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.cluster.gpus import Gpu
from engine.model.memory import StageMemory
from engine.plan.result import MemoryUse
from engine.plan.stages import Stages
from engine.schedule import OpKind, Schedule
from engine.schedule.ir import NO_OP


def memory_per_stage(
    stages: Stages, gpus: tuple[Gpu, ...], schedule: Schedule
) -> tuple[MemoryUse, ...] | None:
    """`held_bytes` by part, stage i on `gpus[i]`; None if the memory of `stages` is not known."""
    by_chunk = None if schedule.chunks == 1 else stages.memory_by_chunk(gpus, schedule.traversal)
    memory, chunks = by_chunk or (stages.memory_of(gpus), None)
    held = held_bytes(memory, schedule, chunks)
    if memory is None or held is None:
        return None
    return tuple(
        MemoryUse(
            gpu_bytes=round(gpu.memory_bytes),
            state_bytes=round(stage.state_bytes),
            activation_bytes=round(total_bytes - stage.always_bytes),
            serving_bytes=round(stage.serving_bytes),
        )
        for stage, gpu, total_bytes in zip(memory, gpus, held.tolist(), strict=True)
    )


def held_bytes(
    memory: tuple[StageMemory, ...] | None,
    schedule: Schedule,
    chunks: Sequence[Sequence[StageMemory]] | None = None,
) -> NDArray[np.float64] | None:
    """The most bytes on one GPU of each stage, shape (stages,); None if `memory` is.

    chunks : of each stage what each of its chunks holds of a microbatch; None: equal shares of the stage's.
    Memory reserved for prefill counts. A microbatch holds its inputs from the start of F to the end of B (of
    W if B is split), and all its activations from the start of R, or of an F that has no R.
    """
    if memory is None:
        return None
    ops = schedule.ops
    kinds = np.where(ops == NO_OP, NO_OP, ops & 3)
    ends = kinds == (OpKind.W if schedule.has(OpKind.W) else OpKind.B)
    begins = kinds == OpKind.F
    fills = (kinds == OpKind.R) | (begins & ~_recomputed(schedule, kinds))
    chunk = np.maximum(ops, 0) // 4 // schedule.microbatches
    stage = np.arange(len(memory))[:, None]

    def of_op(name: str) -> NDArray[np.float64]:
        """A figure of each op's chunk, shape of `ops`."""
        shares = [[getattr(one, name) / schedule.chunks] * schedule.chunks for one in memory]
        table = shares if chunks is None else [[getattr(one, name) for one in row] for row in chunks]
        return np.asarray(np.array(table)[stage, chunk])

    held = np.cumsum((begins.astype(np.int64) - ends) * of_op("stored_bytes"), axis=2)
    held = held + np.cumsum((fills.astype(np.int64) - ends) * of_op("full_bytes"), axis=2)
    if schedule.has(OpKind.W):
        backward = (kinds == OpKind.B).astype(np.int64)
        held = held + np.cumsum((backward - ends) * of_op("between_bytes"), axis=2)
    always = np.array([stage.always_bytes for stage in memory])
    once = np.array([stage.once_bytes for stage in memory])
    return np.asarray(always + once + np.max(held, axis=(0, 2)))


def _recomputed(schedule: Schedule, kinds: NDArray[np.int32]) -> NDArray[np.bool_]:
    """For each op, whether its microbatch (and chunk) has an R on that GPU, shape of `ops`."""
    pipelines, stages, _ = schedule.ops.shape
    has = np.zeros((pipelines, stages, schedule.chunks * schedule.microbatches), dtype=np.bool_)
    at = np.nonzero(kinds == OpKind.R)
    has[at[0], at[1], schedule.ops[at] >> 2] = True
    return np.take_along_axis(has, np.maximum(schedule.ops, 0) >> 2, axis=2)
