"""Limits and reports of a search, and the result of any policy."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from engine.errors import Infeasible, InputError
from engine.schedule.ir import Schedule, Sharing
from engine.schedule.scenario import Contention, RecomputeRule, Scenario
from engine.schedule.traversal import Traversal, TraversalName

if TYPE_CHECKING:  # its kernels are compiled code, which not every user of this module needs
    from engine.schedule.timing import Timing

StoppedBy = Literal["proven", "time", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The scope of a lower bound: every schedule with this traversal and this sharing of WAN hops."""

    traversal: Traversal
    sharing: Sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A policy's choices (docs/dev/contracts.md, `chosen`); `idea` won a search."""

    policy: str
    traversal: TraversalName
    sharing: Sharing
    chunks: int = 1
    contention: Contention | None = None
    recompute_rule: RecomputeRule | None = None
    idea: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a search: its best makespan so far (None: nothing yet), and its bound."""

    elapsed_s: float
    makespan: float | None
    lower_bound: float
    idea: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Limits of a search, and its callbacks. Policies that do not search ignore it.

    seconds : wall time after which it returns the best it has.
    bound : proven makespan that no allowed schedule can beat; once reached, the search is over.
    cancelled : called often; true ends the search with the best it has.
    report : called with each better schedule.
    """

    seconds: float = 60.0
    seed: int = 0
    bound: float = 0.0
    cancelled: Callable[[], bool] = lambda: False
    report: Callable[[Progress], None] = lambda progress: None
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        return max(0.0, self.seconds - self.elapsed_s)

    def tell(self, makespan: float, idea: str | None) -> None:
        """Reports a better schedule."""
        progress = Progress(elapsed_s=self.elapsed_s, makespan=makespan, lower_bound=self.bound, idea=idea)
        self.report(progress)

    def stopped_by(self) -> StoppedBy | None:
        """Why the search must end now; None: it may go on."""
        if self.cancelled():
            return "cancelled"
        return "time" if self.left_s == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A policy's schedule.

    lower_bound : proven by the policy for all its choices; 0: nothing.
    stopped_by : why a search ended; None for policies that do not search.
    timing : of its ops on the scenario, if it was needed to choose the schedule.
    """

    schedule: Schedule
    chosen: Chosen
    lower_bound: float = 0.0
    stopped_by: StoppedBy | None = None
    timing: "Timing | None" = field(default=None, compare=False, repr=False)

    @property
    def searched(self) -> bool:
        """Whether a search ran: it was cut off, or its idea won."""
        return self.stopped_by is not None or self.chosen.idea is not None


class Policy(Protocol):
    """One policy: its frames, and its schedule for a scenario."""

    def frames(self, scenario: Scenario) -> tuple[Frame, ...]:
        """The frames that the policy may choose from on this scenario."""

    def build(self, scenario: Scenario, search: Search) -> Built | Infeasible:
        """The schedule, within both limits of the scenario; or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTraversal:
    """Base of policies with one traversal.

    chunks : the policy's own; others are allowed from `chunks_from` to `chunks_to`.
    """

    traversal: TraversalName = "straight"
    chunks: int = 1
    chunks_from: int = 1
    chunks_to: int = 1

    def frames(self, scenario: Scenario) -> tuple[Frame, ...]:
        """One traversal and one sharing. Raises InputError if the scenario asks for another traversal."""
        if scenario.traversal not in (None, self.traversal):
            raise InputError("traversal", scenario.traversal, f"{scenario.policy} goes {self.traversal}")
        chunks = self.chunks if scenario.chunks is None else scenario.chunks
        if not self.chunks_from <= chunks <= self.chunks_to:
            most = "" if self.chunks_to == self.chunks_from else f" to {self.chunks_to}"
            raise InputError("chunks", chunks, f"{scenario.policy} has {self.chunks_from}{most} per stage")
        traversal = Traversal(name=self.traversal, stages=scenario.stages, chunks=chunks)
        return (Frame(traversal=traversal, sharing=scenario.sharing or "spatial"),)
