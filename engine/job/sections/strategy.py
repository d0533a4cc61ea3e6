"""`strategy` of a training job, by `kind`: pipelines that follow a schedule, or workers that swap."""

from typing import Annotated, Literal

from pydantic import Field

from engine.inputs import Count, Document, Index, Positive
from engine.plan.swap.request import GpuInput
from engine.schedule.ir import Sharing
from engine.schedule.scenario import MOST_CHUNKS, MOST_SECONDS, Contention, Limits, RecomputeRule
from engine.schedule.traversal import TraversalName

PIPELINE = "pipeline"
SWAP = "swap"
MOST_CHANGES = 256
DEFAULT_TIME_LIMIT_S = 60.0


class PipelineStrategy(Document):
    """Each pipeline is cut into stages, which follow a schedule.

    policy, sharing, contention, recompute_rule, memory_limit, full_limit, chunks, traversal : as in
        `meridian simulate`.
    time_limit_s : of a search for the schedule.
    schedule : the schedule as text, in place of the policy's own.
    """

    kind: Literal["pipeline"] = "pipeline"
    policy: str
    sharing: Sharing | None = None
    contention: Contention | None = None
    recompute_rule: RecomputeRule | None = None
    memory_limit: Limits | None = None
    full_limit: Limits | None = None
    chunks: Annotated[Count, Field(le=MOST_CHUNKS)] | None = None
    traversal: TraversalName | None = None
    time_limit_s: Annotated[Positive, Field(le=MOST_SECONDS)] = DEFAULT_TIME_LIMIT_S
    schedule: Annotated[str, Field(min_length=1)] | None = None


class Joins(Document):
    """A worker on `device` (numbered through `datacenters`) comes when `after_step` steps are done."""

    after_step: Annotated[Index, Field(ge=1)]
    device: Index


class Leaves(Document):
    """`worker` goes when `after_step` steps are done; those that join are numbered after the first ones."""

    after_step: Annotated[Index, Field(ge=1)]
    worker: Index


class SwapStrategy(Document):
    """Each worker trains the whole model and swaps its sub-models in and out (ATOM).

    gpu : memory_bytes and host_to_device_gb_s, or a name of the catalogue.
    gradients : host: a sub-model's leave the device when its backward visit ends; device: those of the whole
        model stay there until the global batch is done.
    """

    kind: Literal["swap"] = "swap"
    gpu: GpuInput
    gradients: Literal["host", "device"] = "host"
    joins: Annotated[list[Joins], Field(max_length=MOST_CHANGES)] = []
    leaves: Annotated[list[Leaves], Field(max_length=MOST_CHANGES)] = []


Strategy = Annotated[PipelineStrategy | SwapStrategy, Field(discriminator="kind")]
