"""The document of `meridian cross-dc FILE`. Units are in the names."""

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, NonNegative, Positive, nearest
from engine.model.flops import Recompute
from engine.plan.request import LEAST_GBPS, DataCenterInput, JobInput, named_once
from engine.schedule.scenario import MOST_OPS, Sends

# Those of a straight path or a wave: a loop's way back from the last data centre to the first has a link of
# its own in a scenario, and here it has none.
POLICIES = ("gpipe", "1f1b", "varuna", "zb-h1", "zb-v", "crosspipe-ud", "crosspipe-udsub", "crosspipe-wave")
DEFAULT_POLICIES = ("zb-h1", "zb-v", "crosspipe-ud", "crosspipe-wave")
# Those with two model chunks or sub-blocks of each stage.
IN_CHUNKS = frozenset({"zb-v", "crosspipe-udsub", "crosspipe-wave"})
MOST_POINTS = 1_000
MOST_DCS = 64
MOST_FACTOR = 10_000
MOST_VARIANTS = 16  # batches, and ways to recompute, that one answer compares
OPS_OF_A_MICROBATCH = 8  # F, R, B, W of two chunks


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


_points = Field(min_length=1, max_length=MOST_POINTS)
Bandwidths = Annotated[list[Annotated[Positive, Field(ge=LEAST_GBPS)]], BeforeValidator(_listed), _points]
Latencies = Annotated[list[NonNegative], BeforeValidator(_listed), _points]
_variants = Field(min_length=1, max_length=MOST_VARIANTS)
Batches = Annotated[list[Annotated[Count, Field(le=MOST_FACTOR)]], BeforeValidator(_listed), _variants]
Modes = Annotated[list[Recompute], BeforeValidator(_listed), _variants]


class BoundaryInput(Document):
    """The WAN between two adjacent data centres, which all traffic of the job shares; all are alike.

    bandwidth_gbps : in total, per direction; latency_ms : one way. A list has the points of the comparison.
    """

    bandwidth_gbps: Bandwidths
    latency_ms: Latencies
    egress_price_per_gb: NonNegative | None = None


class CrossDcRequest(Document):
    """A validated request: equal data centres in a row, one job, and `replicas` pipelines of it in total.

    sends : of schedules over the WAN, overlapped or blocking.
    batches : global batches to compare next to the job's, as multiples of it.
    recompute : recomputation to compare next to the job's; None: the job's alone.
    """

    datacenters: list[DataCenterInput] = Field(min_length=2, max_length=MOST_DCS)
    boundary: BoundaryInput
    job: JobInput
    replicas: Count = Field(le=1_000_000)
    policies: list[str] = Field(default=list(DEFAULT_POLICIES), min_length=1)
    sends: Sends = "overlapped"
    batches: Batches = [1]
    recompute: Modes | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "CrossDcRequest":
        checks = (self._equal, self._sizes, self._varied, self._divided, self._room)
        names = itertools.chain(self._policies(), named_once(self.datacenters))
        for problem in itertools.chain(names, *(check() for check in checks)):
            raise problem
        return self

    @cached_property
    def variants(self) -> list[tuple[int, Recompute | None]]:
        """Every other global batch and recomputation: (factor, mode in place of the job's), each once."""
        modes: list[Recompute | None] = [None]
        if self.recompute is not None:
            modes = [None if mode == self.job.recompute else mode for mode in self.recompute]
        every = itertools.product(modes, self.batches)
        return [(factor, mode) for mode, factor in dict.fromkeys(every) if (mode, factor) != (None, 1)]

    @property
    def dcs(self) -> int:
        return len(self.datacenters)

    @cached_property
    def gpus_per_dc(self) -> int:
        """GPUs that both need in each data centre: P/n stages of all pipelines, or all stages of R/n."""
        layout = self.job.layouts[0]
        return layout.partitions * layout.gpus_per_stage * self.replicas // self.dcs

    def _policies(self) -> Iterator[InputError]:
        for i, policy in enumerate(self.policies):
            if policy not in POLICIES:
                allowed = "cannot be compared here, " + nearest(policy, POLICIES)
                yield InputError(f"policies[{i}]", policy, allowed)
            if policy in self.policies[:i]:
                yield InputError(f"policies[{i}]", policy, "named twice")

    def _equal(self) -> Iterator[InputError]:
        first = self.datacenters[0].gpu()
        for i, dc in enumerate(self.datacenters):
            if dc.gpu() != first:
                allowed = (
                    f"must be that of datacenters[0], {first.name}: the data centres are compared as equals"
                )
                yield InputError(f"datacenters[{i}].gpu_type", dc.gpu().name, allowed)

    def _sizes(self) -> Iterator[InputError]:
        job = self.job
        for name in ("partitions", "tp", "micro_batch"):
            if isinstance(getattr(job, name), list):
                yield InputError(f"job.{name}", getattr(job, name), "must be one number here")
        if job.zero:
            yield InputError("job.zero", job.zero, "must be 0 here: replicas are in several data centres")
        if job.ep > 1:
            yield InputError("job.ep", job.ep, "must be 1 here: replicas are in several data centres")
        if job.recompute == "auto":
            yield InputError("job.recompute", "auto", "must be none, selective or full here")
        if job.model is None:
            for name in ("parameters_per_stage", "activation_bytes"):
                if not getattr(job, name):
                    allowed = "required and above 0: it says how much crosses the WAN"
                    yield InputError(f"job.{name}", getattr(job, name), allowed)
        points = len(self.boundary.bandwidth_gbps) * len(self.boundary.latency_ms)
        if points > MOST_POINTS:
            allowed = f"with latency_ms gives {points} points; at most {MOST_POINTS}"
            yield InputError("boundary.bandwidth_gbps", self.boundary.bandwidth_gbps, allowed)
        ops = job.layouts[0].partitions * job.microbatches * OPS_OF_A_MICROBATCH
        if ops > MOST_OPS:
            allowed = f"with partitions gives {ops} ops per pipeline; at most {MOST_OPS}"
            yield InputError("job.microbatches", job.microbatches, allowed)
        if ops * max(self.batches) > MOST_OPS:
            allowed = f"gives {ops * max(self.batches)} ops per pipeline; at most {MOST_OPS}"
            yield InputError("batches", max(self.batches), allowed)

    def _varied(self) -> Iterator[InputError]:
        job = self.job
        if self.recompute and (job.model is None or job.layer_profiles or job.measured):
            allowed = "needs a job with a model, and times that were not measured: they follow from it"
            yield InputError("recompute", self.recompute, allowed)
        points = len(self.boundary.bandwidth_gbps) * len(self.boundary.latency_ms)
        if points * (1 + len(self.variants)) > MOST_POINTS:
            allowed = f"give {len(self.variants)} times {points} points more; at most {MOST_POINTS} in all"
            yield InputError("batches", self.batches, allowed)

    def _divided(self) -> Iterator[InputError]:
        for field, value in (("replicas", self.replicas), ("job.partitions", self.job.layouts[0].partitions)):
            if value % self.dcs:
                allowed = (
                    f"must be a multiple of {self.dcs}, the number of data centres: each gets an equal part"
                )
                yield InputError(field, value, allowed)

    def _room(self) -> Iterator[InputError]:
        for i, dc in enumerate(self.datacenters):
            if dc.gpus < self.gpus_per_dc:
                allowed = f"must be at least {self.gpus_per_dc}, its part of {self.replicas} pipelines"
                yield InputError(f"datacenters[{i}].gpus", dc.gpus, allowed)
