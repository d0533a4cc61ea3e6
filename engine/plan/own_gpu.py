"""A GPU that is not in the catalogue, by the figures that a document gives."""

from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag

from engine.cluster.gpus import Gpu, catalogue
from engine.inputs import Document, Positive, nearest

LEAST_RATE = 1e-6  # GB/s


class GpuInput(Document):
    """A GPU that is not in the catalogue: what it does with two-byte numbers."""

    peak_tflops: Positive = Field(ge=1e-6)
    memory_gb: Positive
    hbm_gb_s: Positive = Field(ge=LEAST_RATE)

    def gpu(self, *, name: str = "given", link_gb_s: float | None = None) -> Gpu:
        """It as the catalogue's type. The rate to the host is not known, nor, where not given, of links."""
        return Gpu(
            name=name,
            label="as given",
            peak_flops={"bf16": self.peak_tflops * 1e12},
            memory_bytes=self.memory_gb * 1e9,
            hbm_bytes_per_s=self.hbm_gb_s * 1e9,
            host_bytes_per_s=0.0,
            link_bytes_per_s=0.0 if link_gb_s is None else link_gb_s * 1e9,
        )


def known_gpu(name: str) -> str:
    """`name`, if the catalogue has it. Raises ValueError, with the nearest name, if not."""
    if name not in catalogue():
        raise ValueError("unknown GPU type, " + nearest(name, catalogue()))
    return name


KnownGpu = Annotated[str, AfterValidator(known_gpu)]
GpuOrName = Annotated[
    Annotated[KnownGpu, Tag("str")] | Annotated[GpuInput, Tag("GpuInput")],
    Discriminator(lambda value: "str" if isinstance(value, str) else "GpuInput"),
]
