"""The scenario: one DP-cell of pipelines through the same stages, as `meridian simulate` reads it.

Abstract time units. Field meanings and defaults are those of contracts.md.
"""

from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Flag, Index, NonNegative, nearest

POLICIES = ("gpipe", "1f1b", "varuna", "atlas")
LATER_POLICIES = (
    "interleaved", "zb-h1", "zb-v", "crosspipe-ud", "crosspipe-udsub", "crosspipe-loop", "crosspipe-wave",
    "optimal", "auto",
)  # fmt: skip
Sharing = Literal["spatial", "temporal"]
Contention = Literal["rank", "round-robin", "fifo"]
RecomputeRule = Literal["jit", "idle", "late", "blocking"]

# Beyond these a simulation takes gigabytes: ops of one iteration, and ops that are written out as spans.
MOST_OPS = 5_000_000
MOST_STAGES = 2_000
MOST_SPANS = 1_000_000


class Link(Document):
    """One hop between neighbouring stages: one-way `latency` and `transfer` time of one microbatch."""

    latency: NonNegative = 0.0
    transfer: NonNegative = 0.0


class Times(Document):
    """Duration of each kind of op: one number, or one per stage."""

    forward: NonNegative | list[NonNegative]
    backward: NonNegative | list[NonNegative]
    recompute: NonNegative | list[NonNegative] = 0.0
    weight: NonNegative | list[NonNegative] = 0.0


class Scenario(Document):
    """A validated scenario. Per-stage and per-hop arrays hang off it as cached properties."""

    later_fields: ClassVar[tuple[str, ...]] = ("chunks", "traversal", "jitter", "seed", "time_limit_s")

    stages: Annotated[Count, Field(le=MOST_STAGES)]
    dc_of_stage: list[Index] = Field(default_factory=list)
    pipelines: Count = 1
    microbatches: Count
    times: Times
    wan: Link | list[Link] = Link()
    lan: Link = Link()
    sharing: Sharing | None = None
    memory_limit: Count | None = None
    full_limit: Count | None = None
    policy: str
    contention: Contention | None = None
    recompute_rule: RecomputeRule | None = None
    spans: Flag = True

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, policy: str) -> str:
        if policy in LATER_POLICIES:
            raise ValueError(f"not available in this version; allowed: {', '.join(POLICIES)}")
        if policy not in POLICIES:
            raise ValueError("unknown policy, " + nearest(policy, POLICIES))
        return policy

    @model_validator(mode="after")
    def _consistent(self) -> "Scenario":
        ops = self.stages * self.pipelines * self.microbatches * 3
        if ops > MOST_OPS:
            allowed = f"stages x pipelines x microbatches x 3 is {ops}; at most {MOST_OPS}"
            raise InputError("microbatches", self.microbatches, allowed)
        if self.spans and ops > MOST_SPANS:
            raise InputError("spans", True, f"up to {ops} spans; at most {MOST_SPANS}: set spans to false")
        if self.dc_of_stage and len(self.dc_of_stage) != self.stages:
            allowed = f"one DC index per stage: {self.stages} expected, {len(self.dc_of_stage)} given"
            raise InputError("dc_of_stage", self.dc_of_stage, allowed)
        for kind in ("forward", "backward", "recompute", "weight"):
            value = getattr(self.times, kind)
            if isinstance(value, list) and len(value) != self.stages:
                allowed = f"a number or one per stage: {self.stages} expected, {len(value)} given"
                raise InputError(f"times.{kind}", value, allowed)
            if kind in ("forward", "backward") and not np.all(np.asarray(value) > 0):
                raise InputError(f"times.{kind}", value, "must be greater than 0")
        hops = len(self.wan_hops)
        if isinstance(self.wan, list) and len(self.wan) != hops:
            allowed = f"one link or one per WAN hop: {hops} expected, {len(self.wan)} given"
            raise InputError("wan", [link.model_dump() for link in self.wan], allowed)
        return self

    @cached_property
    def dcs(self) -> tuple[int, ...]:
        """DC index of each stage, filled in where the document leaves it out."""
        return tuple(self.dc_of_stage) if self.dc_of_stage else (0,) * self.stages

    @cached_property
    def wan_hops(self) -> tuple[int, ...]:
        """The stages s whose hop s → s+1 crosses from one DC to another."""
        return tuple(s for s in range(self.stages - 1) if self.dcs[s] != self.dcs[s + 1])

    def per_stage(self, kind: Literal["forward", "backward", "recompute", "weight"]) -> NDArray[np.float64]:
        """Durations of one kind of op, shape (stages,)."""
        return np.broadcast_to(np.asarray(getattr(self.times, kind), dtype=np.float64), (self.stages,)).copy()

    @cached_property
    def hop_latency(self) -> NDArray[np.float64]:
        """One-way latency of each hop s → s+1, shape (stages − 1,)."""
        return np.array([link.latency for link in self.hop_links], dtype=np.float64)

    @cached_property
    def hop_transfer(self) -> NDArray[np.float64]:
        """Transfer time over one pipeline's own share of each hop, shape (stages − 1,)."""
        return np.array([link.transfer for link in self.hop_links], dtype=np.float64)

    @cached_property
    def hop_links(self) -> tuple[Link, ...]:
        """The link of each hop s → s+1, WAN or LAN."""
        links = [self.lan] * (self.stages - 1)
        for i, hop in enumerate(self.wan_hops):
            links[hop] = self.wan[i] if isinstance(self.wan, list) else self.wan
        return tuple(links)
