"""What the prefill coordinators of a run report."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from engine.job.events.base import Amount, OfRun, Ordinal, Text, Unix, Yes

MOST_REASONS = 20
Reasons = Annotated[dict[Annotated[Text, Field(max_length=40)], Ordinal], Field(max_length=MOST_REASONS)]


class CoordinatorState(StrEnum):
    """Whether a prefill coordinator takes prompts."""

    OPEN = "open"
    CLOSED = "closed"


class CoordinatorEvent(OfRun):
    """A prefill coordinator takes prompts, or no longer does."""

    vital = True
    key = ("run", "generation", "dc")
    kind: Literal["prefill_coordinator"] = "prefill_coordinator"
    dc: Text | Ordinal
    """Its data centre: the name in the job, or its index."""
    model: Annotated[Text, Field(min_length=1, max_length=128)]
    """The model that it serves."""
    host: Text
    """Where it listens: the node's own address."""
    port: Annotated[int, Field(strict=True, ge=1, le=65_535)]
    """Its port."""
    rank: Ordinal
    """Rank of the coordinator: a number beyond those of the run's ranks."""
    state: CoordinatorState
    """open or closed."""
    detail: Text = ""
    """Why."""
    t: Unix
    """When; the latest counts."""


class Prefill(OfRun):
    """What a prefill coordinator did since its last report; one every second while it is open."""

    key = ("run", "generation", "dc", "t")
    kind: Literal["prefill"] = "prefill"
    dc: Text | Ordinal
    """Its data centre: the name in the job, or its index."""
    t: Unix
    """When."""
    window_s: Amount
    """Seconds since the last report."""
    accepted: Ordinal
    """Requests accepted."""
    refused: Reasons
    """Requests refused by reason."""
    delivered: Ordinal
    """Requests whose first token was delivered."""
    failed: Reasons
    """Requests that failed by reason."""
    missed: Ordinal
    """Requests delivered later than their objective."""
    waiting: Ordinal
    """Requests that wait now."""
    prefill_ms: Amount
    """GPU time of prefill, ms."""
    waited_ms: Amount = 0.0
    """How long training ops that were due waited for prefill, ms over all GPUs."""
    gpus: Ordinal
    """GPUs of the coordinator."""
    guard_ms: Amount | None = None
    """Time kept free before the next training op, ms: the longest of its GPUs."""
    slowdown: Annotated[float, Field(strict=True, ge=-1e3, lt=1e3)] | None = None
    """Share by which training is slower than without prefill; null while it is not known."""
    paused: Yes
    """Whether prefill pauses because of that."""


PrefillEvent = CoordinatorEvent | Prefill
