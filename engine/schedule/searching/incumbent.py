"""The best schedule of a search so far, and the conditions that end the search."""

from dataclasses import dataclass, field
from math import inf

from engine.schedule.ir import OpKind, Schedule
from engine.schedule.scenario import Scenario
from engine.schedule.search import Chosen, Frame, Search, StoppedBy
from engine.schedule.searching.orders import limits_hold
from engine.schedule.timing import Timing, time_ops

# Makespan and bound are sums of the same durations in different orders.
SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seed:
    """A policy's schedule as a start of the search."""

    schedule: Schedule
    timing: Timing
    policy: str


@dataclass(slots=True, kw_only=True)
class Incumbent:
    """The best schedule by its makespan as `time_ops` gives it; it holds only schedules timed so."""

    scenario: Scenario
    search: Search
    makespan: float = inf
    schedule: Schedule | None = None
    chosen: Chosen | None = None
    seeds: dict[tuple[Frame, bool], Seed] = field(default_factory=dict)

    def offer(self, schedule: Schedule, chosen: Chosen) -> Timing | None:
        """Times `schedule` and stores it if it is better; None if it breaks a limit."""
        if not limits_hold(self.scenario, schedule):
            return None
        timing = time_ops(self.scenario, schedule)
        if timing.makespan < self.makespan * (1 - SAME):
            self.makespan, self.schedule, self.chosen = timing.makespan, schedule, chosen
            self.search.tell(timing.makespan, chosen.idea)
        return timing

    def offer_seed(self, schedule: Schedule, chosen: Chosen) -> None:
        """Offers `schedule`, and stores it as a seed if it is the best in its frame, whole or split."""
        timing = self.offer(schedule, chosen)
        if timing is None:
            return
        where = Frame(traversal=schedule.traversal, sharing=schedule.sharing), schedule.has(OpKind.W)
        if where not in self.seeds or timing.makespan < self.seeds[where].timing.makespan:
            self.seeds[where] = Seed(schedule=schedule, timing=timing, policy=chosen.policy)

    @property
    def proven(self) -> bool:
        """Whether no schedule can be better."""
        return self.makespan <= self.search.bound * (1 + SAME)

    def over(self) -> StoppedBy | None:
        """Why the search must end now; None: it may go on."""
        return "proven" if self.proven else self.search.stopped_by()
