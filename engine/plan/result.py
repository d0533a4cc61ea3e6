"""What a plan answers: one option per number of DP-cells, and which is best. Units are in the names."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """`stages` neighbouring pipeline stages in one data centre."""

    dc: str
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One number of DP-cells. Where no schedule exists the figures are None; where only a limit is
    exceeded (budget, deadline) they are there, and `reason` says by how much."""

    dp_cells: int
    pipelines: int
    policy: str
    feasible: bool = False
    reason: str | None = None
    partitions: tuple[Partition, ...] = ()
    gpus_used: dict[str, int] = field(default_factory=dict)
    pp_time_ms: float | None = None
    lower_bound_ms: float | None = None
    utilization: float | None = None
    allreduce_ms: float | None = None
    iteration_ms: float | None = None
    throughput: float | None = None
    tokens_per_s: float | None = None
    egress_gb: float | None = None
    cost_per_iteration: float | None = None
    cost_per_million_tokens: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The option as contracts.md names its fields; `partitions` as a list of objects."""
        values = {name: getattr(self, name) for name in self.__slots__}
        partitions = [{"dc": part.dc, "stages": part.stages} for part in self.partitions]
        return values | {"partitions": partitions, "gpus_used": dict(self.gpus_used)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A data centre that the best option does not use, and why."""

    dc: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """The answer to a plan request.

    best : index of the best option for the objective, or None where none is feasible (`reason` says why).
    pareto : indexes of the feasible options that no other beats in both iteration time and cost.
    comm_to_compute, forward_ms … : the job's figures as used, given or computed.
    stopped_by : of a search: proven (no candidate that was left out can be better), sampled (so many DP-cells
        have room that only some numbers of them were looked at), or budget (of simulation time).
    """

    method: str
    policy: str
    objective: str
    order: tuple[str, ...]
    cell_pipelines: int
    comm_to_compute: float
    forward_ms: float
    backward_ms: float
    recompute_ms: float
    transfer_ms: float
    activation_bytes: float | None
    parameters_per_stage: float | None
    options: tuple[Option, ...]
    best: int | None
    pareto: tuple[int, ...]
    excluded: tuple[Excluded, ...]
    reason: str | None = None
    stopped_by: str | None = None

    @property
    def feasible(self) -> bool:
        return self.best is not None

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `meridian plan`."""
        values: dict[str, Any] = {"feasible": self.feasible}
        values |= {name: getattr(self, name) for name in self.__slots__}
        values["order"] = list(self.order)
        values["options"] = [option.as_dict() for option in self.options]
        values["pareto"] = list(self.pareto)
        values["excluded"] = [{"dc": dc.dc, "reason": dc.reason} for dc in self.excluded]
        return values
