"""auto: the best schedule of every policy, and of a search beyond them.

The search sees the scenario as a job-shop problem (`searching.problem`). There is one problem for each
traversal, each sharing, and each form of B (whole, or split if `times.weight` > 0). The search builds many
schedules and justifies each to both sides. It then improves the best orders, its own and the policies', by
moves along the longest path.

`time_ops` times the result, which obeys both limits. F and R start as late as they can at no cost in time.

A scenario with a `recompute_rule` other than ``idle`` decides when R runs: then only policies are tried.

The effort is counted in operations placed. So the same scenario and seed give the same result, unless the
time limit or a cancel ends the search early.
"""

from dataclasses import dataclass

from engine.errors import Infeasible
from engine.schedule.ir import Sharing
from engine.schedule.scenario import Scenario
from engine.schedule.search import Built, Frame, Search
from engine.schedule.searching.improve import EFFORT, hold_back, improve
from engine.schedule.searching.incumbent import Incumbent
from engine.schedule.searching.portfolio import Portfolio, fits, policies
from engine.schedule.traversal import Traversal, TraversalName, straight


@dataclass(frozen=True, slots=True)
class Auto:
    """The policy `auto`.

    effort : operations that its search visits, at most.
    """

    effort: int = EFFORT

    def frames(self, scenario: Scenario) -> tuple[Frame, ...]:
        """Every fitting frame of every policy, and the straight traversal with either sharing."""
        own = [frame for variant, policy in policies(scenario) for frame in policy.frames(variant)]
        own += search_frames(scenario)
        fitting = [frame for frame in own if fits(scenario, frame)]
        return tuple(dict.fromkeys(fitting))

    def build(self, scenario: Scenario, search: Search) -> Built | Infeasible:
        """Return the best schedule, or why there is none."""
        best = Incumbent(scenario=scenario, search=search)
        portfolio = Portfolio(best=best)
        portfolio.try_own()
        if scenario.recompute_rule in (None, "idle"):
            improve(portfolio, search_frames(scenario), self.effort)
            hold_back(best)
        else:
            portfolio.try_variants()
        if best.schedule is None or best.chosen is None:
            return Infeasible(
                reason=portfolio.reason or _nothing_fits(scenario), stopped_by=search.stopped_by()
            )
        return Built(schedule=best.schedule, chosen=best.chosen, stopped_by=best.over())


def _nothing_fits(scenario: Scenario) -> str:
    open_rules = f"traversal {scenario.traversal or 'any'}, chunks {scenario.chunks or 'any'}"
    return f"no policy with recompute_rule {scenario.recompute_rule} fits {open_rules}"


def search_frames(scenario: Scenario) -> tuple[Frame, ...]:
    """The frames in which the search looks beyond the policies."""
    sharings: tuple[Sharing, ...] = ("temporal", "spatial")
    if scenario.pipelines == 1 or not scenario.hop_is_wan.any():
        sharings = (scenario.sharing or "spatial",)
    names: tuple[TraversalName, ...] = ("straight", "wave", "loop")
    if scenario.stages == 1:
        names = (scenario.traversal or "straight",)
    traversals = [Traversal(name=name, stages=scenario.stages, chunks=scenario.chunks or 2) for name in names]
    frames = [
        Frame(traversal=traversal, sharing=each)
        for traversal in (straight(scenario.stages), *traversals)
        for each in sharings
    ]
    return tuple(dict.fromkeys(frame for frame in frames if fits(scenario, frame)))


policy = Auto()
