"""The fields of `meridian train FILE`: one training job across data centres, without torch.

Field names, meanings and defaults are those of docs/dev/contracts.md. A job knows the scenario that it is
(times in milliseconds), so `meridian simulate` and the run follow the same schedule.
"""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Flag, Index, Limit, NonNegative, Number, Positive, nearest, parse
from engine.job.devices import Devices
from engine.job.learning_rate import LearningRateSchedule
from engine.job.model_document import TrainModel
from engine.job.network import HopNetwork, hop_network
from engine.job.prefill.settings import PrefillSettings
from engine.job.settings import (
    AdaptSettings,
    CheckpointSettings,
    RecoverySettings,
    SpikeSettings,
    Steps,
    TlsSettings,
    ValidationSettings,
)
from engine.job.swap import settings as swap_settings
from engine.job.swap.settings import STRATEGY as SWAP
from engine.job.swap.settings import SwapSettings
from engine.model.measured import times_of_profile
from engine.schedule.ir import Sharing
from engine.schedule.scenario import (
    MOST_CHUNKS,
    MOST_SECONDS,
    MOST_SPANS,
    POLICIES,
    Contention,
    Link,
    RecomputeRule,
    Scenario,
    Times,
)
from engine.schedule.traversal import TraversalName

BYTES_OF_DTYPE = {"fp32": 4, "bf16": 2, "fp64": 8}  # of what is computed with and sent
BUCKET_BYTES = 25_000_000  # of gradients that are summed at once
BYTES_OF_PARAMETER = {"fp32": 4, "bf16": 4, "fp64": 8}
RUNNABLE = POLICIES
MOST_RANKS = 1024
# For the order of ops where nothing was measured: one core at 20 GFLOP/s. Never shown as a result.
NOMINAL_FLOPS_PER_MS = 2.0e7
# Under a hop that no link joins: so slow that no search takes it.
UNREACHABLE = HopNetwork(latency_ms=1e9, cap_gbps=1e-9, connections=1, window_bytes=1, rate_bytes_per_s=1.0)


PathName = Annotated[str, Field(min_length=1)]


class TrainDataCenter(Document):
    """A data centre and the GPUs in it that the job may use."""

    name: Annotated[str, Field(min_length=1)]
    gpus: Annotated[Index, Field(le=10_000_000)]


class TrainLink(Document):
    """The WAN between two data centres; bandwidth is the cap of one node pair and direction."""

    between: Annotated[list[str], Field(min_length=2, max_length=2)]
    latency_ms: Annotated[NonNegative, Field(le=10_000)]
    bandwidth_gbps: Annotated[Positive, Field(ge=1e-6, le=100_000)]
    connections: Annotated[Count, Field(le=256)] | None = None
    egress_price_per_gb: NonNegative | None = None


class JobFields(Document):
    """The fields of a training job, each within its range, and what follows from them."""

    datacenters: Annotated[list[TrainDataCenter], Field(min_length=1)]
    links: list[TrainLink] = Field(default_factory=list)
    stages: Annotated[Count, Field(le=MOST_RANKS)]
    dc_of_stage: list[Index] = Field(default_factory=list)
    pipelines: Annotated[Count, Field(le=MOST_RANKS)] = 1
    tp: Annotated[Count, Field(le=MOST_RANKS)] = 1
    ranks_per_gpu: Annotated[Count, Field(le=MOST_RANKS)] = 1
    cells: Annotated[Count, Field(le=MOST_RANKS)] = 1
    microbatches: Annotated[Count, Field(le=10_000)]
    micro_batch: Annotated[Count, Field(le=100_000)] = 1
    policy: str
    sharing: Sharing | None = None
    contention: Contention | None = None
    recompute_rule: RecomputeRule | None = None
    memory_limit: Limit | None = None
    full_limit: Limit | None = None
    chunks: Annotated[Count, Field(le=MOST_CHUNKS)] | None = None
    traversal: TraversalName | None = None
    time_limit_s: Annotated[Positive, Field(le=MOST_SECONDS)] = 60.0
    schedule: Annotated[str, Field(min_length=1)] | None = None
    accumulation: Annotated[Count, Field(le=10_000)] = 1
    recompute: Annotated[bool, Field(strict=True)] | None = None
    devices: Devices | None = None
    activation_bytes: Annotated[Count, Field(le=10**11)] | None = None
    connections: Literal["auto"] | Annotated[Count, Field(le=256)] = "auto"
    model: TrainModel
    data: PathName | dict[str, PathName] | None = None
    device: Literal["cpu", "emulated", "cuda"] = "cpu"
    times_ms: Times | None = None
    dtype: Literal["fp32", "bf16", "fp64"] = "fp32"
    steps: Steps
    lr: Annotated[Positive, Field(le=1e3)] = 1e-3
    lr_schedule: LearningRateSchedule = LearningRateSchedule()
    weight_decay: Annotated[NonNegative, Field(le=1)] = 0.01
    seed: Annotated[Index, Field(le=2**31 - 1)] = 0
    clip: Annotated[Number, Field(gt=0, le=1e15)] | None = None
    validation: ValidationSettings | None = None
    spike: SpikeSettings | Literal[False] = SpikeSettings()
    checkpoint: CheckpointSettings | None = None
    resume: Flag | Annotated[str, Field(min_length=1)] | None = None
    recovery: RecoverySettings | None = None
    strategy: str = "pipeline"
    swap: SwapSettings | None = None
    prefill: PrefillSettings | None = None
    adapt: AdaptSettings | None = None
    tls: TlsSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, document: Any) -> Any:
        if isinstance(document, dict) and document.get("strategy") == SWAP:
            return swap_settings.filled(document)
        return document

    @field_validator("times_ms", mode="before")
    @classmethod
    def _measured(cls, times_ms: Any) -> Any:
        return times_of_profile(times_ms)

    @field_validator("strategy")
    @classmethod
    def _known_strategy(cls, strategy: str) -> str:
        if strategy not in ("pipeline", SWAP):
            raise ValueError("unknown strategy, " + nearest(strategy, ["pipeline", SWAP]))
        return strategy

    @cached_property
    def dcs(self) -> tuple[int, ...]:
        """Index into `datacenters` of each stage; under `devices` of the first pipeline's."""
        return self.dcs_of_pipeline[0]

    @property
    def swaps(self) -> bool:
        """Whether each worker trains the whole model (strategy swap): its pipelines are its workers."""
        return self.strategy == SWAP

    @cached_property
    def dcs_of_pipeline(self) -> tuple[tuple[int, ...], ...]:
        """Index into `datacenters` of each stage, by pipeline: they differ under `devices` alone.

        With strategy swap of each worker, those included that join later.
        """
        if self.devices is not None:
            joining = [[joins.device] for joins in self.swap.joins] if self.swap else []
            placed = Devices(pipelines=[*self.devices.pipelines, *joining])
            return placed.dcs([dc.gpus for dc in self.datacenters])
        dcs = tuple(self.dc_of_stage) if self.dc_of_stage else (0,) * self.stages
        return (dcs,) * self.pipelines

    @property
    def is_mixed(self) -> bool:
        """Whether pipelines run through different data centres."""
        return len(set(self.dcs_of_pipeline)) > 1

    @property
    def world_size(self) -> int:
        """Number of ranks: one per GPU in use."""
        return self.places * self.tp

    @property
    def places(self) -> int:
        """Stages of all pipelines: each is computed by `tp` ranks."""
        return self.stages * self.pipelines

    @property
    def cell_pipelines(self) -> int:
        """Pipelines of a DP-cell: those that a schedule orders together, and that may share links in time."""
        return self.pipelines // self.cells

    def cell_of(self, pipeline: int) -> range:
        """The pipelines of the cell of `pipeline`; a schedule numbers them from 0."""
        first = pipeline - pipeline % self.cell_pipelines
        return range(first, first + self.cell_pipelines)

    @property
    def global_batch(self) -> int:
        """Sequences per step."""
        return self.pipelines * self.microbatches_of_step * self.micro_batch

    @property
    def microbatches_of_step(self) -> int:
        """Microbatches of one pipeline in one step: `accumulation` passes through the schedule."""
        return self.microbatches * self.accumulation

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.model.seq

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one microbatch's activation (or gradient) as computed."""
        return self.micro_batch * self.model.seq * self.model.hidden * BYTES_OF_DTYPE[self.dtype]

    @property
    def wan_bytes(self) -> int:
        """Bytes of one microbatch's message over the WAN, padding included."""
        return max(self.tensor_bytes, self.activation_bytes or 0)

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass recomputes activations."""
        if self.recompute is not None:
            return self.recompute
        return bool(self.times_ms and max(as_list(self.times_ms.recompute)) > 0)

    @property
    def layers_of_stage(self) -> tuple[range, ...]:
        """The transformer blocks of each stage: contiguous, the first stages taking one more where uneven."""
        share, more = divmod(self.model.layers, self.stages)
        counts = [share + (stage < more) for stage in range(self.stages)]
        firsts = [sum(counts[:stage]) for stage in range(self.stages)]
        return tuple(range(first, first + count) for first, count in zip(firsts, counts, strict=True))

    @cached_property
    def hops(self) -> dict[int, HopNetwork]:
        """The network under each WAN hop s → s+1, by s."""
        networks = {hop: self.network(hop) for hop in range(self.stages - 1)}
        return {hop: network for hop, network in networks.items() if network is not None}

    def network(self, hop: int, pipeline: int = 0) -> HopNetwork | None:
        """The network under hop s → s+1 of a pipeline, the last one from the last stage to the first.

        None inside a DC, and where no link is.
        """
        dcs = self.dcs_of_pipeline[pipeline]
        return self.between(dcs[hop], dcs[(hop + 1) % self.stages])

    def between(self, a: int, b: int) -> HopNetwork | None:
        """The network between two DC indexes; None for one and the same, and where no link is."""
        return self._networks.get(frozenset((a, b)))

    @cached_property
    def _networks(self) -> dict[frozenset[int], HopNetwork]:
        names = [dc.name for dc in self.datacenters]
        return {frozenset(map(names.index, link.between)): self._network(link) for link in self.links}

    def ring_of(self, stage: int) -> list[tuple[int, int]]:
        """(pipeline, DC) of a stage's replicas in the order in which they sum gradients: DC by DC."""
        replicas = [(pipeline, dcs[stage]) for pipeline, dcs in enumerate(self.dcs_of_pipeline)]
        return sorted(replicas, key=lambda replica: (replica[1], replica[0]))

    def link_between(self, a: int, b: int) -> TrainLink | None:
        """The link between two DC indexes, if there is one."""
        names = {self.datacenters[a].name, self.datacenters[b].name}
        return next((link for link in self.links if set(link.between) == names), None)

    def _network(self, link: TrainLink) -> HopNetwork:
        asked = link.connections or (None if self.connections == "auto" else self.connections)
        return hop_network(latency_ms=link.latency_ms, cap_gbps=link.bandwidth_gbps, connections=asked)

    @cached_property
    def scenario(self) -> Scenario:
        """A cell's iteration, in milliseconds: what the simulator times and what the executor runs."""
        return self.scenario_with(self.times)

    @cached_property
    def pass_scenario(self) -> Scenario:
        """The scenario of one pass: what the policy makes a schedule for. An iteration has `accumulation`."""
        return self.scenario_with(self.times, microbatches=self.microbatches)

    def scenario_with(self, times: Times, *, microbatches: int | None = None) -> Scenario:
        """The same scenario with other (for instance measured) op times, in milliseconds."""
        dcs = self._scenario_dcs
        hops = [hop for hop in range(self.stages) if dcs[hop] != dcs[(hop + 1) % self.stages]]
        wan = [self._slowest(hop) for hop in hops]
        values = {
            "stages": self.stages, "dc_of_stage": list(dcs), "pipelines": self.cell_pipelines,
            "microbatches": microbatches or self.microbatches_of_step, "times": times, "wan": wan or Link(),
            "sharing": "spatial" if self.is_mixed else self.sharing, "memory_limit": self.memory_limit,
            "full_limit": self.full_limit, "policy": self.policy, "contention": self.contention,
            "recompute_rule": self.recompute_rule, "chunks": self._chunks, "traversal": self.traversal,
            "time_limit_s": self.time_limit_s,
        }  # fmt: skip
        try:
            return parse(Scenario, values)
        except InputError as error:
            if error.field not in (
                "spans",
                "microbatches",
            ):  # a job has not the one, and the other times accumulation
                raise
            allowed = f"times accumulation, stages and pipelines: at most {MOST_SPANS:,} ops per iteration"
            raise InputError("microbatches", self.microbatches, allowed) from None

    @cached_property
    def _scenario_dcs(self) -> tuple[int, ...]:
        """DCs of the stages for the scenario; where pipelines are mixed, new numbers after each WAN hop."""
        if not self.is_mixed:
            return self.dcs
        number, numbers = 0, [0]
        for hop in range(self.stages - 1):
            number += any(dcs[hop] != dcs[hop + 1] for dcs in self.dcs_of_pipeline)
            numbers.append(number)
        return tuple(numbers)

    def _slowest(self, hop: int) -> Link:
        """A hop as the slowest pipeline has it: a schedule knows one network for all of them."""
        crossing = [dcs for dcs in self.dcs_of_pipeline if dcs[hop] != dcs[(hop + 1) % self.stages]]
        networks = [self.between(dcs[hop], dcs[(hop + 1) % self.stages]) or UNREACHABLE for dcs in crossing]
        return Link(
            latency=max((network.latency_ms for network in networks), default=0.0),
            transfer=max((network.transfer_ms(self.wan_bytes) for network in networks), default=0.0),
        )

    @property
    def _chunks(self) -> int | None:
        # What auto chooses must have a layer for every chunk.
        too_few = self.policy == "auto" and self.model.layers < 2 * self.stages
        return 1 if self.chunks is None and too_few else self.chunks

    @cached_property
    def times(self) -> Times:
        """Op times in milliseconds that the schedule is made for: `times_ms`, or a count of FLOPs."""
        times = self.times_ms or _nominal_times(self)
        if not self.recomputes:
            return times.model_copy(update={"recompute": 0.0})
        if max(as_list(times.recompute)) > 0:
            return times
        return times.model_copy(update={"recompute": times.forward})


def as_list(value: float | list[float]) -> list[float]:
    """A time of all stages, or one of each, as a list."""
    return value if isinstance(value, list) else [value]


def _nominal_times(job: JobFields) -> Times:
    """Forward by counted FLOPs (2 per parameter and token, and attention); each half of backward the same."""
    model, tokens = job.model, job.micro_batch * job.model.seq
    block = tokens * (2 * model.shape.layer_weights + 4 * model.seq * model.hidden)
    flops = [len(layers) * block for layers in job.layers_of_stage]
    flops[-1] += 2 * tokens * model.vocabulary * model.hidden
    forward = [count / NOMINAL_FLOPS_PER_MS / job.tp for count in flops]
    return Times(forward=forward, backward=forward, weight=forward)
