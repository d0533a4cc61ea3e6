"""What one cell takes: the best of the policies, simulated once per shape."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import Infeasible
from engine.plan.cell import cell_scenario
from engine.plan.held import held_bytes
from engine.plan.request import KINDS
from engine.plan.search.problem import Floats, Problem, Shape, shape_of
from engine.schedule import build
from engine.simulate import time_schedule

# Policies that need no search of their own, for `policy: auto`: milliseconds a cell.
FAST = ("varuna", "atlas", "1f1b")
# Those of them in which a cell's pipelines share the links between two data centres.
SHARING = ("atlas",)
# What simulating takes on one core, roughly: what the budget of a search counts in, so that it is the same
# on every machine.
CELL_S, OP_S = 1e-3, 0.25e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCell:
    """The fastest policy's cell: milliseconds, utilization, and the most bytes on a GPU of each stage."""

    policy: str
    makespan_ms: float
    utilization: float
    held_bytes: Floats | None = None


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

    def _one(self, policy: str, route: Sequence[int], split: Sequence[int]) -> TimedCell | Infeasible:
        problem = self.problem
        partitions = problem.partitions(route, split)
        scenario = cell_scenario(problem.request, problem.cluster, problem.job, partitions, policy=policy)
        if isinstance(scenario, Infeasible):
            return scenario
        built = build(scenario)
        if isinstance(built, Infeasible):
            return built
        timeline = time_schedule(scenario, built.schedule)
        return TimedCell(
            policy=policy,
            makespan_ms=timeline.makespan,
            utilization=timeline.utilization(),
            held_bytes=held_bytes(problem.job.stages.memory, built.schedule),
        )
