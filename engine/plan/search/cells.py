"""The time of one cell: the best of the policies, simulated once per shape."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import Infeasible
from engine.plan.cell import cell_scenario, gpus_of_stages
from engine.plan.dc_selection import Figures, figures_of, shared_by
from engine.plan.fitting import fits, fitting
from engine.plan.job import Job
from engine.plan.request import KINDS
from engine.plan.result import Partition
from engine.plan.search.problem import Problem, Shape, shape_of
from engine.plan.search.routes import Route
from engine.plan.search.slower import slower_orders
from engine.plan.search.splits import Split
from engine.schedule import Built, Schedule, build
from engine.schedule.contention import RULES
from engine.schedule.scenario import BEST, Scenario
from engine.simulate import Timeline, time_schedule, timeline_of

# A route, its split, and the number of all pipelines.
Placed = tuple[Route, Split, int]
# Policies that need no search of their own, for `policy: auto`: milliseconds a cell.
FAST = ("varuna", "atlas", "1f1b")
# Those of them in which a cell's pipelines share the links between two data centres.
SHARING = ("atlas",)
# Approximate cost of a simulation on one core. The budget of a search counts these, so it is the same on
# every machine.
CELL_S, ORDER_S, OP_S = 1e-3, 0.25e-3, 0.25e-6


@dataclass(slots=True)
class Spent:
    """The part of a search's budget that is spent, approximately."""

    seconds: float = 0.0


def policies(problem: Problem) -> tuple[str, ...]:
    """The policies to try.

    Pipelines that share no link are alike in cells of any size. So if D is free, larger cells are worth
    trying with shared links only.
    """
    request = problem.request
    if request.policy != "auto":
        return (request.policy,)
    small = problem.job.cell_pipelines == 1 or request.max_dp_cells is not None
    return FAST if small else SHARING


class Cells:
    """Cells timed so far, by shape: one for each spread of the layers that is worth a try.

    spent : the cost of timing is added here.
    """

    def __init__(self, problem: Problem, spent: Spent) -> None:
        self.problem = problem
        self.policies = policies(problem)
        self.spent = spent
        self._seen: dict[Shape, list[Figures | Infeasible]] = {}
        self._with_slower: set[Shape] = set()

    def __len__(self) -> int:
        """Number of timed shapes."""
        return len(self._seen)

    def known(self, placed: Placed) -> bool:
        return shape_of(self.problem, *placed) in self._seen

    def timed(self, placed: Placed) -> list[Figures | Infeasible]:
        """The best policy on this shape with each spread of the layers, or why none has a schedule."""
        key = shape_of(self.problem, *placed)
        if key not in self._seen:
            route, split, pipelines = placed
            partitions = self.problem.partitions(route, split)
            job = self.problem.job.of_pipelines(pipelines)
            jobs = job.spreads(gpus_of_stages(self.problem.cluster, partitions))
            self._seen[key] = [self._best(job, partitions) for job in jobs]
        return self._seen[key]

    def timed_with_slower_orders(
        self, placed: Placed, least_ms: float, budget_s: float
    ) -> list[Figures | Infeasible]:
        """As `timed`, but also tries the orders of slower links, once per shape.

        It stops when one takes `least_ms` or `budget_s` more are spent. A list schedule may get longer when a
        link gets faster; one order of ops and transfers cannot.
        """
        key = shape_of(self.problem, *placed)
        cells = self.timed(placed)
        if key in self._with_slower:
            return cells
        self._with_slower.add(key)
        until_s = self.spent.seconds + budget_s
        partitions = self.problem.partitions(*placed[:2])
        for i, cell in enumerate(cells):
            if isinstance(cell, Figures):
                for policy in self.policies:
                    cell = self._with_slower_orders(policy, partitions, cell, least_ms, until_s)
                cells[i] = cell
        return cells

    def cost_s(self) -> float:
        """Approximate cost of timing one more shape."""
        return self.problem.spreads * self._orders * (CELL_S + OP_S * self._ops)

    @property
    def _orders(self) -> int:
        """Orders that are built for a shape: one a policy, and where its pipelines share links one a rule."""
        is_open = self.problem.request.contention is None and self.problem.job.cell_pipelines > 1
        share = sum(policy in SHARING for policy in self.policies)
        return len(self.policies) + (len(RULES) - 1) * share * is_open

    @property
    def _ops(self) -> int:
        job = self.problem.job
        return KINDS * job.partitions * job.microbatches * job.cell_pipelines

    def _best(self, job: Job, partitions: Sequence[Partition]) -> Figures | Infeasible:
        self.spent.seconds += self._orders * (CELL_S + OP_S * self._ops)
        best: Figures | None = None
        reason = ""
        for policy in self.policies:
            cell = self._one(policy, job, partitions)
            if isinstance(cell, Infeasible):
                reason = reason or cell.reason
            elif best is None or cell.makespan_ms < best.makespan_ms:
                best = cell
        return best or Infeasible(reason=reason)

    def _with_slower_orders(
        self,
        policy: str,
        partitions: Sequence[Partition],
        cell: Figures,
        least_ms: float,
        until_s: float,
    ) -> Figures:
        """`cell`, or a faster one with an order that `policy` builds for slower links."""
        scenario = self._scenario(policy, cell.job, partitions)
        if isinstance(scenario, Infeasible):
            return cell
        gpus = gpus_of_stages(self.problem.cluster, partitions)
        best: Schedule | None = None
        best_ms = cell.makespan_ms
        for schedule in slower_orders(scenario):
            self.spent.seconds += self._order_s()
            if schedule is not None:
                makespan_ms = time_schedule(scenario, schedule).makespan
                if makespan_ms < best_ms and fits(cell.job.stages, gpus, schedule):
                    best, best_ms = schedule, makespan_ms
            if best_ms <= least_ms or self.spent.seconds + self._order_s() > until_s:
                break
        if best is None:
            return cell
        timeline = time_schedule(scenario, best)
        return figures_of(cell.job, gpus, timeline, policy=policy, schedule=str(best))

    def _order_s(self) -> float:
        """Approximate cost of building and timing one more order."""
        return (ORDER_S + OP_S * self._ops) * self._orders / len(self.policies)

    def _one(self, policy: str, job: Job, partitions: Sequence[Partition]) -> Figures | Infeasible:
        scenario = self._scenario(policy, job, partitions)
        if isinstance(scenario, Infeasible):
            return scenario
        gpus = gpus_of_stages(self.problem.cluster, partitions)
        tried: list[Scenario] = []

        def timed(limited: Scenario) -> tuple[Timeline, Built] | Infeasible:
            tried.append(limited)
            built = build(limited)
            return built if isinstance(built, Infeasible) else (timeline_of(limited, built), built)

        done = fitting(scenario, job.stages, gpus, timed)
        more = (len(tried) - 1) * self._orders / len(self.policies)
        self.spent.seconds += more * (CELL_S + OP_S * self._ops)
        if isinstance(done, Infeasible):
            return done
        (timeline, built), is_lowered = done
        return figures_of(
            job,
            gpus,
            timeline,
            policy=policy,
            schedule=str(built.schedule) if is_lowered else None,
            contention=None if is_lowered else shared_by(built.schedule, built.chosen),
        )

    def _scenario(self, policy: str, job: Job, partitions: Sequence[Partition]) -> Scenario | Infeasible:
        request = self.problem.request
        contention = request.contention or BEST
        return cell_scenario(
            request, self.problem.cluster, job, partitions, policy=policy, contention=contention
        )
