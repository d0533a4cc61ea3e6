"""What one cell takes: the best of the policies, simulated once per shape."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from engine.errors import Infeasible
from engine.plan.cell import cell_scenario
from engine.plan.held import held_bytes
from engine.plan.request import KINDS
from engine.plan.search.problem import Floats, Problem, Shape, shape_of
from engine.schedule import Schedule, build
from engine.schedule.scenario import Link, Scenario
from engine.simulate import time_schedule

# Policies that need no search of their own, for `policy: auto`: milliseconds a cell.
FAST = ("varuna", "atlas", "1f1b")
# Those of them in which a cell's pipelines share the links between two data centres.
SHARING = ("atlas",)
# Orders are also made for links that are slower by so many steps, of which so many double a transfer.
STEPS, STEPS_PER_OCTAVE = 8, 4
# What simulating takes on one core, roughly: what the budget of a search counts in, so that it is the same
# on every machine.
CELL_S, OP_S = 1e-3, 0.25e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCell:
    """The fastest cell: milliseconds, utilization, and the most bytes on a GPU of each stage.

    schedule : its orders as text, where they are those that the policy makes for slower links.
    """

    policy: str
    makespan_ms: float
    utilization: float
    held_bytes: Floats | None = None
    schedule: str | None = None


def policies(problem: Problem) -> tuple[str, ...]:
    """The policies to try. Pipelines that share no link are alike in cells of any size: where D is free,
    larger cells are worth trying with shared links only.
    """
    request = problem.request
    if request.policy != "auto":
        return (request.policy,)
    small = problem.job.cell_pipelines == 1 or request.max_dp_cells is not None
    return FAST if small else SHARING


class Cells:
    """Cells timed so far, by shape, and what they cost to time."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.policies = policies(problem)
        self.spent_s = 0.0
        self._seen: dict[Shape, TimedCell | Infeasible] = {}
        self._steadied: set[Shape] = set()

    def __len__(self) -> int:
        """Shapes that were timed."""
        return len(self._seen)

    def known(self, route: Sequence[int], split: Sequence[int]) -> bool:
        return shape_of(self.problem, route, split) in self._seen

    def timed(self, route: Sequence[int], split: Sequence[int]) -> TimedCell | Infeasible:
        """The best policy on this shape, or why none has a schedule."""
        key = shape_of(self.problem, route, split)
        if key not in self._seen:
            self._seen[key] = self._best(route, split)
        return self._seen[key]

    def steadied(
        self, route: Sequence[int], split: Sequence[int], least_ms: float, budget_s: float
    ) -> TimedCell | Infeasible:
        """The same, or better: with orders made for slower links tried too, once, until one takes
        `least_ms` or `budget_s` more are spent.

        A list schedule may get longer when a link gets faster; one order of ops and transfers cannot.
        """
        key = shape_of(self.problem, route, split)
        found = self.timed(route, split)
        if key in self._steadied or isinstance(found, Infeasible):
            return found
        self._steadied.add(key)
        budget_s += self.spent_s
        schedule: Schedule | None = None
        for hops in slower_hops([self.problem.hops[pair] for pair in itertools.pairwise(route)]):
            if found.makespan_ms <= least_ms or self.spent_s + self.cost_s() > budget_s:
                break
            found, schedule = self._faster(route, split, hops, found, schedule)
        if schedule is not None:
            found = replace(found, schedule=str(schedule))
        self._seen[key] = found
        return found

    def cost_s(self) -> float:
        """What timing one more shape takes, roughly."""
        job = self.problem.job
        ops = KINDS * job.partitions * job.microbatches * job.cell_pipelines
        return len(self.policies) * (CELL_S + OP_S * ops)

    def _best(self, route: Sequence[int], split: Sequence[int]) -> TimedCell | Infeasible:
        self.spent_s += self.cost_s()
        best: TimedCell | None = None
        reason = ""
        for policy in self.policies:
            found = self._one(policy, route, split)
            if isinstance(found, Infeasible):
                reason = reason or found.reason
            elif best is None or found.makespan_ms < best.makespan_ms:
                best = found
        return best or Infeasible(reason=reason)

    def _faster(
        self,
        route: Sequence[int],
        split: Sequence[int],
        hops: list[Link],
        found: TimedCell,
        schedule: Schedule | None,
    ) -> tuple[TimedCell, Schedule | None]:
        """`found` with its `schedule`, or what is faster with an order that a policy makes for `hops`."""
        self.spent_s += self.cost_s()
        for policy in self.policies:
            scenario = self._scenario(policy, route, split)
            if isinstance(scenario, Infeasible):
                continue
            built = build(scenario.model_copy(update={"wan": hops}))
            if isinstance(built, Infeasible):
                continue
            timed = self._timed(scenario, built.schedule)
            if timed.makespan_ms < found.makespan_ms:
                found, schedule = timed, built.schedule
        return found, schedule

    def _one(self, policy: str, route: Sequence[int], split: Sequence[int]) -> TimedCell | Infeasible:
        scenario = self._scenario(policy, route, split)
        if isinstance(scenario, Infeasible):
            return scenario
        built = build(scenario)
        return built if isinstance(built, Infeasible) else self._timed(scenario, built.schedule)

    def _scenario(self, policy: str, route: Sequence[int], split: Sequence[int]) -> Scenario | Infeasible:
        problem = self.problem
        partitions = problem.partitions(route, split)
        return cell_scenario(problem.request, problem.cluster, problem.job, partitions, policy=policy)

    def _timed(self, scenario: Scenario, schedule: Schedule) -> TimedCell:
        timeline = time_schedule(scenario, schedule)
        return TimedCell(
            policy=scenario.policy,
            makespan_ms=timeline.makespan,
            utilization=timeline.utilization(),
            held_bytes=held_bytes(self.problem.job.stages.memory, schedule),
        )


def slower_hops(hops: Sequence[Link]) -> Iterator[list[Link]]:
    """`hops` with longer transfers, or longer latencies, up to the next steps of a fixed grid: of all hops,
    then of each."""
    each = [range(len(hops)), *([i] for i in range(len(hops)) if len(hops) > 1)]
    for step, which, figure in itertools.product(range(STEPS), each, ("transfer", "latency")):
        slower = [_slower(hop, figure, step) if i in which else hop for i, hop in enumerate(hops)]
        if slower != list(hops):
            yield slower


def _slower(hop: Link, figure: str, step: int) -> Link:
    was = getattr(hop, figure)
    if was == 0:
        return hop
    on_grid = math.floor(math.log2(was) * STEPS_PER_OCTAVE) + 1 + step
    return hop.model_copy(update={figure: 2 ** (on_grid / STEPS_PER_OCTAVE)})
