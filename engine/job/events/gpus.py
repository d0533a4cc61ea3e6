"""What the agent of a node reports of its GPUs."""

from typing import Annotated, Literal

from pydantic import Field

from engine.job.events.base import BaseEvent, Number, Part, Unix

MOST_GPUS = 1024  # of a node


class GpuFigures(Part):
    """One GPU now; null is what the driver does not tell."""

    gpu: Annotated[int, Field(strict=True, ge=0, lt=MOST_GPUS)]
    utilization: Annotated[float, Field(strict=True, ge=0, le=1)] | None = None
    memory_bytes: Annotated[int, Field(strict=True, ge=0, lt=2**62)] | None = None
    memory_total_bytes: Annotated[int, Field(strict=True, ge=0, lt=2**62)] | None = None
    temperature_c: Number | None = None
    power_w: Annotated[Number, Field(ge=0)] | None = None


class Gpus(BaseEvent):
    """What the GPUs of a node do now; every 5 s while there is anything to tell. Only the latest counts."""

    key = ("node", "t")
    kind: Literal["gpus"] = "gpus"
    gpus: Annotated[tuple[GpuFigures, ...], Field(max_length=MOST_GPUS)]
    """CUDA GPUs: `gpu` (from 0), `utilization` (0 to 1), `memory_bytes` in use of `memory_total_bytes`,
    `temperature_c`, `power_w`. Other devices: `gpu` and `memory_bytes` of its rank's process; GPUs without a
    rank are left out."""
    t: Unix
    """When."""
