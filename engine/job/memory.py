"""How much memory a GPU needs for its stage of a training job, before anything runs: the engine's memory
model, with what the executor keeps.

The executor keeps four fp32 (or fp64) numbers a parameter: weight, gradient and the two moments of AdamW; in
bf16 also the weight as it is computed with. With ZeRO-1 the replicas of a stage in one data centre share the
moments. It has no dropout, and computes a stage's blocks again in one go.
"""

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from engine.job.job import TrainJob
from engine.job.planned import schedule_of, wants_search
from engine.job.sections.device import BYTES_OF_DTYPE, BYTES_OF_PARAMETER
from engine.model.flops import Recompute
from engine.model.kernels import How
from engine.model.memory import CUDA_WORKSPACE_BYTES, Numbers
from engine.model.memory import StageMemory as Counted
from engine.model.memory import stage_memory as counted
from engine.plan.chunks import ByChunk, memory_by_chunk
from engine.plan.held import held_bytes
from engine.schedule.traversal import Traversal, straight
from engine.simulate import time_schedule

NUMBERS_PER_PARAMETER = 4  # weight, gradient, AdamW's two moments
MOMENTS_PER_PARAMETER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes that one GPU needs for its stage; `serving_bytes` of them for prefill."""

    stage: int
    state_bytes: int
    activation_bytes: int
    serving_bytes: int
    in_flight: int

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes + self.serving_bytes


def stage_memory(job: TrainJob) -> list[StageMemory]:
    """The memory of each stage, in order; `in_flight` is the most microbatches that the schedule holds there.

    Where the schedule is still to be searched for, as many as the search may hold.

    Raises
    ------
    InputError
        The job's limits leave no schedule.
    """
    if wants_search(job):
        counts, _ = _by_chunk(job, straight(job.cell.stages))
        limits = job.pass_scenario.limits("memory_limit").tolist()
        stages = enumerate(zip(counts, limits, strict=True))
        return [_needed(stage, one, one.total_bytes(most), most) for stage, (one, most) in stages]
    schedule = schedule_of(job)
    counts, chunks = _by_chunk(job, schedule.traversal)
    peak = np.asarray(time_schedule(job.scenario, schedule).peak_in_flight()).max(axis=0)
    held = held_bytes(counts, schedule, chunks)
    assert held is not None
    return [_needed(stage, one, held[stage], peak[stage]) for stage, one in enumerate(counts)]


def machine_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def state_bytes(job: TrainJob) -> list[int]:
    """Weights, gradients and optimizer states of each stage, in order: what a GPU needs at least.

    Asks for no schedule: stages count as if pipelines went straight through them.
    """
    stages, _ = _by_chunk(job, straight(job.cell.stages))
    return [int(one.state_bytes) for one in stages]


def _by_chunk(job: TrainJob, traversal: Traversal) -> ByChunk:
    """The memory of each stage and of its chunks."""
    last = job.model.layers + 1

    def of_layers(numbers: Collection[int]) -> Counted:
        blocks = sum(0 < number < last for number in numbers)
        return _counted(job, blocks, is_first=0 in numbers, is_last=last in numbers)

    stages, chunks = memory_by_chunk(job.model.layers, traversal, job.cell.layers_per_stage, of_layers)
    if job.cell.zero:
        stages = tuple(one.sharded_over(_sharing(job, stage)) for stage, one in enumerate(stages))
    return stages, chunks


def _sharing(job: TrainJob, stage: int) -> int:
    """The replicas that share a stage's optimizer state, in the data centre that has the fewest."""
    return min(Counter(dc for _, dc in job.ring_of(stage)).values())


def most_layers(job: TrainJob, gpu_bytes: float) -> int:
    """How many layers a GPU with this many bytes holds if the run continues with fewer stages; 0 to all.

    It may be first and last stage at once, and hold as many microbatches as the fullest stage does now: a
    smaller layout never holds more (engine.job.recovery.smaller). With ZeRO-1 no replica may be left to share
    with. Raises as `stage_memory` does.
    """
    in_flight = max(stage.in_flight for stage in stage_memory(job))

    def needed(layers: int) -> float:
        return _counted(job, layers, is_first=True, is_last=True).total_bytes(in_flight)

    return bisect_right(range(1, job.model.layers + 1), gpu_bytes, key=needed)


def _counted(job: TrainJob, layers: int, *, is_first: bool, is_last: bool) -> Counted:
    width, parameter_bytes = BYTES_OF_DTYPE[job.device.dtype], BYTES_OF_PARAMETER[job.device.dtype]
    narrower = width if width < parameter_bytes else 0
    copied, cast = (narrower, 0) if job.cell.tp == 1 else (0, narrower)  # torch's DTensors are cast each time
    on_cuda = job.device.kind == "cuda"
    recompute: Recompute = "full" if job.recomputes else "none"
    return counted(
        job.model.shape,
        How(recompute=recompute, sequence_parallel=False, fused_attention=_fused_attention(job)),
        tp=job.cell.tp,
        micro_batch=job.cell.micro_batch,
        blocks=layers,
        is_first=is_first,
        is_last=is_last,
        stored=Numbers(
            width=width,
            parameter_bytes=NUMBERS_PER_PARAMETER * parameter_bytes + copied,
            copy_bytes=copied,
            optimizer_bytes=MOMENTS_PER_PARAMETER * parameter_bytes,
            dropout=False,
            fused_mlp=False,
            workspace_bytes=CUDA_WORKSPACE_BYTES if on_cuda else 0,
            # The CPU computes it in fp32 at least, and keeps its input and its output in that.
            rms_norm_bytes=0 if on_cuda else 2 * max(width, 4),
            gradient_bytes=0 if narrower else parameter_bytes,
            cast_bytes=cast,
            whole_logits=True,
        ),
        serving_bytes=job.prefill.bytes if job.prefill else 0,
    )


def _fused_attention(job: TrainJob) -> bool:
    """Whether torch has a kernel that stores no scores: on CUDA in fp32 not for grouped queries."""
    dtype, model = job.device.dtype, job.model.shape
    return job.device.kind != "cuda" or dtype == "bf16" or (dtype == "fp32" and model.kv_heads == model.heads)


def _needed(stage: int, memory: Counted, total_bytes: float, in_flight: int) -> StageMemory:
    return StageMemory(
        stage=stage,
        state_bytes=int(memory.state_bytes),
        activation_bytes=int(total_bytes - memory.always_bytes),
        serving_bytes=int(memory.serving_bytes),
        in_flight=int(in_flight),
    )
