"""Memory and time of the stages of a plan's option, as bars on the plan's page: adjacent stages that need the
same have one bar."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from engine.model.memory import OF_A_RUN

MOST_BARS = 40
# Kind of a part: the head of its column, and what it is.
OF_MEMORY = {
    "state": ("Model states", "Model states: weights, gradients, optimizer states"),
    "activations": ("Activations", "Activations, logits, transients"),
    "margin": ("CUDA", "CUDA’s context and libraries"),
    "prefill": ("Prefill", "Reserved for prefill"),
}
WAITS = {
    "tp": ("TP", "Tensor parallelism: sums, gathers and scatters inside a stage"),
    "cp": ("CP", "Context parallelism: keys and values that arrive late"),
    "ep": ("EP", "Expert parallelism: tokens on their way to experts and back"),
}
OF_TIME = {"compute": ("Compute", "Compute"), **WAITS}
PASSES = ("forward_ms", "recompute_ms", "backward_ms")
Parts = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBar:
    """Adjacent stages that need as much: numbers from 1, GB of one GPU, and per cent of the widest bar.

    parts : {kind, head, label, gb, x, width} in the order of `OF_MEMORY`.  gpu_width : how much the GPU has.
    """

    stages: str
    dc: str
    layers: int
    parts: Parts
    total_gb: float
    gpu_gb: float
    gpu_width: float

    @property
    def is_over(self) -> bool:
        """Whether the GPU has less."""
        return self.total_gb > self.gpu_gb


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimeBar:
    """Adjacent stages that take as long: numbers from 1, milliseconds of one microbatch, forward and back.

    parts : {kind, head, label, ms, x, width}, x and width in per cent of the longest bar.
    """

    stages: str
    dc: str
    parts: Parts
    total_ms: float


def stage_bars(option: Mapping[str, Any] | None, *, profiled: bool = False) -> list[StageBar]:
    """What is in the memory of each stage's GPU; none where the job gives times, or its answer is too old to
    list it.

    profiled : the job has a layer profile, which counts the framework with the weights.
    """
    if option is None or not option.get("memory_per_stage"):
        return []
    margin_bytes = 0 if profiled else OF_A_RUN.workspace_bytes
    uses = [_parts_gb(use, margin_bytes) for use in option["memory_per_stage"]]
    widest = max(max(gpu_gb, sum(parts_gb)) for gpu_gb, parts_gb in uses)
    return [
        StageBar(
            stages=stages,
            dc=dc,
            layers=layers,
            parts=_drawn(OF_MEMORY, "gb", parts_gb, widest),
            total_gb=sum(parts_gb),
            gpu_gb=gpu_gb,
            gpu_width=100 * gpu_gb / widest,
        )
        for stages, (dc, layers, (gpu_gb, parts_gb)) in _alike(
            zip(_dcs(option), option["layers_per_stage"], uses, strict=True)
        )
    ]


def stage_time_bars(option: Mapping[str, Any] | None) -> list[StageTimeBar]:
    """What one microbatch takes, with the waits of the option's degrees above 1; none where no message is
    modelled."""
    if option is None or not option.get("time_per_stage"):
        return []
    kinds = ["compute", *(kind for kind in WAITS if option.get(kind, 1) > 1)]
    times = [_parts_ms(stage, kinds) for stage in option["time_per_stage"]]
    longest = max(sum(stage[name] for name in PASSES) for stage in option["time_per_stage"])
    return [
        StageTimeBar(
            stages=stages,
            dc=dc,
            parts=_drawn({kind: OF_TIME[kind] for kind in kinds}, "ms", parts_ms, longest),
            total_ms=sum(parts_ms),
        )
        for stages, (dc, parts_ms) in _alike(zip(_dcs(option), times, strict=True))
    ]


def _dcs(option: Mapping[str, Any]) -> list[str]:
    """The data centre of each stage."""
    return [part["dc"] for part in option["partitions"] for _ in range(part["stages"])]


def _alike(rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Adjacent rows that are equal: their numbers from 1, as "2–4", and the row."""
    first = 1
    for row, group in groupby(rows):
        last = first + sum(1 for _ in group) - 1
        yield f"{first}" if first == last else f"{first}–{last}", row
        first = last + 1


def _parts_gb(use: Mapping[str, int], margin_bytes: int) -> tuple[float, tuple[float, ...]]:
    """GB of the GPU, and of each of `OF_MEMORY`; what libraries take is counted with the activations."""
    margin = min(margin_bytes, use["activation_bytes"])
    parts = (use["state_bytes"], use["activation_bytes"] - margin, margin, use["serving_bytes"])
    return use["gpu_bytes"] / 1e9, tuple(part / 1e9 for part in parts)


def _parts_ms(stage: Mapping[str, float], kinds: list[str]) -> tuple[float, ...]:
    waits = [stage[f"{kind}_ms"] for kind in kinds[1:]]
    return (sum(stage[name] for name in PASSES) - sum(waits), *waits)


def _drawn(
    kinds: Mapping[str, tuple[str, str]], unit: str, amounts: tuple[float, ...], widest: float
) -> Parts:
    """The parts of a bar, one after the other; `unit` is the key of their amounts."""
    drawn, x = [], 0.0
    for (kind, (head, label)), amount in zip(kinds.items(), amounts, strict=True):
        width = 100 * amount / widest
        drawn.append({"kind": kind, "head": head, "label": label, unit: amount, "x": x, "width": width})
        x += width
    return tuple(drawn)
