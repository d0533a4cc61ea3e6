"""What a run reports that continued after a failure, or that planned again."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from engine.job.events.base import (
    Amount,
    LeftOut,
    OfRank,
    Ordinal,
    Part,
    Text,
    Unix,
    Yes,
)

# A rank as a key of an object.
RankKey = Annotated[str, Field(pattern="^[0-9]{1,9}$")]


class Source(StrEnum):
    """Where a run that recovers has its state from."""

    MEMORY = "memory"
    PEER = "peer"
    CHECKPOINT = "checkpoint"
    START = "start"


class Failed(StrEnum):
    """What was lost when a run recovers."""

    RANK = "rank"
    NODE = "node"
    LINK = "link"
    DATACENTER = "datacenter"


class TimedWork(StrEnum):
    """What a plan gives a duration: a kind of op, a transfer over a link, or the way along it."""

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    WEIGHT = "W"
    LINK = "link"
    LATENCY = "latency"

    @property
    def between_stages(self) -> bool:
        """Whether it is of a link, and not of a GPU."""
        return self in (TimedWork.LINK, TimedWork.LATENCY)


class Cause(StrEnum):
    """Why a run looks for another layout although its times are as planned."""

    RESERVE = "reserve"
    FORGOTTEN = "forgotten"


class GpuOfRun(Part):
    """A GPU that a run holds."""

    rank: Ordinal
    dc: Text
    node: Text
    gpu: Ordinal


class Cut(Part):
    """How a run is cut into pipelines and stages, and what an iteration should take."""

    pipelines: Ordinal
    stages: Ordinal
    microbatches: Ordinal
    """Of one pipeline."""
    gpus: Ordinal
    iteration_s: Amount
    """Predicted, seconds."""


class NewLayout(Cut):
    """With what a run continues on fewer nodes, or where another layout is faster."""

    why: Text
    before: Cut
    job: LeftOut[dict[str, Any]] = None
    """Document of the job in this layout."""
    position_of_rank: LeftOut[dict[RankKey, tuple[Ordinal, Ordinal]]] = None
    """Pipeline and stage by rank."""
    dcs_of_rank: dict[RankKey, tuple[Ordinal, ...]]
    """By rank, the data centre of each stage of its pipeline."""


class Recovery(OfRank):
    """All ranks run again after a failure."""

    key = ("run", "generation", "attempt", "t")
    kind: Literal["recovery"] = "recovery"
    failed: Failed
    """What was lost: rank, node, link or datacenter."""
    detail: Text
    """How it was noticed, in words."""
    noticed: Unix
    """When, Unix seconds."""
    detected_s: Amount
    """Silence before, seconds."""
    source: Source = Field(validation_alias="from", serialization_alias="from")
    """Where the state is from: memory, peer, checkpoint or start."""
    iteration: Ordinal
    """The first to be done again."""
    lost_s: Amount
    """From the end of the last iteration that counts until all ranks run again, seconds."""
    attempt: Ordinal
    """Number of the attempt that begins, from 1."""
    left: LeftOut[tuple[Ordinal, ...]] = None
    """On fewer nodes: ranks that are out of the run."""
    joined: LeftOut[tuple[GpuOfRun, ...]] = None
    """GPUs in reserve that took the place of others: `rank`, `dc`, `node`, `gpu`."""
    layout: LeftOut[NewLayout] = None
    """On fewer nodes: the smaller layout ([recovery](recovery.md#what-is-reported))."""
    t: Unix
    """When all ranks run again."""


class Deviation(Part):
    """An op or a transfer that takes longer or shorter than was planned."""

    what: TimedWork
    at: tuple[Ordinal, ...]
    """Its stage, or the two stages of a link."""
    planned_ms: Amount
    measured_ms: Amount

    @model_validator(mode="after")
    def _has_its_stages(self) -> Self:
        if len(self.at) != (2 if self.what.between_stages else 1):
            raise ValueError("at must be one stage, or the two of a link")
        return self


class Adapted(OfRank):
    """A run compared its plan with what it measured, and planned again."""

    key = ("run", "generation", "t")
    kind: Literal["adapted"] = "adapted"
    iteration: Ordinal
    """The first of the new plan."""
    replanned: Yes
    """Whether there is a new schedule."""
    policy: Text
    """Policy of the schedule from there on."""
    deviations: Annotated[tuple[Deviation, ...], Field(min_length=1)]
    """What deviated: `what` (F, R, B, W, link, latency), `at` (its stages), `planned_ms`, `measured_ms`."""
    planned_s: Amount
    """An iteration as it was planned, seconds."""
    before_s: Amount
    """With the old schedule and the measured times, seconds."""
    after_s: Amount
    """With the schedule from there on and the measured times, seconds."""
    schedule: LeftOut[str] = None
    """That schedule as text."""
    times: LeftOut[tuple[tuple[str | int | float, ...], ...]] = None
    """The measured times: rows of F, R, B, W, link or latency, its stage or stages, milliseconds."""
    t: Unix
    """When."""


class LayoutChanged(OfRank):
    """All ranks run again in another layout, which is faster by what was measured.

    The first rank says so to its host when it has decided, before anything has happened. The host sends it
    on, with what the move cost, once it is done.
    """

    key = ("run", "generation", "attempt", "t")
    kind: Literal["layout_changed"] = "layout_changed"
    iteration: Ordinal
    """The first in the new layout."""
    deviations: tuple[Deviation, ...] = ()
    """What deviated, in stages of the layout before; as in `adapted`. Empty: nothing did (`cause`)."""
    cause: LeftOut[Cause] = None
    """Why another layout was looked for where nothing deviated: `reserve`, other GPUs are in reserve;
    `forgotten`, a measurement of a GPU or link that the run does not use counts no longer."""
    before_s: Amount
    """An iteration in the layout before, with the best schedule for the measured times, seconds."""
    after_s: Amount
    """An iteration in the new layout with the measured times, seconds."""
    gain_s: Amount
    """Predicted gain over the iterations that were left, seconds."""
    cost_s: Amount
    """What the move was expected to cost: a checkpoint and a start, as last measured, and of a placement the
    transfer of states, seconds."""
    source: Source = Field(Source.CHECKPOINT, validation_alias="from", serialization_alias="from")
    """Where the state is from: memory, peer or checkpoint."""
    lost_s: Amount = 0.0
    """From the end of the last iteration that counts until all ranks run again, seconds."""
    attempt: Ordinal = 0
    """Number of the attempt that begins, from 1."""
    left: LeftOut[tuple[Ordinal, ...]] = None
    """Ranks that are out of the run."""
    joined: LeftOut[tuple[GpuOfRun, ...]] = None
    """GPUs that were in reserve: `rank`, `dc`, `node`, `gpu`."""
    layout: NewLayout
    """The new layout ([recovery](recovery.md#what-is-reported))."""
    times: LeftOut[tuple[tuple[str | int | float, ...], ...]] = None
    """The measured times in it: rows as in `adapted`."""
    conditions: LeftOut[tuple[tuple[str | int | float, ...], ...]] = None
    """What was measured so far, as rows: gpu, a rank, how many times as long as planned its ops take; link,
    two data centres, how many times as long a message holds their link; latency, the two, milliseconds. Each
    ends with the Unix time of the measurement."""
    t: Unix
    """When all ranks run again."""


IncidentEvent = Recovery | Adapted | LayoutChanged
