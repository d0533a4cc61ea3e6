"""What a policy that searches is given, what it says on its way, and what any policy returns."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.errors import Infeasible
from engine.schedule.ir import Schedule, Sharing
from engine.schedule.scenario import Contention, RecomputeRule, Scenario
from engine.schedule.traversal import Traversal, TraversalName

StoppedBy = Literal["proven", "time", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a lower bound holds for: every schedule with this traversal and this sharing of WAN hops."""

    traversal: Traversal
    sharing: Sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a policy settled on (docs/dev/contracts.md, `chosen`); `idea` is what won a search."""

    policy: str
    traversal: TraversalName
    sharing: Sharing
    chunks: int = 1
    contention: Contention | None = None
    recompute_rule: RecomputeRule | None = None
    idea: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a search is: its best makespan so far (None: nothing yet), and the bound it knows."""

    elapsed_s: float
    makespan: float | None
    lower_bound: float
    idea: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Limits of a search and the wires to whoever waits for it. Policies that do not search ignore it.

    seconds : wall time after which it returns the best it has.
    bound : proven makespan that nothing allowed can beat; reached, the search is over.
    cancelled : asked often; true ends the search with the best it has.
    report : told when something better is found.
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

    def stopped_by(self) -> StoppedBy | None:
        """Why the search must end now; None: it may go on."""
        if self.cancelled():
            return "cancelled"
        return "time" if self.left_s == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A policy's schedule.

    lower_bound : what the policy itself proved for all that it could choose from; 0: nothing.
    stopped_by : why a search ended; None for policies that do not search.
    """

    schedule: Schedule
    chosen: Chosen
    lower_bound: float = 0.0
    stopped_by: StoppedBy | None = None

    @property
    def searched(self) -> bool:
        """Whether a search ended: cut off, or by itself with an idea that won."""
        return self.stopped_by is not None or self.chosen.idea is not None


class Policy(Protocol):
    """One policy: what it may choose from, and its schedule for a scenario."""

    def frames(self, scenario: Scenario) -> tuple[Frame, ...]:
        """The frames that the policy may choose from on this scenario."""

    def build(self, scenario: Scenario, search: Search) -> Built | Infeasible:
        """The schedule, within both limits of the scenario; or why there is none."""
