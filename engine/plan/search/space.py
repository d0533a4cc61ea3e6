"""One part of the search space: one layout of the job with one size of cells, for any number of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from engine.errors import Infeasible
from engine.plan import choose
from engine.plan.dc_selection import Figures, figured, placed_option, short_of_gpus
from engine.plan.result import Option
from engine.plan.search.bound import ends_together, least_ms
from engine.plan.search.candidates import Candidates, candidates, with_longer_routes
from engine.plan.search.cells import Cells, Placed, Spent
from engine.plan.search.numbers import Numbers
from engine.plan.search.problem import Problem
from engine.plan.search.routes import Route
from engine.plan.search.splits import Split

# Approximate cost of bounding one candidate on one core (see `cells`).
CANDIDATE_S = 25e-6


@dataclass(frozen=True, slots=True, order=True)
class Ahead:
    """An item still to be tried; the first in a heap has the best bound, of equals the fewest cells.

    space : of the search's spaces.
    index : of a candidate of its D; −1: all candidates of this D, which are not listed yet.
    of : the D that the candidate belongs to.
    """

    worst: float
    dp_cells: int
    space: int
    index: int
    of: int = 0


class Space:
    """Candidates so far, by D, and the timed options.

    index : among the spaces of a search.
    spent : of the search's budget; bounding and timing add to it.
    """

    def __init__(self, problem: Problem, index: int, spent: Spent) -> None:
        self.problem, self.index, self.spent = problem, index, spent
        self.cells = Cells(problem, spent)
        self.numbers = Numbers(problem)
        self.classes: dict[int, Candidates] = {}
        self.options: dict[tuple[int, int, int], Option] = {}

    def numbers_ahead(self) -> Iterator[Ahead]:
        """Every D to try, with a bound on all its candidates."""
        return map(self.ahead_of, self.numbers.all)

    def ahead_of(self, number: int) -> Ahead:
        """A D with a bound on all its candidates, which are not listed yet."""
        return Ahead(worst=-self.numbers.potential(number), dp_cells=number, space=self.index, index=-1)

    def candidates_of(self, number: int) -> list[Ahead]:
        """The candidates of a D; if D is sampled, each with the most cells that have room."""
        if number not in self.classes:
            self.classes[number] = candidates(self._problem_of(number), self.numbers.capacities(number))
            self.spent.seconds += self._candidate_s * len(self.classes[number])
        return self._ahead(number)

    def longer_candidates_of(self, number: int, most_s: float) -> list[Ahead] | None:
        """Those on longer routes than a D needs, once its others are listed.

        None if they are too many to be bounded in `most_s`.
        """
        before = self.classes[number]
        capacities = self.numbers.capacities(number)
        longer = with_longer_routes(before, capacities, int(most_s / self._candidate_s))
        if longer is None:
            return None
        self.classes[number] = longer
        self.spent.seconds += self._candidate_s * (len(longer) - len(before))
        return self._ahead(number)[len(before) :]

    @property
    def _candidate_s(self) -> float:
        return CANDIDATE_S * self.problem.spreads

    def _ahead(self, number: int) -> list[Ahead]:
        candidates, cell = self.classes[number], self.problem.job.cell_pipelines
        at = [self.numbers.grown(number, *placed) for placed in candidates.placed]
        scores = {n: candidates.best_scores(n * cell) for n in set(at)}
        return [
            Ahead(worst=-float(scores[n][index]), dp_cells=n, space=self.index, index=index, of=number)
            for index, n in enumerate(at)
        ]

    def is_known(self, ahead: Ahead) -> bool:
        """Whether timing it costs nothing."""
        return self.cells.known(self._placed(ahead))

    def _placed(self, ahead: Ahead) -> Placed:
        route, split = self.classes[ahead.of].placed[ahead.index]
        return route, split, ahead.dp_cells * self.problem.job.cell_pipelines

    def timed(self, ahead: Ahead, *, slower_s: float = 0.0) -> Option:
        """The candidate as an option, with its times.

        slower_s : budget for trying the orders of slower links too.
        """
        placed = self._placed(ahead)
        cells = (
            self.cells.timed_with_slower_orders(placed, self._least_ms(ahead, ahead.dp_cells)[0], slower_s)
            if slower_s
            else self.cells.timed(placed)
        )
        option = self._best_option(ahead, ahead.dp_cells, cells)
        has_times = any(isinstance(cell, Figures) for cell in cells)
        if self.numbers.is_sampled and not option.feasible and has_times:
            option = self._largest_within_limits(ahead, option)
        self.options[option.dp_cells, ahead.of, ahead.index] = option
        return option

    def _least_ms(self, ahead: Ahead, dp_cells: int) -> tuple[float, float]:
        """Bounds on a candidate's cell, with the policies that are tried and with any.

        If layers are balanced, with ZeRO-1 each number of pipelines has its own.
        """
        listed, at = self.classes[ahead.of], ahead.index
        if dp_cells == ahead.of or not (self.problem.job.zero and self.problem.job.balance):
            return float(listed.bounds.tried[at]), float(listed.bounds.any[at])
        bounds = least_ms(self._problem_of(dp_cells), [listed.placed[at]])
        return float(bounds.tried[0]), float(bounds.any[0])

    def _problem_of(self, dp_cells: int) -> Problem:
        return self.problem.of_pipelines(dp_cells * self.problem.job.cell_pipelines)

    def _best_option(self, ahead: Ahead, dp_cells: int, cells: Sequence[Figures | Infeasible]) -> Option:
        """The best of the spreads of the layers, in so many DP-cells."""
        placed, any_ms = self.classes[ahead.of].placed[ahead.index], self._least_ms(ahead, dp_cells)[1]
        options = [self._option(dp_cells, *placed, cell, any_ms) for cell in cells]
        return choose.best_of(options, self.problem.request.objective)

    def _largest_within_limits(self, ahead: Ahead, past: Option) -> Option:
        """The option with the most DP-cells that budget and deadline allow; `past` if none.

        By bisection: each further cell costs more and makes the all-reduce longer (on rails, nearly each).
        """
        step = self.numbers.step
        largest, low, high = past, 1, past.dp_cells // step - 1
        while low <= high:
            middle = (low + high) // 2
            cells = self.cells.timed(self._placed(replace(ahead, dp_cells=middle * step)))
            option = self._best_option(ahead, middle * step, cells)
            if option.feasible:
                largest, low = option, middle + 1
            else:
                high = middle - 1
        return largest

    def surely_past_limits(self, ahead: Ahead) -> bool:
        """Whether budget or deadline rule the candidate out under any schedule."""
        request = self.problem.request
        if request.budget_per_iteration is None and request.deadline_h is None:
            return False
        if self.numbers.is_sampled and self.problem.has_rails:
            return False
        candidates = self.classes[ahead.of]
        least = (
            self.numbers.step if self.numbers.is_sampled else ahead.dp_cells
        )  # fewer are tried if these are too many
        best_ms, _ = self._least_ms(ahead, least)
        at_best = Figures(
            job=self.problem.least_job,
            policy=request.policy,
            makespan_ms=best_ms,
            utilization=1.0,
            ends_together=ends_together(request.policy),
        )
        return not self._option(least, *candidates.placed[ahead.index], at_best, best_ms).feasible

    def why_none(self) -> str:
        """Why no candidate has room."""
        job = self.problem.job
        placed, stages = sum(self.problem.capacities(job.cell_pipelines)), job.partitions
        if placed < stages:
            per_stage = job.cell_pipelines * job.gpus_per_stage
            return f"not even one DP-cell fits: {short_of_gpus(placed, stages, per_stage)}"
        if self.numbers.step > 1 and not self.numbers.all:
            fewest = self.numbers.step * job.cell_pipelines
            return f"ep = {job.replicas.ep} needs at least {fewest} pipelines, and they do not fit"
        return "no chain of linked data centres holds every stage of one DP-cell"

    def _option(
        self, dp_cells: int, route: Route, split: Split, cell: Figures | Infeasible, any_ms: float
    ) -> Option:
        problem = self.problem
        option = placed_option(problem.request, problem.job, dp_cells, problem.partitions(route, split))
        bounded = cell if isinstance(cell, Infeasible) else replace(cell, lower_bound_ms=any_ms)
        return figured(problem.request, problem.cluster, option, bounded)
