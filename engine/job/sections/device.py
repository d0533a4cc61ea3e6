"""`device` of a training job: what computes, in which numbers, and how long it takes."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from engine.inputs import Document
from engine.job.sections.limits import RankCount
from engine.model.measured import times_of_profile
from engine.schedule.scenario import Times

BYTES_OF_DTYPE = {"fp32": 4, "bf16": 2, "fp64": 8}  # of what is computed with and sent
BYTES_OF_PARAMETER = {"fp32": 4, "bf16": 4, "fp64": 8}


class DeviceSection(Document):
    """The GPUs of a job, or what stands for them.

    kind : cuda, cpu, or emulated: a CPU that takes as long as `times_ms` says.
    times_ms : of one microbatch on a stage, or what `meridian profile` printed.
    ranks_per_gpu : ranks that share a CUDA GPU.
    nccl : False has messages and sums go through host memory; None: NCCL has them, where it can.
    """

    kind: Literal["cpu", "emulated", "cuda"] = "cpu"
    times_ms: Times | None = None
    dtype: Literal["fp32", "bf16", "fp64"] = "fp32"
    ranks_per_gpu: RankCount = 1
    nccl: Annotated[bool, Field(strict=True)] | None = None

    @field_validator("times_ms", mode="before")
    @classmethod
    def _measured(cls, times_ms: Any) -> Any:
        return times_of_profile(times_ms)
