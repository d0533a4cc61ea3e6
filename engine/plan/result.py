"""The answer to a plan request: one option per number of DP-cells, and the best. Units are in the names."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from engine.model.flops import Recompute
from engine.schedule.scenario import Contention

# Stages whose memory and times an answer lists, of all its options together: the best first, then the front.
MOST_STAGES_LISTED = 20_000

# An option's JSON has these only where they differ.
USUAL = {
    "recompute": None,
    "update_ms": None,
    "tied_ms": None,
    "tied_egress_gb": None,
    "time_per_stage": None,
    "zero": 0,
    "cp": 1,
    "ep": 1,
}

StoppedBy = Literal["proven", "candidates", "sampled", "budget", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """`stages` adjacent pipeline stages in one data centre."""

    dc: str
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The most bytes on one GPU of a stage, by part, and the bytes that the GPU has.

    state_bytes : weights, gradients and the optimizer's state, always.
    activation_bytes : microbatches under way, the backward pass under way, and what libraries take.
    serving_bytes : reserved for prefill.
    """

    gpu_bytes: int
    state_bytes: int
    activation_bytes: int
    serving_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes + self.serving_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Milliseconds of one microbatch on a stage: its passes, and what its GPUs wait for in all of them.

    tp_ms, cp_ms, ep_ms : messages of tensor, context and expert parallelism; part of the passes.
    """

    forward_ms: float
    backward_ms: float
    recompute_ms: float
    tp_ms: float
    cp_ms: float
    ep_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One number of DP-cells, placed.

    Without a schedule the figures are None. If only a limit is exceeded (budget, deadline), they are given,
    and `reason` says by how much.

    lower_bound_ms : proven for the pipelines' time, `pp_time_ms`.
    update_ms : of the optimizer, part of the iteration; None unless a layer profile gives it. The JSON then
        leaves it out.
    tied_ms, tied_egress_gb : of a tied embedding's gradients between first and last stage; None if there are
        none, and then not in the JSON. The search has them in `allreduce_ms` and `egress_gb`, too. Algorithm
        1 has those as Atlas prints them; here only `iteration_ms` and the costs include the gradients.
    recompute : of each stage, where the plan chooses it: none, selective or full; else None, and not in the
        JSON.
    zero : 1: the replicas of a stage share the optimizer's state; 0 is not in the JSON.
    tp, micro_batch : GPUs that share each part of a stage, sequences of a microbatch.
    cp, ep : GPUs that share the tokens of a sequence, pipelines that share experts; 1 is not in the JSON.
    time_per_stage : of each stage in pipeline order; None, and not in the JSON, where nothing is sent inside
        stages or between the replicas of one, or where the times do not say what for.
    memory_gb_per_gpu : most memory on a GPU of the fullest stage in each data centre used; None if the job
        gives times.
    layers_per_stage, memory_per_stage : of each stage in pipeline order; None if the job gives times.
    gpus_idle : unused GPUs in each allowed data centre; without zeros.
    refining : timed with fast policies only; `refine` has still to try better ones on it.
    schedule : the orders from `refine`, as text; None if `policy` determines them.
    contention : the rule by which its pipelines share links; None if they share none, or `schedule` says.
    """

    dp_cells: int
    pipelines: int
    policy: str
    tp: int = 1
    micro_batch: int = 1
    cp: int = 1
    ep: int = 1
    recompute: tuple[Recompute, ...] | None = None
    zero: int = 0
    feasible: bool = False
    reason: str | None = None
    partitions: tuple[Partition, ...] = ()
    gpus_used: dict[str, int] = field(default_factory=dict)
    gpus_idle: dict[str, int] = field(default_factory=dict)
    memory_gb_per_gpu: dict[str, float] | None = None
    layers_per_stage: tuple[int, ...] | None = None
    memory_per_stage: tuple[MemoryUse, ...] | None = None
    time_per_stage: tuple[StageTime, ...] | None = None
    pp_time_ms: float | None = None
    lower_bound_ms: float | None = None
    utilization: float | None = None
    allreduce_ms: float | None = None
    update_ms: float | None = None
    tied_ms: float | None = None
    iteration_ms: float | None = None
    throughput: float | None = None
    tokens_per_s: float | None = None
    egress_gb: float | None = None
    tied_egress_gb: float | None = None
    cost_per_iteration: float | None = None
    cost_per_million_tokens: float | None = None
    refining: bool = False
    schedule: str | None = None
    contention: Contention | None = None

    @property
    def order(self) -> tuple[str, ...]:
        """The data centres in pipeline order."""
        return tuple(part.dc for part in self.partitions)

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours of one iteration: of the GPUs that compute, whatever is billed."""
        return None if self.iteration_ms is None else sum(self.gpus_used.values()) * self.iteration_ms / 3.6e6

    @property
    def bound_ms(self) -> float | None:
        """A bound that no schedule of this option can beat, in ms per iteration.

        One that has both ends of a pipeline on one GPU exchanges no gradients of a tied embedding.
        """
        if self.lower_bound_ms is None or self.pp_time_ms is None or self.iteration_ms is None:
            return None
        return self.lower_bound_ms + (self.iteration_ms - self.pp_time_ms - (self.tied_ms or 0.0))

    def as_dict(self) -> dict[str, Any]:
        """The option as docs/dev/contracts.md names its fields; `partitions` as a list of objects."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values = {name: value for name, value in values.items() if name not in USUAL or value != USUAL[name]}
        partitions = [{"dc": part.dc, "stages": part.stages} for part in self.partitions]
        if self.layers_per_stage is not None:
            values["layers_per_stage"] = list(self.layers_per_stage)
        if self.memory_per_stage is not None:
            values["memory_per_stage"] = [asdict(use) for use in self.memory_per_stage]
        if self.time_per_stage is not None:
            values["time_per_stage"] = [asdict(stage) for stage in self.time_per_stage]
        derived = {"order": list(self.order), "gpu_hours": self.gpu_hours, "bound_ms": self.bound_ms}
        return values | derived | {"partitions": partitions}


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A data centre that the best option does not use, and why."""

    dc: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A layout of the job that was not tried further, and why."""

    partitions: int
    tp: int
    micro_batch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The work of a search.

    stopped_by : from the strongest to the weakest statement. proven: no candidate left out can be better with
        the schedules tried. candidates: some routes or splits were left out. sampled: only some numbers or
        sizes of DP-cells were tried. budget: no time for all that could be better. cancelled.
    candidates : routes with splits and numbers of DP-cells that were bounded.
    simulated : cells that were simulated, once per shape.
    search_s : wall time.
    """

    stopped_by: StoppedBy
    candidates: int
    simulated: int
    search_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """The answer to a plan request.

    best : index of the best option for the objective, or None if none is feasible (`reason` says why).
    pareto : indexes of the feasible options that no other beats in both iteration time and cost.
    comm_to_compute, forward_ms … : the job's figures as used, given or computed; of several layouts, those of
        the best option's.
    left_out : layouts that do not fit anywhere.
    symmetrised : pairs of data centres whose link differs by direction: its mean counts. The JSON has it
        if there are any.
    search : the effort of `method: search`; None for Algorithm 1, which tries everything.
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
    left_out: tuple[LeftOut, ...] = ()
    search: Effort | None = None
    symmetrised: tuple[tuple[str, ...], ...] = ()

    @property
    def feasible(self) -> bool:
        return self.best is not None

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `meridian plan`."""
        values: dict[str, Any] = {"feasible": self.feasible}
        values |= {name: getattr(self, name) for name in self.__slots__}
        values["order"] = list(self.order)
        values["options"] = [option.as_dict() for option in self._options_listed()]
        values["pareto"] = list(self.pareto)
        values["excluded"] = [asdict(dc) for dc in self.excluded]
        values["left_out"] = [asdict(layout) for layout in self.left_out]
        values["search"] = asdict(self.search) if self.search else None
        values["symmetrised"] = [list(pair) for pair in self.symmetrised]
        if not self.symmetrised:
            del values["symmetrised"]
        return values

    def _options_listed(self) -> list[Option]:
        """The options; beyond MOST_STAGES_LISTED stages in all without memory and times of each stage."""
        first = [] if self.best is None else [self.best]
        options, listed = list(self.options), 0
        for i in dict.fromkeys([*first, *self.pareto, *range(len(options))]):
            listed += len(options[i].memory_per_stage or ())
            if listed > MOST_STAGES_LISTED and i != self.best:
                options[i] = replace(options[i], memory_per_stage=None, time_per_stage=None)
        return options
