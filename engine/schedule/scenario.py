"""The scenario: one DP-cell of pipelines through the same stages, as `meridian simulate` reads it.

Abstract time units. Field meanings and defaults are those of docs/dev/contracts.md.
"""

from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Flag, Index, Limit, NonNegative, Positive, nearest, parse
from engine.model.profiled_stages import ProfiledStages
from engine.schedule.ir import Sharing
from engine.schedule.registry import MODULES
from engine.schedule.traversal import TraversalName

POLICIES = tuple(MODULES)
Contention = Literal["rank", "round-robin", "fifo", "best"]
BEST: Contention = "best"  # the fastest of the others on the scenario
# A send lets its GPU go on at once, or holds it until the message has arrived.
Sends = Literal["overlapped", "blocking"]
RecomputeRule = Literal["jit", "idle", "late", "blocking"]
# Microbatches that a stage may hold: one number for all stages, or one per stage.
Limits = Limit | list[Limit]
LimitName = Literal["memory_limit", "full_limit"]
LIMITS: tuple[LimitName, ...] = ("memory_limit", "full_limit")

# Beyond these a simulation takes gigabytes: ops of one iteration, and ops written as spans.
MOST_OPS = 5_000_000
MOST_STAGES = 2_000
MOST_SPANS = 1_000_000
MOST_CHUNKS = 64
MOST_JITTER = 10.0
MOST_SECONDS = 24 * 3600.0


class Link(Document):
    """One hop between adjacent stages: one-way `latency` and `transfer` time of one microbatch."""

    latency: NonNegative = 0.0
    transfer: NonNegative = 0.0


class Times(Document):
    """Duration of each kind of op: one number, or one per stage.

    A scenario's document may have a ProfiledStages in their place.
    """

    forward: NonNegative | list[NonNegative]
    backward: NonNegative | list[NonNegative]
    recompute: NonNegative | list[NonNegative] = 0.0
    weight: NonNegative | list[NonNegative] = 0.0

    def check(self, stages: int, at: str) -> None:
        """Raise InputError unless they fit `stages` stages; `at` is their path in the document."""
        for kind, value in self:
            if isinstance(value, list) and len(value) != stages:
                allowed = f"a number or one per stage: {stages} expected, {len(value)} given"
                raise InputError(f"{at}.{kind}", value, allowed)
            if kind in ("forward", "backward") and not np.all(np.asarray(value) > 0):
                raise InputError(f"{at}.{kind}", value, "must be greater than 0")


class Scenario(Document):
    """A validated scenario. Per-stage and per-hop arrays hang off it as cached properties."""

    stages: Annotated[Count, Field(le=MOST_STAGES)]
    dc_of_stage: list[Index] = Field(default_factory=list)
    pipelines: Count = 1
    microbatches: Count
    times: Times
    wan: Link | list[Link] = Link()
    lan: Link | list[Link] = Link()
    sharing: Sharing | None = None
    sends: Sends = "overlapped"
    memory_limit: Limits | None = None
    full_limit: Limits | None = None
    policy: str
    contention: Contention | None = None
    recompute_rule: RecomputeRule | None = None
    chunks: Annotated[Count, Field(le=MOST_CHUNKS)] | None = None
    traversal: TraversalName | None = None
    jitter: Annotated[NonNegative, Field(le=MOST_JITTER)] = 0.0
    seed: Index = 0
    time_limit_s: Annotated[Positive, Field(le=MOST_SECONDS)] = 60.0
    spans: Flag = True

    @model_validator(mode="before")
    @classmethod
    def _times_of_layers(cls, data: Any) -> Any:
        """Times given by a profile of layers: milliseconds of each stage."""
        times = data.get("times") if isinstance(data, dict) else None
        if not isinstance(times, dict) or "layer_profiles" not in times:
            return data
        try:
            profiled = parse(ProfiledStages, {**times, "stages": data.get("stages", 1)})
            return {**data, "times": profiled.times_ms()}
        except InputError as error:
            field = "stages" if error.field == "stages" else f"times.{error.field}"
            raise InputError(field, error.value, error.allowed) from None

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, policy: str) -> str:
        if policy not in POLICIES:
            raise ValueError("unknown policy, " + nearest(policy, POLICIES))
        return policy

    @model_validator(mode="after")
    def _consistent(self) -> "Scenario":
        kinds = 2 + bool(np.any(self.times.recompute)) + bool(np.any(self.times.weight))
        ops = self.stages * self.pipelines * self.microbatches * kinds * (self.chunks or 1)
        if ops > MOST_OPS:
            factors = f"stages x pipelines x microbatches x chunks x {kinds} kinds of op"
            allowed = f"{factors} is {ops}; at most {MOST_OPS}"
            raise InputError("microbatches", self.microbatches, allowed)
        if self.spans and ops > MOST_SPANS:
            raise InputError("spans", True, f"up to {ops} spans; at most {MOST_SPANS}: set spans to false")
        if self.dc_of_stage and len(self.dc_of_stage) != self.stages:
            allowed = f"one DC index per stage: {self.stages} expected, {len(self.dc_of_stage)} given"
            raise InputError("dc_of_stage", self.dc_of_stage, allowed)
        self.times.check(self.stages, "times")
        for name in LIMITS:
            limit = getattr(self, name)
            if isinstance(limit, list) and len(limit) != self.stages:
                allowed = f"one number or one per stage: {self.stages} expected, {len(limit)} given"
                raise InputError(name, limit, allowed)
        hops = len(self.wan_hops)
        # One more is for a loop's hop from the last stage to the first.
        if isinstance(self.wan, list) and len(self.wan) not in (hops, hops + self.wraps_over_wan):
            allowed = f"one link or one per WAN hop: {hops} expected, {len(self.wan)} given"
            raise InputError("wan", [link.model_dump() for link in self.wan], allowed)
        dcs = max(self.dcs) + 1
        if isinstance(self.lan, list) and len(self.lan) != dcs:
            allowed = f"one link or one per DC index: {dcs} expected, {len(self.lan)} given"
            raise InputError("lan", [link.model_dump() for link in self.lan], allowed)
        return self

    @cached_property
    def dcs(self) -> tuple[int, ...]:
        """DC index of each stage; all 0 if the document has none."""
        return tuple(self.dc_of_stage) if self.dc_of_stage else (0,) * self.stages

    @cached_property
    def wan_hops(self) -> tuple[int, ...]:
        """The stages s whose hop s → s+1 crosses from one DC to another."""
        return tuple(s for s in range(self.stages - 1) if self.dcs[s] != self.dcs[s + 1])

    def per_stage(self, kind: Literal["forward", "backward", "recompute", "weight"]) -> NDArray[np.float64]:
        """Durations of one kind of op, shape (stages,)."""
        return np.broadcast_to(np.asarray(getattr(self.times, kind), dtype=np.float64), (self.stages,)).copy()

    def limits(self, name: LimitName) -> NDArray[np.int64]:
        """Most microbatches of each stage, shape (stages,); all of the iteration's without a limit."""
        limit = getattr(self, name)
        most = np.broadcast_to(self.microbatches if limit is None else limit, (self.stages,))
        return np.minimum(most, self.microbatches).astype(np.int64)

    @cached_property
    def wraps_over_wan(self) -> bool:
        """Whether a loop's hop from the last stage to the first crosses from one DC to another."""
        return self.dcs[-1] != self.dcs[0]

    @cached_property
    def lan_links(self) -> tuple[Link, ...]:
        """The network inside the DC of each stage."""
        return tuple(self.lan[dc] if isinstance(self.lan, list) else self.lan for dc in self.dcs)

    @cached_property
    def hop_links(self) -> tuple[Link, ...]:
        """The link of each hop s → s+1, WAN or LAN, and last that from the last stage to the first."""
        links = list(self.lan_links)
        for i, hop in enumerate(self.wan_hops):
            links[hop] = self.wan[i] if isinstance(self.wan, list) else self.wan
        if self.wraps_over_wan:
            links[-1] = self.wan[-1] if isinstance(self.wan, list) else self.wan
        return tuple(links)

    @cached_property
    def hop_is_wan(self) -> NDArray[np.bool_]:
        """Which hops are WAN hops, shape (stages,), the last one from the last stage to the first."""
        is_wan = np.zeros(self.stages, dtype=np.bool_)
        is_wan[list(self.wan_hops)] = True
        is_wan[-1] = self.wraps_over_wan
        return is_wan

    @cached_property
    def hop_latency(self) -> NDArray[np.float64]:
        """One-way latency of each hop, shape (stages,) as `hop_links`."""
        return np.array([link.latency for link in self.hop_links], dtype=np.float64)

    @cached_property
    def hop_transfer(self) -> NDArray[np.float64]:
        """Transfer time over one pipeline's own share of each hop, shape (stages,) as `hop_links`."""
        return np.array([link.transfer for link in self.hop_links], dtype=np.float64)

    def hop_times(self, sharing: Sharing) -> NDArray[np.float64]:
        """Time for which one transfer holds its link on each hop, shape (stages,).

        On a shared hop its n parts cross together, in an n-th of the time. A LAN at an end may be slower:
        each node there scatters (or gathers) one message of n, which takes it `_relay`.
        """
        slowest = np.maximum.reduce([self.hop_transfer, *self._relay[0]])
        return np.where(self.shared_hops(sharing), slowest / self.pipelines, self.hop_transfer)

    def hop_delays(self, sharing: Sharing) -> NDArray[np.float64]:
        """Time from the end of a transfer on its link to its arrival on each hop, shape (stages,).

        That is the latency, and on a shared hop also the scatter before the link and the gather behind it
        (Atlas §4.3): if all messages of a link are as late, it does not matter on which side of it.
        """
        transfer, latency = self._relay
        more = transfer.sum(axis=0) + latency.sum(axis=0)
        return np.where(self.shared_hops(sharing), self.hop_latency + more, self.hop_latency)

    @cached_property
    def _relay(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What other pipelines carry of a shared message, n − 1 of n parts, on the LAN at both ends of a hop.

        Transfer time and latency, shape (2, stages) each.
        """
        share = (self.pipelines - 1) / self.pipelines
        here = np.array([(share * link.transfer, link.latency) for link in self.lan_links]).T
        both = np.stack([here, np.roll(here, -1, axis=1)], axis=1)
        return both[0], both[1]

    def shared_hops(self, sharing: Sharing) -> NDArray[np.bool_]:
        """Hops whose links all pipelines of the cell share, shape (stages,)."""
        return self.hop_is_wan & (sharing == "temporal" and self.pipelines > 1)
