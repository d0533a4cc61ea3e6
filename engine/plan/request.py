"""The document of `meridian plan FILE`, as docs/dev/contracts.md names its fields. Units are in the names."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from engine.cluster.fabric import ANY_TO_ANY, FabricKind
from engine.cluster.gpus import Gpu, gpu
from engine.errors import InputError
from engine.inputs import Count, Document, Flag, Index, Limit, NonNegative, Number, Positive, nearest, parse
from engine.model.document import NameOrShape
from engine.model.families.config import LARGEST
from engine.model.flops import Recompute
from engine.model.layer_profiles import FRAMEWORK_BYTES, read_profiles, read_sizes
from engine.model.presets import PRESETS
from engine.model.serving import PrefillBudget
from engine.model.stages import MeasuredProfile
from engine.plan.own_gpu import LEAST_RATE, GpuOrName
from engine.plan.pools import with_pools
from engine.schedule.scenario import MOST_OPS, MOST_STAGES, Contention, RecomputeRule, Scenario

Objective = Literal["throughput", "cost", "cost_per_token"]
Bill = Literal["used", "whole"]

# The paper caps nodes of one data centre at this (Atlas §6.1); a document may set another value.
DEFAULT_INTRA_GBPS = 100.0
MOST_GPUS = 10_000_000
LEAST_GBPS = 1e-6
MOST_OPTIONS = 100_000
MOST_LAYOUTS = 64
# Llama 3 herd, table 4: 38–43 % of the bf16 peak on 8 to 16 thousand H100s.
DEFAULT_MFU = 0.4
ROOFLINE_BYTES = 2  # of a number, unless times are from `mfu`
KINDS = 3  # forward, recompute, backward


class DataCenterInput(Document):
    """A data centre: its GPUs of one type, their hourly price, and the network between its nodes.

    intra_gbps, intra_latency_ms : of one node, on rails of one GPU, per direction; one way.
    fabric : the network inside. hb_domain : with rails the GPUs of each HB domain, such as those of a node.
    link_gb_s : GPU to GPU in a node, per direction, of a GPU with own figures; the catalogue knows its own.
    profiled_gpu : its name in `job.layer_profiles`; by default that of the type.
    """

    name: str = Field(min_length=1, max_length=200)
    gpus: Index = Field(le=MOST_GPUS)
    gpu_type: GpuOrName
    link_gb_s: Positive | None = Field(default=None, ge=LEAST_RATE)
    price_per_gpu_hour: NonNegative
    profiled_gpu: str | None = Field(default=None, min_length=1, max_length=200)
    intra_gbps: Positive | None = Field(default=None, ge=LEAST_GBPS)
    intra_latency_ms: NonNegative = 0.0
    fabric: FabricKind = ANY_TO_ANY
    hb_domain: Count | None = Field(default=None, le=MOST_GPUS)
    latitude: Number | None = Field(default=None, ge=-90, le=90)
    longitude: Number | None = Field(default=None, ge=-180, le=180)

    @model_validator(mode="after")
    def _one_rate(self) -> "DataCenterInput":
        if self.link_gb_s is not None and isinstance(self.gpu_type, str):
            raise InputError("link_gb_s", self.link_gb_s, "leave it out for a GPU type of the catalogue")
        if self.fabric == ANY_TO_ANY and self.hb_domain is not None:
            allowed = "leave it out with any-to-any; or set fabric: rail-optimised or rail-only"
            raise InputError("hb_domain", self.hb_domain, allowed)
        if self.fabric != ANY_TO_ANY and self.hb_domain is None:
            raise InputError("hb_domain", None, f"required with {self.fabric}: the GPUs of each HB domain")
        if self.fabric != ANY_TO_ANY and not self.gpu().link_bytes_per_s:
            raise InputError(
                "link_gb_s", None, f"required with {self.fabric}: the GPU type has no own figure"
            )
        return self

    def gpu(self) -> Gpu:
        """Its type of GPU; one with own figures has them for a name, as answers tell types apart by name."""
        known = self._gpu()
        return known if self.profiled_gpu is None else replace(known, name=self.profiled_gpu)

    def _gpu(self) -> Gpu:
        own = self.gpu_type
        if isinstance(own, str):
            return gpu(own)
        name = f"GPU of {own.peak_tflops:g} TFLOP/s, {own.memory_gb:g} GB at {own.hbm_gb_s:g} GB/s"
        if self.link_gb_s is not None:
            name += f", links of {self.link_gb_s:g} GB/s"
        return own.gpu(name=name, link_gb_s=self.link_gb_s)


def named_once(datacenters: list[DataCenterInput]) -> Iterator[InputError]:
    """Why some have no name of their own."""
    first: dict[str, int] = {}
    for i, dc in enumerate(datacenters):
        if first.setdefault(dc.name, i) != i:
            allowed = f"already the name of datacenters[{first[dc.name]}]"
            yield InputError(f"datacenters[{i}].name", dc.name, allowed)


class LinkInput(Document):
    """The WAN between two data centres, per node pair and direction.

    One link is both directions. Two, the second with `between` the other way round, are one direction each,
    from the first data centre to the second.
    """

    between: list[str] = Field(min_length=2, max_length=2)
    latency_ms: NonNegative
    bandwidth_gbps: Positive = Field(ge=LEAST_GBPS)
    connections: Count | None = Field(default=None, le=1_000_000)
    egress_price_per_gb: NonNegative = 0.0


EXPLICIT = (
    "forward_ms",
    "backward_ms",
    "recompute_ms",
    "comm_to_compute",
    "parameters_per_stage",
    "activation_bytes",
    "tokens_per_microbatch",
)
OF_A_MODEL = (
    "micro_batch",
    "tp",
    "cp",
    "ep",
    "sequence_parallel",
    "layers_per_stage",
    "mfu",
    "measured",
    "dtype_bytes",
    "recompute",
    "fused_attention",
    "zero",
    "prefill",
    "memory_margin",
)


def _number_or_list(value: object) -> str:
    return "list[int]" if isinstance(value, list | tuple) else "int"


_either = Discriminator(_number_or_list)
_several = Field(min_length=1, max_length=MOST_LAYOUTS)
StageCount = Annotated[Count, Field(le=MOST_STAGES)]
Partitions = Annotated[
    Annotated[StageCount, Tag("int")] | Annotated[list[StageCount], _several, Tag("list[int]")], _either
]
TpDegree = Annotated[Count, Field(le=100_000)]
TpDegrees = Annotated[
    Annotated[TpDegree, Tag("int")] | Annotated[list[TpDegree], _several, Tag("list[int]")], _either
]
LayersPerStage = Annotated[
    Annotated[Literal["even", "balanced"], Tag("str")]
    | Annotated[list[Count], Field(min_length=1, max_length=MOST_STAGES), Tag("list[int]")],
    Discriminator(lambda value: "list[int]" if isinstance(value, list | tuple) else "str"),
]
Sequences = Annotated[Count, Field(le=1_000_000)]
MicroBatches = Annotated[
    Annotated[Sequences, Tag("int")] | Annotated[list[Sequences], _several, Tag("list[int]")], _either
]


def _recompute_by_name(value: object) -> object:
    return {True: "full", False: "none"}[value] if isinstance(value, bool) else value


RecomputeChoice = Annotated[Literal["none", "selective", "full", "auto"], BeforeValidator(_recompute_by_name)]


class LayerProfilesInput(Document):
    """Measured seconds and sizes of each layer of a model, as engine.model.layer_profiles reads them.

    times : model → GPU → micro-batch → tp → layer → [forward, backward, update] seconds.
    sizes : model → tp → layer → parameters and bytes.
    layers_per_stage : numbers of layers; by default such that the slowest stage takes least.
    seq : tokens of a sequence, for figures per token.
    framework_gb : memory that CUDA, NCCL and the framework take on each GPU.
    """

    times: dict[str, Any]
    sizes: dict[str, Any]
    layers_per_stage: list[Count] | None = None
    seq: Count | None = Field(default=None, le=LARGEST)
    framework_gb: NonNegative = FRAMEWORK_BYTES / 1e9

    @field_validator("times")
    @classmethod
    def _readable_times(cls, table: dict[str, Any]) -> dict[str, Any]:
        read_profiles(table)
        return table

    @field_validator("sizes")
    @classmethod
    def _readable_sizes(cls, table: dict[str, Any]) -> dict[str, Any]:
        read_sizes(table)
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A layout of a job: stages of a pipeline, tensor-parallel degree, sequences of a microbatch.

    cp : context-parallel degree.
    layers : of each stage; None: as even as possible.
    recompute : of each stage; or the microbatches in flight that each stage must have memory for, with the
        least recomputation; None: as the document says.
    """

    partitions: int
    tp: int
    micro_batch: int
    cp: int = 1
    layers: tuple[int, ...] | None = None
    recompute: tuple[Recompute, ...] | int | None = None

    @property
    def gpus_per_stage(self) -> int:
        """GPUs of one stage of one pipeline."""
        return self.tp * self.cp


class JobInput(Document):
    """The training job: a model, or the times of a stage themselves.

    A model's times come from rooflines, from `mfu` if it is given, or from `measured` times. With
    `layer_profiles`, `model` is its name there, and times and sizes are sums over the layers of a stage.
    cp : context-parallel degree: GPUs of a stage that each have 1/cp of the tokens of every sequence.
    ep : expert-parallel degree: pipelines that share the experts of their stages.
    sequence_parallel : norms, dropouts and residuals are split over the `tp` GPUs too.
    layers_per_stage : even; balanced: by speed and memory of the GPUs; or the numbers.
    recompute : activations that are computed again for the backward pass (Korthikanti et al. 2022): none; of
        attention's core (selective); of whole stages (full, or true; none is false); auto: for each stage the
        least that memory allows.
    fused_attention : attention's core stores nothing, so there selective is none.
    zero : 1: the replicas of a stage share the optimizer's state (ZeRO-1); 0: each has all of it.
    prefill : memory that every GPU reserves for prefill in its bubbles; None: nothing.
    memory_margin : share of the counted memory that must stay free on every GPU.
    """

    partitions: Partitions
    microbatches: Count = Field(le=10_000_000)
    model: NameOrShape | None = None
    micro_batch: MicroBatches = 1
    tp: TpDegrees = 1
    cp: TpDegree = 1
    ep: TpDegree = 1
    sequence_parallel: Flag = True
    layers_per_stage: LayersPerStage = "even"
    mfu: Positive | None = Field(default=None, ge=1e-6, le=1)
    measured: MeasuredProfile | None = None
    layer_profiles: LayerProfilesInput | None = None
    dtype_bytes: Literal[1, 2, 4, 8] = 2
    recompute: RecomputeChoice = "full"
    fused_attention: Flag = True
    zero: Literal[0, 1] = 0
    prefill: PrefillBudget | None = None
    memory_margin: NonNegative = Field(default=0.0, le=1)
    forward_ms: Positive | None = None
    backward_ms: Positive | None = None
    recompute_ms: NonNegative | None = None
    comm_to_compute: NonNegative | None = None
    parameters_per_stage: NonNegative | None = None
    activation_bytes: NonNegative | None = None
    tokens_per_microbatch: Count | None = Field(default=None, le=10**15)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Every layout of the job that the document allows; of equals the first."""
        degrees = (_each(self.partitions), _each(self.tp), _each(self.micro_batch))
        every = itertools.product(*degrees)
        layers = tuple(self.layers_per_stage) if isinstance(self.layers_per_stage, list) else None
        return tuple(
            dict.fromkeys(
                Layout(partitions=p, tp=tp, micro_batch=b, cp=self.cp, layers=layers) for p, tp, b in every
            )
        )

    @property
    def serving_bytes(self) -> int:
        """Bytes of one GPU that are reserved for prefill."""
        return 0 if self.prefill is None else self.prefill.bytes

    @model_validator(mode="after")
    def _one_source(self) -> "JobInput":
        if self.layer_profiles is not None:
            for problem in self._of_layer_profiles():
                raise problem
        elif isinstance(self.model, str) and self.model not in PRESETS:
            raise InputError("model", self.model, "unknown model, " + nearest(self.model, PRESETS))
        if self.model is not None:
            self._refuse(EXPLICIT, "comes from the model: leave it out, or leave out model")
            for problem in self._of_a_model():
                raise problem
            return self
        if isinstance(self.partitions, list):
            raise InputError("partitions", self.partitions, "one number if no model is given")
        self._refuse(OF_A_MODEL, "applies to a model: give model, or leave it out")
        for name in ("forward_ms", "backward_ms", "comm_to_compute"):
            if getattr(self, name) is None:
                raise InputError(name, None, "required without a model")
        return self

    def _of_layer_profiles(self) -> Iterator[InputError]:
        assert self.layer_profiles is not None
        if not isinstance(self.model, str):
            yield InputError("model", self.model, "must be the model's name in layer_profiles")
        names = ("mfu", "measured", "dtype_bytes", "fused_attention", "zero", "cp", "ep", "sequence_parallel")
        self._refuse(names, "leave it out with layer_profiles")
        self._refuse(("layers_per_stage",), "with layer_profiles it is layer_profiles.layers_per_stage")
        if "recompute" in self.model_fields_set and self.recompute != "none":
            allowed = "layer_profiles have no recomputation: leave it out"
            yield InputError("recompute", self.recompute, allowed)
        if self.layer_profiles.layers_per_stage is not None and isinstance(self.partitions, list):
            yield InputError("partitions", self.partitions, "one number with layer_profiles.layers_per_stage")

    def _of_a_model(self) -> Iterator[InputError]:
        if len(self.layouts) > MOST_LAYOUTS:
            allowed = f"with tp and micro_batch gives {len(self.layouts)} layouts; at most {MOST_LAYOUTS}"
            yield InputError("partitions", self.partitions, allowed)
        if self.mfu is None and self.dtype_bytes != ROOFLINE_BYTES:
            allowed = f"needs mfu: without it times are of {ROOFLINE_BYTES}-byte numbers"
            yield InputError("dtype_bytes", self.dtype_bytes, allowed)
        if isinstance(self.layers_per_stage, list) and self.partitions != len(self.layers_per_stage):
            allowed = f"one number per stage: partitions is {self.partitions}"
            yield InputError("layers_per_stage", self.layers_per_stage, allowed)
        if self.layers_per_stage == "balanced" and self.recompute == "auto":
            allowed = "none, selective or full with balanced layers; or give even layers, or numbers"
            yield InputError("recompute", "auto", allowed)
        if self.measured is None:
            return
        if self.layers_per_stage == "balanced":
            yield InputError("layers_per_stage", "balanced", "even or numbers if stages were measured")
        if self.mfu is not None:
            yield InputError("mfu", self.mfu, "leave it out if times are measured")
        if self.recompute == "auto":
            allowed = "none, selective or full: measured times are of one of them"
            yield InputError("recompute", "auto", allowed)
        if len(self.layouts) > 1:
            yield InputError("measured", "rows", "needs a single partitions, tp and micro_batch, not lists")

    def _refuse(self, names: tuple[str, ...], allowed: str) -> None:
        for name in names:
            if name in self.model_fields_set and getattr(self, name) is not None:
                raise InputError(name, getattr(self, name), allowed)


def _each(value: int | list[int]) -> list[int]:
    return value if isinstance(value, list) else [value]


class PlanRequest(Document):
    """A validated plan request."""

    datacenters: list[DataCenterInput] = Field(min_length=1, max_length=10_000)
    links: list[LinkInput] = Field(default_factory=list)
    job: JobInput
    order: Literal["gpus", "price"] | list[str] = "gpus"
    method: Literal["algorithm1", "search"] = "search"
    policy: str
    recompute_rule: RecomputeRule | None = None
    contention: Contention | None = None
    memory_limit: Limit | None = None
    max_dp_cells: Count | None = Field(default=None, le=MOST_OPTIONS)
    allreduce: Flag = True
    budget_per_iteration: NonNegative | None = None
    deadline_h: Positive | None = None
    iterations: Count | None = Field(default=None, le=10**15)
    allowed: list[str] | None = None
    objective: Objective = "throughput"
    bill: Bill = "used"

    @model_validator(mode="before")
    @classmethod
    def _pool_by_pool(cls, data: object) -> object:
        """Each pool of a data centre as one of its own."""
        if not isinstance(data, dict):
            return data
        return with_pools(data, lambda dc, at: parse(DataCenterInput, dc, at=at), DEFAULT_INTRA_GBPS)

    @model_validator(mode="before")
    @classmethod
    def _default_policy(cls, data: object) -> object:
        """Algorithm 1 is printed with Atlas's schedule; the search takes the best policy."""
        if isinstance(data, dict) and data.get("policy") is None:
            return {**data, "policy": "atlas" if data.get("method") == "algorithm1" else "auto"}
        return data

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, policy: str) -> str:
        return Scenario._known_policy(policy)

    @model_validator(mode="after")
    def _consistent(self) -> "PlanRequest":
        checks = (self._types, self._links, self._order, self._allowed, self._needed, self._size)
        for problem in itertools.chain(named_once(self.datacenters), *(check() for check in checks)):
            raise problem
        return self

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The data centres as listed."""
        return tuple(dc.name for dc in self.datacenters)

    @cached_property
    def index_of(self) -> dict[str, int]:
        """The place of each data centre in the list, by its name."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def allowed_names(self) -> frozenset[str]:
        """The data centres that may be used."""
        return frozenset(self.names if self.allowed is None else self.allowed)

    def _types(self) -> Iterator[InputError]:
        """GPUs that a profile calls by one name are of one type."""
        first: dict[str, Gpu] = {}
        for i, dc in enumerate(self.datacenters):
            if dc.profiled_gpu is None:
                continue
            field = f"datacenters[{i}].profiled_gpu"
            if self.job.layer_profiles is None:
                yield InputError(field, dc.profiled_gpu, "leave it out without job.layer_profiles")
            elif first.setdefault(dc.profiled_gpu, dc.gpu()) != dc.gpu():
                yield InputError(field, dc.profiled_gpu, "needs the same gpu_type in every data centre")

    def _links(self) -> Iterator[InputError]:
        first: dict[tuple[str, ...], int] = {}
        for i, link in enumerate(self.links):
            field = f"links[{i}].between"
            yield from self._known(field, link.between, twice="must name two different data centres")
            joined = first.setdefault(tuple(link.between), i)
            if joined != i:
                yield InputError(field, link.between, f"already joined by links[{joined}]")
            back = first.get(tuple(reversed(link.between)))
            if back is not None and self.links[back].connections != link.connections:
                allowed = f"must be as in links[{back}], the other direction"
                yield InputError(f"links[{i}].connections", link.connections, allowed)

    @cached_property
    def both_ways(self) -> tuple[tuple[LinkInput, ...], ...]:
        """The links by the pair of data centres that they join: one for both directions, or one for each."""
        pairs: dict[frozenset[str], list[LinkInput]] = {}
        for link in self.links:
            pairs.setdefault(frozenset(link.between), []).append(link)
        return tuple(map(tuple, pairs.values()))

    @property
    def symmetrised(self) -> list[list[str]]:
        """Pairs whose directions differ: their mean counts, in both."""
        differ = ("latency_ms", "bandwidth_gbps", "egress_price_per_gb")
        return [
            pair[0].between
            for pair in self.both_ways
            if any(getattr(link, name) != getattr(pair[0], name) for link in pair for name in differ)
        ]

    def _order(self) -> Iterator[InputError]:
        if isinstance(self.order, str):
            return
        yield from self._known("order", self.order)
        missing = sorted(self.allowed_names - set(self.order))
        if missing:
            allowed = "must name every data centre once; missing: " + ", ".join(missing)
            yield InputError("order", self.order, allowed)

    def _allowed(self) -> Iterator[InputError]:
        if self.allowed is not None:
            yield from self._known("allowed", self.allowed)
            if not self.allowed:
                yield InputError("allowed", self.allowed, "must name at least one data centre")

    def _known(self, field: str, given: list[str], twice: str = "named twice") -> Iterator[InputError]:
        known, seen = set(self.names), set()
        for i, name in enumerate(given):
            if name not in known:
                allowed = "unknown data centre, " + nearest(name, self.names)
                yield InputError(f"{field}[{i}]", name, allowed)
            if name in seen:
                yield InputError(f"{field}[{i}]", name, twice)
            seen.add(name)

    def _needed(self) -> Iterator[InputError]:
        """Fields that other fields require."""
        job = self.job
        if self.deadline_h is not None and self.iterations is None:
            yield InputError(
                "iterations", None, "required with deadline_h: the number of iterations until then"
            )
        if job.model is not None:
            return
        if self.allreduce and job.parameters_per_stage is None:
            allowed = "required for the all-reduce; or set allreduce: false"
            yield InputError("job.parameters_per_stage", None, allowed)
        if job.activation_bytes is None and any(link.egress_price_per_gb for link in self.links):
            yield InputError("job.activation_bytes", None, "required if a link has an egress_price_per_gb")
        if self.objective == "cost_per_token" and job.tokens_per_microbatch is None:
            yield InputError("job.tokens_per_microbatch", None, "required for objective cost_per_token")

    def _size(self) -> Iterator[InputError]:
        if self.method == "algorithm1" and len(self.job.layouts) > 1:
            yield InputError(
                "method", self.method, "accepts no lists of partitions, tp, micro_batch; use search"
            )
        if self.method == "algorithm1" and self.job.recompute == "auto":
            allowed = "none, selective or full with algorithm1; or use search"
            yield InputError("job.recompute", "auto", allowed)
        ops = max(layout.partitions for layout in self.job.layouts) * self.job.microbatches * KINDS
        if ops > MOST_OPS:
            allowed = f"partitions × microbatches gives {ops} ops per pipeline; at most {MOST_OPS} in a cell"
            yield InputError("job.microbatches", self.job.microbatches, allowed)
