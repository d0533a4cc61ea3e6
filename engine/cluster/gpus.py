"""The GPU catalogue: figures of one GPU of each type, from the makers' data sheets (engine/data/gpus)."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from engine.errors import InputError
from engine.inputs import nearest

GIB = 2**30

# Number formats of matrix multiplications by width, best first.
FORMATS_OF_WIDTH = {1: ("fp8",), 2: ("bf16", "fp16"), 4: ("fp32",), 8: ("fp64",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Of a node inside its data centre: bytes/s per direction, and seconds one way."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One type of GPU.

    peak_flops : dense peak in FLOP/s by number format (``bf16``, ``fp32`` …).
    memory_bytes, hbm_bytes_per_s : device memory and its bandwidth.
    host_bytes_per_s : host to device, per direction, the PCIe ceiling.
    link_bytes_per_s : GPU to GPU in a node, per direction (NVLink, or PCIe without it).
    nic_bytes_per_s : a GPU's share of the network of the maker's machine, per direction; None: not named.
    network : of its node, where times of a stage depend on it; else None.
    margin : share of what a plan counts that must stay free beside it.
    source, date : where the figures are from.
    """

    name: str
    label: str
    peak_flops: dict[str, float]
    memory_bytes: float
    hbm_bytes_per_s: float
    host_bytes_per_s: float
    link_bytes_per_s: float
    nic_bytes_per_s: float | None = None
    network: Network | None = None
    margin: float = 0.0
    source: str = ""
    date: str = ""

    @property
    def usable_bytes(self) -> float:
        """The memory that a plan may count on: with the margin it is all of `memory_bytes`."""
        return self.memory_bytes / (1 + self.margin)

    def flops(self, dtype_bytes: int) -> float:
        """Dense peak in FLOP/s for numbers of `dtype_bytes` bytes.

        Raises InputError if this GPU has no such format (``fp8`` before Hopper and Ada).
        """
        for number_format in FORMATS_OF_WIDTH.get(dtype_bytes, ()):
            if number_format in self.peak_flops:
                return self.peak_flops[number_format]
        widths = [str(w) for w, formats in FORMATS_OF_WIDTH.items() if set(formats) & set(self.peak_flops)]
        raise InputError("dtype_bytes", dtype_bytes, f"{self.name} computes in {', '.join(widths)} bytes")


@cache
def catalogue() -> dict[str, Gpu]:
    """Every known GPU type by name."""
    text = files("engine").joinpath("data/gpus/gpus.json").read_text(encoding="utf-8")
    return {name: _gpu(name, row) for name, row in json.loads(text).items()}


def gpu(name: str) -> Gpu:
    """The GPU type `name`. Raises InputError, naming the nearest type, if it is unknown."""
    known = catalogue()
    if name not in known:
        raise InputError("gpu_type", name, "unknown GPU type, " + nearest(name, known))
    return known[name]


def _gpu(name: str, row: dict) -> Gpu:
    return Gpu(
        name=name,
        label=row["label"],
        peak_flops={number_format: tflops * 1e12 for number_format, tflops in row["peak_tflops"].items()},
        memory_bytes=row["memory_gib"] * GIB,
        hbm_bytes_per_s=row["hbm_gb_s"] * 1e9,
        host_bytes_per_s=row["host_gb_s"] * 1e9,
        link_bytes_per_s=row["link_gb_s"] * 1e9,
        nic_bytes_per_s=None if row["nic_gb_s"] is None else row["nic_gb_s"] * 1e9,
        source=row["source"],
        date=row["date"],
    )
