"""Memory of the stages of a plan's option against that of their GPUs, as bars on the plan's page."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from engine.model.memory import OF_A_RUN

MOST_BARS = 40
# Kind of a part: the head of its column, and what it is.
PARTS = {
    "state": ("Model states", "Model states: weights, gradients, optimizer states"),
    "activations": ("Activations", "Activations, logits, transients"),
    "margin": ("CUDA", "CUDA’s context and libraries"),
    "prefill": ("Prefill", "Reserved for prefill"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBar:
    """Adjacent stages that need as much: numbers from 1, GB of one GPU, and per cent of the widest bar.

    parts : {kind, head, label, gb, x, width} in the order of `PARTS`.  gpu_width : how much the GPU has.
    """

    stages: str
    dc: str
    layers: int
    parts: tuple[dict[str, Any], ...]
    total_gb: float
    gpu_gb: float
    gpu_width: float

    @property
    def is_over(self) -> bool:
        """Whether the GPU has less."""
        return self.total_gb > self.gpu_gb


def stage_bars(option: Mapping[str, Any] | None, *, profiled: bool = False) -> list[StageBar]:
    """The bars of an option; none where its job gives times, or its answer is too old to list them.

    profiled : the job has a layer profile, which counts the framework with the weights.
    """
    if option is None or not option.get("memory_per_stage"):
        return []
    dcs = [part["dc"] for part in option["partitions"] for _ in range(part["stages"])]
    margin_bytes = 0 if profiled else OF_A_RUN.workspace_bytes
    uses = [_parts_gb(use, margin_bytes) for use in option["memory_per_stage"]]
    rows = zip(dcs, option["layers_per_stage"], uses, strict=True)
    groups = [(key, sum(1 for _ in group)) for key, group in groupby(rows)]
    widest = max(max(gpu_gb, sum(gb)) for (_, _, (gpu_gb, gb)), _ in groups)
    bars, first = [], 1
    for (dc, layers, (gpu_gb, parts_gb)), count in groups:
        last = first + count - 1
        bars.append(
            StageBar(
                stages=f"{first}" if count == 1 else f"{first}–{last}",
                dc=dc,
                layers=layers,
                parts=_drawn(parts_gb, widest),
                total_gb=sum(parts_gb),
                gpu_gb=gpu_gb,
                gpu_width=100 * gpu_gb / widest,
            )
        )
        first = last + 1
    return bars


def _parts_gb(use: Mapping[str, int], margin_bytes: int) -> tuple[float, tuple[float, ...]]:
    """GB of the GPU, and of each of `PARTS`; what libraries take is counted with the activations."""
    margin = min(margin_bytes, use["activation_bytes"])
    parts = (use["state_bytes"], use["activation_bytes"] - margin, margin, use["serving_bytes"])
    return use["gpu_bytes"] / 1e9, tuple(part / 1e9 for part in parts)


def _drawn(parts_gb: tuple[float, ...], widest: float) -> tuple[dict[str, Any], ...]:
    drawn, x = [], 0.0
    for (kind, (head, label)), gb in zip(PARTS.items(), parts_gb, strict=True):
        width = 100 * gb / widest
        drawn.append({"kind": kind, "head": head, "label": label, "gb": gb, "x": x, "width": width})
        x += width
    return tuple(drawn)
