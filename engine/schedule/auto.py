"""auto: the best of every policy, and of a search beyond them.

The search sees the scenario as a job shop (`searching.shop`), once for each traversal, each way of sharing
and of running B (whole, or split where `times.weight` > 0). It builds schedules in many ways, justifies each
to both sides, and improves the best orders, its own and the policies', by moves along the longest path. What
it returns is timed by `time_ops`, obeys both limits, and holds F and R back as far as that costs no time.

A scenario that gives a `recompute_rule` other than ``idle`` binds R: then only policies are tried.

With the same scenario and seed the result is the same, unless time or a cancel cuts the search off: its
effort is counted in operations placed.
"""

from dataclasses import dataclass

from engine.errors import Infeasible
from engine.schedule.ir import Sharing
from engine.schedule.scenario import Scenario
from engine.schedule.search import Built, Frame, Search
from engine.schedule.searching.incumbent import Incumbent
from engine.schedule.searching.portfolio import Portfolio, fits, policies
from engine.schedule.searching.rounds import EFFORT, hold_back, improve
from engine.schedule.traversal import Traversal, TraversalName, straight


@dataclass(frozen=True, slots=True)
class Auto:
    """The policy `auto`.

    effort : operations that its search visits, at most.
    """

    effort: int = EFFORT

    def frames(self, scenario: Scenario) -> tuple[Frame, ...]:
        """Every frame of every policy that fits, and straight through with either sharing."""
        own = [frame for asked, policy in policies(scenario) for frame in policy.frames(asked)]
        own += shop_frames(scenario)
        fitting = [frame for frame in own if fits(scenario, frame)]
        return tuple(dict.fromkeys(fitting))

    def build(self, scenario: Scenario, search: Search) -> Built | Infeasible:
        """The best schedule found."""
        best = Incumbent(scenario=scenario, search=search)
        portfolio = Portfolio(best=best)
        portfolio.try_own()
        if scenario.recompute_rule in (None, "idle"):
            improve(portfolio, shop_frames(scenario), self.effort)
            hold_back(best)
        else:
            portfolio.try_variants()
        if best.schedule is None or best.chosen is None:
            return Infeasible(
                reason=portfolio.reason or _nothing_fits(scenario), stopped_by=search.stopped_by()
            )
        return Built(schedule=best.schedule, chosen=best.chosen, stopped_by=best.over())


def _nothing_fits(scenario: Scenario) -> str:
    asked = f"traversal {scenario.traversal or 'any'}, chunks {scenario.chunks or 'any'}"
    return f"no policy with recompute_rule {scenario.recompute_rule} fits {asked}"


def shop_frames(scenario: Scenario) -> tuple[Frame, ...]:
    """The frames in which the search looks beyond the policies."""
    sharings: tuple[Sharing, ...] = ("temporal", "spatial")
    if scenario.pipelines == 1 or not scenario.hop_is_wan.any():
        sharings = (scenario.sharing or "spatial",)
    names: tuple[TraversalName, ...] = ("straight", "wave", "loop")
    if scenario.stages == 1:
        names = (scenario.traversal or "straight",)
    ways = [Traversal(name=name, stages=scenario.stages, chunks=scenario.chunks or 2) for name in names]
    frames = [
        Frame(traversal=way, sharing=each) for way in (straight(scenario.stages), *ways) for each in sharings
    ]
    return tuple(dict.fromkeys(frame for frame in frames if fits(scenario, frame)))


policy = Auto()
