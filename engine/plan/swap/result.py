"""The answer of a swap plan, as docs/dev/contracts.md names it. Units are in the names."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from engine.plan.swap.events import Step
from engine.plan.swap.fleet import Fleet
from engine.plan.swap.layers import Layer, SubModel
from engine.plan.swap.pipelines import Comparison
from engine.simulate.spans import Span

# A parameter, its gradient, and its two moments.
NUMBERS_PER_PARAMETER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapResult:
    """One swap plan.

    Without a partition the figures are None. If only the overlap of running and loading fails, they are
    given, with the resulting stalls, and `reason` says which quantity is too small.

    capacity_bytes : of the GPU;  reserved_bytes : of them, permanently occupied.
    """

    layers: tuple[Layer, ...]
    capacity_bytes: float
    reserved_bytes: float
    host_bytes_per_s: float
    resident: int
    gradients: str
    reason: str | None = None
    subs: tuple[SubModel, ...] = ()
    cut_bytes: int | None = None
    accumulation: int | None = None
    step: Step | None = None
    fleet: Fleet | None = None
    compare: tuple[Comparison, ...] = ()
    with_spans: bool = True

    @property
    def feasible(self) -> bool:
        return self.reason is None

    @property
    def loads_per_step(self) -> int | None:
        """2(n − 1) for n sub-models (ATOM §IV)."""
        return 2 * (len(self.subs) - 1) if self.subs else None

    @property
    def edge_bytes(self) -> int | None:
        """Inputs of all sub-models but the first, of all mini-batches of a step, which the backward pass
        needs again.

        No other figure counts them (one mini-batch at a time is part of a layer's memory).
        """
        if self.cut_bytes is None or self.accumulation is None:
            return None
        return self.accumulation * self.cut_bytes

    @property
    def host_bytes(self) -> float:
        """Host memory for parameters, gradients and the two moments of Adam (ATOM §II-B)."""
        return NUMBERS_PER_PARAMETER * math.fsum(layer.parameter_bytes for layer in self.layers)

    @property
    def gaps_s(self) -> float:
        """Seconds between kernels in both passes of one mini-batch."""
        return math.fsum(layer.gap_s for layer in self.layers)

    @property
    def kernel_utilization(self) -> float | None:
        """Share of a step in which a kernel runs, as nvidia-smi counts it (Fig. 15); None without gaps."""
        gaps_s = self.gaps_s
        if self.step is None or not gaps_s:
            return None
        return (self.step.busy_s - self.step.accumulation * gaps_s) / self.step.step_s

    def spans(self) -> list[Span]:
        """One step, in seconds from its start; empty if there is no partition."""
        return self.step.spans(self.subs) if self.step else []

    def _as_dict(self, sub: SubModel) -> dict[str, Any]:
        """A sub-model, with its gaps if any layer has some."""
        fields = asdict(sub)
        if not self.gaps_s:
            del fields["gap_s"]
        return fields

    def as_dict(self) -> dict[str, Any]:
        """The output of `meridian swap`."""
        step, fleet = self.step, self.fleet
        fields = {
            "feasible": self.feasible,
            "reason": self.reason,
            "sub_models": [self._as_dict(sub) for sub in self.subs],
            "cut_bytes": self.cut_bytes,
            "edge_bytes": self.edge_bytes,
            "host_bytes": self.host_bytes,
            "resident": self.resident,
            "gradients": self.gradients,
            "memory_bytes": self.capacity_bytes,
            "reserved_bytes": self.reserved_bytes,
            "accumulation": self.accumulation,
            "loads_per_step": self.loads_per_step,
            "step_s": step and step.step_s,
            "stall_s": None if step is None else step.stall_s,
            "seconds_per_minibatch_gpu": step and step.seconds_per_minibatch,
            "utilization": step and step.utilization,
            "allreduce_s": None if fleet is None else fleet.allreduce_s,
            "fleet": None if fleet is None else fleet.as_dict(),
            "compare": [
                asdict(row) | {"stages": [list(stage) for stage in row.stages]} for row in self.compare
            ],
        }
        if self.kernel_utilization is not None:
            fields["kernel_utilization"] = self.kernel_utilization
        if self.with_spans:
            fields["spans"] = [span.as_dict() for span in self.spans()]
        return fields
