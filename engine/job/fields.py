"""The sections of a training job's document together, and what follows from several of them. No torch.

Fields, meanings and defaults are those of docs/dev/contracts.md. A job knows the scenario that it is (times
in milliseconds), so `meridian simulate` and the run follow the same schedule.
"""

from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, field_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Index, NonNegative, Positive, nearest, parse
from engine.job.devices import Devices
from engine.job.model_document import AnyModel
from engine.job.network import HopNetwork, hop_network
from engine.job.prefill.settings import PrefillSettings
from engine.job.sections.cell import CellSection
from engine.job.sections.data import DataSection
from engine.job.sections.device import BYTES_OF_DTYPE, DeviceSection
from engine.job.sections.failures import FailuresSection
from engine.job.sections.optimizer import OptimizerSection
from engine.job.sections.paths import path_of
from engine.job.sections.persistence import PersistenceSection
from engine.job.sections.strategy import PIPELINE, SWAP, PipelineStrategy, Strategy, SwapStrategy
from engine.job.sections.tls import TlsSettings
from engine.job.sections.tracking import TrackingSection
from engine.schedule.layers import layers_of_stages
from engine.schedule.scenario import MOST_SPANS, Link, Scenario, Times
from engine.schedule.traversal import straight

# For the order of ops where nothing was measured: one core at 20 GFLOP/s. Never shown as a result.
NOMINAL_FLOPS_PER_MS = 2.0e7
# Under a hop that no link joins: so slow that no search takes it.
UNREACHABLE = HopNetwork(latency_ms=1e9, cap_gbps=1e-9, connections=1, window_bytes=1, rate_bytes_per_s=1.0)


class TrainDataCenter(Document):
    """A data centre and the GPUs in it that the job may use.

    hb_domain : GPUs that a fast network joins (NVLink in a node); None: the data centre is one such domain.
    port_gbps : what a node sends to all others together at most, and receives at the same time; None: each
        pair of nodes has its whole rate. For the prediction of sums of gradients alone.
    """

    name: Annotated[str, Field(min_length=1)]
    gpus: Annotated[Index, Field(le=10_000_000)]
    hb_domain: Annotated[Count, Field(le=10_000_000)] | None = None
    port_gbps: Annotated[Positive, Field(ge=1e-6, le=100_000)] | None = None


class TrainLink(Document):
    """The WAN between two data centres; bandwidth is the cap of one node pair and direction."""

    between: Annotated[list[str], Field(min_length=2, max_length=2)]
    latency_ms: Annotated[NonNegative, Field(le=10_000)]
    bandwidth_gbps: Annotated[Positive, Field(ge=1e-6, le=100_000)]
    connections: Annotated[Count, Field(le=256)] | None = None
    egress_price_per_gb: NonNegative | None = None


class JobFields(Document):
    """The sections of a training job, each field within its range, and what follows from them."""

    datacenters: Annotated[list[TrainDataCenter], Field(min_length=1)]
    links: list[TrainLink] = Field(default_factory=list)
    cell: CellSection
    model: AnyModel
    data: DataSection = DataSection()
    device: DeviceSection = DeviceSection()
    optimizer: OptimizerSection
    persistence: PersistenceSection = PersistenceSection()
    failures: FailuresSection = FailuresSection()
    tracking: TrackingSection = TrackingSection()
    strategy: Strategy
    prefill: PrefillSettings | None = None
    tls: TlsSettings | None = None

    @field_validator("strategy", mode="before")
    @classmethod
    def _known_kind(cls, strategy: Any) -> Any:
        if not isinstance(strategy, dict):
            return strategy
        kind = strategy.get("kind")
        if kind is None:
            raise InputError("kind", None, f"required, but missing: {PIPELINE} or {SWAP}")
        if kind not in (PIPELINE, SWAP):
            raise InputError("kind", kind, "unknown strategy, " + nearest(kind, [PIPELINE, SWAP]))
        return strategy

    @property
    def swap_strategy(self) -> SwapStrategy | None:
        """The strategy where each worker trains the whole model: its pipelines are its workers. Else None."""
        return self.strategy if isinstance(self.strategy, SwapStrategy) else None

    @property
    def pipeline_strategy(self) -> PipelineStrategy:
        """The strategy of a job whose pipelines follow a schedule. Raises TypeError where the job swaps."""
        if not isinstance(self.strategy, PipelineStrategy):
            raise TypeError("a job with strategy swap follows no schedule")
        return self.strategy

    @cached_property
    def dcs(self) -> tuple[int, ...]:
        """Index into `datacenters` of each stage; under `devices` of the first pipeline's."""
        return self.dcs_of_pipeline[0]

    @cached_property
    def dcs_of_pipeline(self) -> tuple[tuple[int, ...], ...]:
        """Index into `datacenters` of each stage, by pipeline: they differ under `devices` alone.

        With strategy swap of each worker, those included that join later.
        """
        if self.cell.devices is not None:
            joining = [[joins.device] for joins in self.swap_strategy.joins] if self.swap_strategy else []
            placed = Devices(pipelines=[*self.cell.devices.pipelines, *joining])
            return placed.dcs([dc.gpus for dc in self.datacenters])
        dcs = tuple(self.cell.dc_of_stage) if self.cell.dc_of_stage else (0,) * self.cell.stages
        return (dcs,) * self.cell.pipelines

    @property
    def is_mixed(self) -> bool:
        """Whether pipelines run through different data centres."""
        return len(set(self.dcs_of_pipeline)) > 1

    @property
    def tokens_per_step(self) -> int:
        return self.cell.global_batch * self.model.seq

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one microbatch's activation (or gradient) as computed."""
        return self.cell.micro_batch * self.model.seq * self.model.hidden * BYTES_OF_DTYPE[self.device.dtype]

    @property
    def wan_bytes(self) -> int:
        """Bytes of one microbatch's message over the WAN, padding included."""
        return max(self.tensor_bytes, self.cell.activation_bytes or 0)

    @property
    def sums_gradients(self) -> bool:
        """Whether ranks sum gradients: those of replicas, or those of the two ends that share a matrix."""
        return self.cell.pipelines > 1 or self.model.shape.has.tied

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass recomputes activations."""
        if self.cell.recompute is not None:
            return self.cell.recompute
        return bool(self.device.times_ms and max(as_list(self.device.times_ms.recompute)) > 0)

    @property
    def layers_of_stage(self) -> tuple[range, ...]:
        """The transformer blocks of each stage where a pipeline goes straight through the stages."""
        blocks = self.model.layers
        stages = layers_of_stages(blocks, straight(self.cell.stages), self.cell.layers_per_stage)
        inner = ([n - 1 for n in layers if 1 <= n <= blocks] for (layers,) in stages)
        return tuple(range(numbers[0], numbers[-1] + 1) for numbers in inner)

    @cached_property
    def hops(self) -> dict[int, HopNetwork]:
        """The network under each WAN hop s → s+1, by s."""
        networks = {hop: self.network(hop) for hop in range(self.cell.stages - 1)}
        return {hop: network for hop, network in networks.items() if network is not None}

    def network(self, hop: int, pipeline: int = 0) -> HopNetwork | None:
        """The network under hop s → s+1 of a pipeline, the last one from the last stage to the first.

        None inside a DC, and where no link is.
        """
        dcs = self.dcs_of_pipeline[pipeline]
        return self.between(dcs[hop], dcs[(hop + 1) % self.cell.stages])

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
        connections = link.connections or (None if self.cell.connections == "auto" else self.cell.connections)
        return hop_network(latency_ms=link.latency_ms, cap_gbps=link.bandwidth_gbps, connections=connections)

    @cached_property
    def scenario(self) -> Scenario:
        """A cell's iteration, in milliseconds: what the simulator times and what the executor runs."""
        return self.scenario_with(self.times)

    @cached_property
    def pass_scenario(self) -> Scenario:
        """The scenario of one pass: what the policy makes a schedule for. An iteration has `accumulation`."""
        return self.scenario_with(self.times, microbatches=self.cell.microbatches)

    def scenario_with(self, times: Times, *, microbatches: int | None = None) -> Scenario:
        """The same scenario with other (for instance measured) op times, in milliseconds."""
        dcs = self._scenario_dcs
        hops = [hop for hop in range(self.cell.stages) if dcs[hop] != dcs[(hop + 1) % self.cell.stages]]
        wan = [self._slowest(hop) for hop in hops]
        rules, cell = self.pipeline_strategy, self.cell
        values = {
            "stages": cell.stages,
            "dc_of_stage": list(dcs),
            "pipelines": cell.cell_pipelines,
            "microbatches": microbatches or cell.microbatches_of_step,
            "times": times,
            "wan": wan or Link(),
            "sharing": "spatial" if self.is_mixed else rules.sharing,
            "memory_limit": rules.memory_limit,
            "full_limit": rules.full_limit,
            "policy": rules.policy,
            "contention": rules.contention,
            "recompute_rule": rules.recompute_rule,
            "chunks": self._chunks,
            "traversal": rules.traversal,
            "time_limit_s": rules.time_limit_s,
        }
        try:
            return parse(Scenario, values)
        except InputError as error:
            # A job has no spans, and its microbatches are times accumulation.
            if error.field not in ("spans", "microbatches"):
                raise InputError(path_of(error.field), error.value, error.allowed) from None
            allowed = f"times accumulation, stages and pipelines: at most {MOST_SPANS:,} ops per iteration"
            raise InputError("cell.microbatches", cell.microbatches, allowed) from None

    @cached_property
    def _scenario_dcs(self) -> tuple[int, ...]:
        """DCs of the stages for the scenario; where pipelines are mixed, new numbers after each WAN hop."""
        if not self.is_mixed:
            return self.dcs
        number, numbers = 0, [0]
        for hop in range(self.cell.stages - 1):
            number += any(dcs[hop] != dcs[hop + 1] for dcs in self.dcs_of_pipeline)
            numbers.append(number)
        return tuple(numbers)

    def _slowest(self, hop: int) -> Link:
        """A hop as the slowest pipeline has it: a schedule knows one network for all of them."""
        crossing = [dcs for dcs in self.dcs_of_pipeline if dcs[hop] != dcs[(hop + 1) % self.cell.stages]]
        networks = [
            self.between(dcs[hop], dcs[(hop + 1) % self.cell.stages]) or UNREACHABLE for dcs in crossing
        ]
        return Link(
            latency=max((network.latency_ms for network in networks), default=0.0),
            transfer=max((network.transfer_ms(self.wan_bytes) for network in networks), default=0.0),
        )

    @property
    def _chunks(self) -> int | None:
        # What auto chooses must have a layer for every chunk.
        rules = self.pipeline_strategy
        too_few = rules.policy == "auto" and self.chunk_without_layer(2) is not None
        return 1 if rules.chunks is None and too_few else rules.chunks

    def chunk_without_layer(self, chunks: int) -> InputError | None:
        """Why not every chunk has a layer, if stages have so many; None if each has."""
        cell, of_chunks = self.cell, f" × {chunks} chunks" if chunks > 1 else ""
        if self.model.layers < cell.stages * chunks:
            allowed = f"at least one layer per stage and chunk: {cell.stages} stages{of_chunks}"
            return InputError("model.layers", self.model.layers, allowed)
        for stage, layers in enumerate(cell.layers_per_stage or []):
            if layers < chunks:
                allowed = f"at least one for each of a stage's {chunks} chunks"
                return InputError(f"cell.layers_per_stage[{stage}]", layers, allowed)
        return None

    @cached_property
    def times(self) -> Times:
        """Op times in milliseconds that the schedule is made for: `times_ms`, or a count of FLOPs."""
        times = self.device.times_ms or _nominal_times(self)
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
    model, tokens = job.model, job.cell.micro_batch * job.model.seq
    block = tokens * (2 * model.shape.layer_weights + 4 * model.seq * model.hidden)
    flops = [len(layers) * block for layers in job.layers_of_stage]
    flops[-1] += 2 * tokens * model.vocabulary * model.hidden
    forward = [count / NOMINAL_FLOPS_PER_MS / job.cell.tp for count in flops]
    return Times(forward=forward, backward=forward, weight=forward)
