"""What one microbatch takes on the stages of a plan's option, by part, as bars on the plan's page."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

# Kind of a part: the head of its column, and what it is.
WAITS = {
    "tp": ("TP", "Tensor parallelism: sums, gathers and scatters inside a stage"),
    "cp": ("CP", "Context parallelism: keys and values that arrive late"),
    "ep": ("EP", "Expert parallelism: tokens on their way to experts and back"),
}
PARTS = {"compute": ("Compute", "Compute"), **WAITS}
PASSES = ("forward_ms", "recompute_ms", "backward_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimeBar:
    """Adjacent stages that take as long: numbers from 1, milliseconds of one microbatch, forward and back.

    parts : {kind, head, label, ms, x, width}, x and width in per cent of the longest bar.
    """

    stages: str
    dc: str
    parts: tuple[dict[str, Any], ...]
    total_ms: float


def stage_time_bars(option: Mapping[str, Any] | None) -> list[StageTimeBar]:
    """The bars of an option, with the waits of its degrees above 1; none where no message is modelled."""
    if option is None or not option.get("time_per_stage"):
        return []
    dcs = [part["dc"] for part in option["partitions"] for _ in range(part["stages"])]
    times = option["time_per_stage"]
    kinds = ["compute", *(kind for kind in WAITS if option.get(kind, 1) > 1)]
    longest = max(sum(stage[name] for name in PASSES) for stage in times)
    bars, first = [], 1
    rows = zip(dcs, (_parts_ms(stage, kinds) for stage in times), strict=True)
    for (dc, parts_ms), group in groupby(rows):
        last = first + sum(1 for _ in group) - 1
        bars.append(
            StageTimeBar(
                stages=f"{first}" if first == last else f"{first}–{last}",
                dc=dc,
                parts=_drawn(kinds, parts_ms, longest),
                total_ms=sum(parts_ms),
            )
        )
        first = last + 1
    return bars


def _parts_ms(stage: Mapping[str, float], kinds: list[str]) -> tuple[float, ...]:
    waits = [stage[f"{kind}_ms"] for kind in kinds[1:]]
    return (sum(stage[name] for name in PASSES) - sum(waits), *waits)


def _drawn(kinds: list[str], parts_ms: tuple[float, ...], longest: float) -> tuple[dict[str, Any], ...]:
    drawn, x = [], 0.0
    for kind, ms in zip(kinds, parts_ms, strict=True):
        head, label = PARTS[kind]
        width = 100 * ms / longest
        drawn.append({"kind": kind, "head": head, "label": label, "ms": ms, "x": x, "width": width})
        x += width
    return tuple(drawn)
