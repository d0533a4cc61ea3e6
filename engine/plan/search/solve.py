"""The search: over all numbers of DP-cells, best bound first, until none is better than what is found."""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.errors import Infeasible
from engine.plan import choose, cost
from engine.plan.dc_selection import Figures, idle_gpus, short_of_gpus, timed_option
from engine.plan.request import PlanRequest
from engine.plan.result import Effort, Option, PlanResult, StoppedBy
from engine.plan.search.candidates import Candidates, candidates
from engine.plan.search.cells import Cells, TimedCell
from engine.plan.search.excluded import excluded
from engine.plan.search.numbers import Numbers
from engine.plan.search.problem import Problem, cell_sizes, problem_of
from engine.plan.search.routes import Route
from engine.plan.search.splits import Split

# From the best to the least that can be said of an answer: no route, split or number of DP-cells is better;
# only some routes or splits were looked at; only some numbers; no time for all that could be better; stopped.
STOPPED: tuple[StoppedBy, ...] = ("proven", "candidates", "sampled", "budget", "cancelled")
# Other numbers of DP-cells that an answer shows.
MOST_AROUND = 8


@dataclass(frozen=True, slots=True, order=True)
class _Ahead:
    """What is still to be looked at; first in a heap is the best bound, of equals the fewest cells.

    place : of a candidate of its D; -1: all candidates of this D, which are not made yet.
    """

    worst: float
    dp_cells: int
    place: int
    of: int = 0


def plan_search(request: PlanRequest, *, budget_s: float, cancelled: Callable[[], bool]) -> PlanResult:
    """The best option that the search finds, and others beside it: the best of some other D.

    Parameters
    ----------
    budget_s, cancelled : as of `plan`.

    Raises
    ------
    InputError
        The job does not fit its model, or a cell is too large to simulate.
    """
    began = time.perf_counter()
    best = _Found(problem_of(request), budget_s, cancelled)
    best.run()
    every = [best]
    for cell in cell_sizes(request)[1:]:
        spent_s = sum(found.cells.spent_s for found in every)
        found = _Found(problem_of(request, cell), budget_s - spent_s, cancelled, beat=best.best)
        found.run()
        every.append(found)
        if found.best is not None and found.best is not best.best:
            best = found
    best.look_around()
    effort = Effort(
        stopped_by=max((found.stopped_by for found in every), key=STOPPED.index),
        candidates=sum(len(made) for found in every for made in found.classes.values()),
        simulated=sum(len(found.cells) for found in every),
        search_s=time.perf_counter() - began,
    )
    return replace(_result(best.problem, best), search=effort)


class _Found:
    """What the search knows so far; `beat` is the best option of other sizes of cells."""

    def __init__(
        self,
        problem: Problem,
        budget_s: float,
        cancelled: Callable[[], bool],
        beat: Option | None = None,
    ) -> None:
        self.problem, self.budget_s, self.cancelled = problem, budget_s, cancelled
        self.cells = Cells(problem)
        self.numbers = Numbers(problem)
        self.classes: dict[int, Candidates] = {}
        self.options: dict[tuple[int, int, int], Option] = {}
        self.best = beat
        self.stopped_by: StoppedBy = "proven"

    def run(self) -> None:
        """Times candidates, most promising first; ends when no bound is better than what is found."""
        heap = [_Ahead(-self.numbers.potential(n), n, -1) for n in self.numbers.all]
        heapq.heapify(heap)
        while heap:
            ahead = heapq.heappop(heap)
            if self.best is not None and -ahead.worst <= choose.score(
                self.best, self.problem.request.objective
            ):
                break
            if ahead.place < 0:
                for item in self._made(ahead.dp_cells):
                    heapq.heappush(heap, item)
            elif not self._surely_past_limits(ahead) and not self._time(ahead):
                self._note("budget")
            if self.cancelled():
                self._note("cancelled")
                break
        if not all(found.complete for found in self.classes.values()):
            self._note("candidates")
        if self.numbers.is_sampled:
            self._note("sampled")

    def _note(self, stopped_by: StoppedBy) -> None:
        self.stopped_by = max(self.stopped_by, stopped_by, key=STOPPED.index)

    def look_around(self) -> None:
        """The most promising candidate of some other numbers of DP-cells, beyond the budget."""
        self.budget_s = self.cells.spent_s + MOST_AROUND * self.cells.cost_s()
        for number in self.numbers.spread(MOST_AROUND):
            if self.cancelled():
                return
            made = self._made(number)
            if made:
                self._time(min(made))

    def _made(self, number: int) -> list[_Ahead]:
        """The candidates of a D; where only some D are looked at, each with all the cells that have room."""
        if number not in self.classes:
            self.classes[number] = candidates(self.problem, self.numbers.capacities(number))
        found, cell = self.classes[number], self.problem.job.cell_pipelines
        at = [self.numbers.grown(number, *placed) for placed in found.placed]
        scores = {n: found.best_scores(n * cell) for n in set(at)}
        return [_Ahead(-float(scores[n][place]), n, place, number) for place, n in enumerate(at)]

    def _time(self, ahead: _Ahead) -> bool:
        """Times a candidate, where the budget allows; what is timed already costs nothing."""
        found = self.classes[ahead.of]
        placed = found.placed[ahead.place]
        if not self.cells.known(*placed) and self.options and self._is_spent():
            return False
        least_ms = float(found.least_ms[ahead.place])
        option = self._option(ahead.dp_cells, *placed, self.cells.timed(*placed), least_ms)
        self.options[ahead.dp_cells, ahead.of, ahead.place] = option
        objective = self.problem.request.objective
        if option.feasible and (self.best is None or choose.better(option, self.best, objective)):
            self.best = option
        return True

    def _surely_past_limits(self, ahead: _Ahead) -> bool:
        """Whether budget or deadline rule the candidate out however well it were scheduled.

        One such candidate is timed all the same, so that an answer without a feasible option has figures.
        """
        request = self.problem.request
        if not self.options or (request.budget_per_iteration is None and request.deadline_h is None):
            return False
        found = self.classes[ahead.of]
        least_ms = float(found.least_ms[ahead.place])
        at_best = TimedCell(policy=request.policy, makespan_ms=least_ms, utilization=1.0)
        return not self._option(ahead.dp_cells, *found.placed[ahead.place], at_best, least_ms).feasible

    def _is_spent(self) -> bool:
        return self.cells.spent_s + self.cells.cost_s() > self.budget_s

    def _option(
        self, dp_cells: int, route: Route, split: Split, cell: TimedCell | Infeasible, least_ms: float
    ) -> Option:
        problem = self.problem
        pipelines = dp_cells * problem.job.cell_pipelines
        partitions = problem.partitions(route, split)
        per_stage = pipelines * problem.job.tensor_parallel
        option = Option(
            dp_cells=dp_cells,
            pipelines=pipelines,
            policy=problem.request.policy,
            partitions=partitions,
            gpus_used={part.dc: part.stages * per_stage for part in partitions},
            gpus_idle=idle_gpus(problem.request, partitions, per_stage),
        )
        if isinstance(cell, Infeasible):
            return replace(option, reason=cell.reason)
        figures = Figures(makespan_ms=cell.makespan_ms, lower_bound_ms=least_ms, utilization=cell.utilization)
        option = replace(option, policy=cell.policy)
        timed = timed_option(problem.request, problem.cluster, problem.job, option, figures)
        priced = cost.priced(problem.request, problem.cluster, problem.job, timed)
        return choose.within_limits(problem.request, priced)


def _result(problem: Problem, found: _Found) -> PlanResult:
    request, job = problem.request, problem.job
    options = _shown(found, request)
    best = choose.best(options, request.objective)
    return PlanResult(
        method=request.method,
        policy=request.policy,
        objective=request.objective,
        order=tuple(name for name in request.names if name in request.allowed_names),
        cell_pipelines=job.cell_pipelines,
        comm_to_compute=job.comm_to_compute,
        forward_ms=job.forward_s * 1e3,
        backward_ms=job.backward_s * 1e3,
        recompute_ms=job.recompute_s * 1e3,
        transfer_ms=job.transfer_s * 1e3,
        activation_bytes=job.activation_bytes,
        parameters_per_stage=job.parameters_per_stage,
        options=options,
        best=best,
        pareto=choose.pareto(options),
        excluded=excluded(problem, found.classes.values(), options, best),
        reason=None if best is not None else _why_none(problem, options),
    )


def _shown(found: _Found, request: PlanRequest) -> tuple[Option, ...]:
    """Of each D the best, feasible before infeasible, and whatever else is on the front of time and cost."""
    timed = [found.options[key] for key in sorted(found.options)]
    kept: dict[int, int] = {}
    for i, option in enumerate(timed):
        j = kept.get(option.dp_cells)
        if j is None or _preferred(option, timed[j], request):
            kept[option.dp_cells] = i
    front = choose.pareto(timed)
    return tuple(timed[i] for i in sorted({*kept.values(), *front}))


def _preferred(option: Option, other: Option, request: PlanRequest) -> bool:
    if option.feasible != other.feasible:
        return option.feasible
    return option.feasible and choose.better(option, other, request.objective)


def _why_none(problem: Problem, options: tuple[Option, ...]) -> str:
    if options:
        return choose.why_none(options)
    capacities = problem.capacities(problem.job.cell_pipelines)
    placed, stages = sum(capacities), problem.job.partitions
    if placed < stages:
        per_stage = problem.job.cell_pipelines * problem.job.tensor_parallel
        return f"not even one DP-cell fits: {short_of_gpus(placed, stages, per_stage)}"
    return "no data centres that are linked one after the other hold every stage of one DP-cell"
