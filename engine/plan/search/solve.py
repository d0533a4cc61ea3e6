"""The search: over layouts, sizes and numbers of DP-cells, best bound first, until none is better than what
is found."""

import heapq
import time
from collections.abc import Callable

from engine.plan import choose
from engine.plan.request import PlanRequest
from engine.plan.result import Effort, LeftOut, Option, PlanResult, StoppedBy
from engine.plan.search.excluded import excluded
from engine.plan.search.problem import Problem, problem_of, problems_of
from engine.plan.search.refine import marked
from engine.plan.search.space import Ahead, Space

# From the best to the least that can be said of an answer: no route, split or number of DP-cells is better;
# only some routes or splits were looked at; only some numbers; no time for all that could be better; stopped.
STOPPED: tuple[StoppedBy, ...] = ("proven", "candidates", "sampled", "budget", "cancelled")
# Of the budget, what orders for slower links may take on top.
STEADY_SHARE = 0.1
# Other numbers of DP-cells that an answer shows.
MOST_AROUND = 8


def plan_search(
    request: PlanRequest, *, budget_s: float, cancelled: Callable[[], bool],
    report: Callable[[int, int | None], None] = lambda done, of: None,
) -> PlanResult:  # fmt: skip
    """The best option that the search finds, and others beside it: the best of some other D.

    Parameters
    ----------
    budget_s, cancelled, report : as of `plan`.

    Raises
    ------
    InputError
        The job does not fit its model, or a cell is too large to simulate.
    """
    began = time.perf_counter()
    problems, left_out = _problems(request)
    search = _Search([Space(problem, i) for i, problem in enumerate(problems)], budget_s, cancelled, report)
    search.run()
    search.steady()
    search.look_around()
    effort = Effort(
        stopped_by=search.stopped_by,
        candidates=sum(len(made) for space in search.spaces for made in space.classes.values()),
        simulated=sum(len(space.cells) for space in search.spaces),
        search_s=time.perf_counter() - began,
    )
    return _result(search, left_out, effort)


def _problems(request: PlanRequest) -> tuple[list[Problem], tuple[LeftOut, ...]]:
    """One for each layout that fits some GPU and each size of cells; the first where none fits."""
    fitting, left_out = [], []
    for layout in request.job.layouts:
        problems = problems_of(request, layout)
        reason = problems[0].does_not_fit()
        if reason is None:
            fitting += problems
        else:
            left_out.append(
                LeftOut(
                    partitions=layout.partitions, tp=layout.tp, micro_batch=layout.micro_batch, reason=reason
                )
            )
    return fitting or [problem_of(request)], tuple(left_out)


class _Search:
    """What the search knows so far. `best` is of `best_space`; without one that is the first with figures."""

    def __init__(
        self, spaces: list[Space], budget_s: float, cancelled: Callable[[], bool],
        report: Callable[[int, int | None], None],
    ) -> None:  # fmt: skip
        self.spaces, self.budget_s, self.cancelled, self.report = spaces, budget_s, cancelled, report
        self.objective = spaces[0].problem.request.objective
        self.best: Option | None = None
        self.best_space = spaces[0]
        self.looked_at: list[Ahead] = []
        self.stopped_by: StoppedBy = "proven"

    @property
    def spent_s(self) -> float:
        return sum(space.spent_s for space in self.spaces)

    def run(self) -> None:
        """Times candidates, most promising first; ends when no bound is better than what is found."""
        heap = [ahead for space in self.spaces for ahead in space.numbers_ahead()]
        heapq.heapify(heap)
        while heap and not self._cannot_be_better(ahead := heapq.heappop(heap)):
            if self.cancelled():
                self._note("cancelled")
                break
            if self.spent_s > self.budget_s and self._has_figures():
                self._note("budget")
                break
            space = self.spaces[ahead.space]
            if ahead.place < 0:
                for item in space.made(ahead.dp_cells):
                    heapq.heappush(heap, item)
            elif not self._has_figures() or not space.surely_past_limits(ahead):
                self._time(space, ahead)
        if not all(found.complete for space in self.spaces for found in space.classes.values()):
            self._note("candidates")
        if any(space.numbers.is_sampled for space in self.spaces):
            self._note("sampled")

    def steady(self) -> None:
        """Orders made for slower links, on what could be better than the best, so that a faster link does not
        make the answer worse; most promising first, beyond the budget by a share of it."""
        until_s = self.spent_s + STEADY_SHARE * self.budget_s
        for ahead in sorted(self.looked_at):
            space = self.spaces[ahead.space]
            left_s = until_s - self.spent_s
            if self._cannot_be_better(ahead) or left_s < space.cells.cost_s() or self.cancelled():
                return
            self._keep(space, space.timed(ahead, steady_s=left_s))

    def look_around(self) -> None:
        """The most promising candidate of some other numbers of DP-cells, beyond the budget."""
        space = self.best_space
        until_s = self.spent_s + MOST_AROUND * space.cells.cost_s()
        for number in space.numbers.spread(MOST_AROUND):
            if self.cancelled():
                return
            ahead = min(space.made(number), default=None)
            left_s = until_s - self.spent_s
            if ahead is not None and (space.is_known(ahead) or left_s >= space.cells.cost_s()):
                self._keep(space, space.timed(ahead))

    def _time(self, space: Space, ahead: Ahead) -> None:
        """Times a candidate where the budget allows; the first always, and what costs nothing."""
        if not space.is_known(ahead) and self._has_figures() and self._is_spent(space):
            self._note("budget")
            return
        self.looked_at.append(ahead)
        if not self.best_space.options:
            self.best_space = space
        self._keep(space, space.timed(ahead))
        self.report(len(self.looked_at), None)

    def _keep(self, space: Space, option: Option) -> None:
        if option.feasible and (self.best is None or choose.better(option, self.best, self.objective)):
            self.best, self.best_space = option, space

    def _cannot_be_better(self, ahead: Ahead) -> bool:
        return self.best is not None and -ahead.worst <= choose.score(self.best, self.objective)

    def _has_figures(self) -> bool:
        """So that an answer without a feasible option has figures too."""
        return bool(self.best_space.options)

    def _is_spent(self, space: Space) -> bool:
        return self.spent_s + space.cells.cost_s() > self.budget_s

    def _note(self, stopped_by: StoppedBy) -> None:
        self.stopped_by = max(self.stopped_by, stopped_by, key=STOPPED.index)


def _result(search: _Search, left_out: tuple[LeftOut, ...], effort: Effort) -> PlanResult:
    problem = search.best_space.problem
    request = problem.request
    options = marked(request, _shown(search))
    best = choose.best(options, request.objective)
    return choose.result(
        request,
        problem.job,
        [name for name in request.names if name in request.allowed_names],
        options,
        excluded=excluded(problem, search.spaces, options, best, is_proven=search.stopped_by == "proven"),
        reason=None if best is not None else _why_none(search, options),
        left_out=left_out,
        search=effort,
    )


def _shown(search: _Search) -> tuple[Option, ...]:
    """Of each D the best of the winner's space, feasible before infeasible, and whatever else is on the front
    of time and cost."""
    request = search.best_space.problem.request
    timed = [
        (space, space.options[key])
        for space in (search.best_space, *(s for s in search.spaces if s is not search.best_space))
        for key in sorted(space.options)
    ]
    kept: dict[int, int] = {}
    for i, (space, option) in enumerate(timed):
        j = kept.get(option.dp_cells)
        if space is search.best_space and (j is None or _preferred(option, timed[j][1], request)):
            kept[option.dp_cells] = i
    front = choose.pareto([option for _, option in timed])
    shown = [timed[i][1] for i in {*kept.values(), *front}]
    return tuple(sorted(shown, key=lambda option: (option.dp_cells, option.pipelines)))


def _preferred(option: Option, other: Option, request: PlanRequest) -> bool:
    if option.feasible != other.feasible:
        return option.feasible
    return option.feasible and choose.better(option, other, request.objective)


def _why_none(search: _Search, options: tuple[Option, ...]) -> str:
    if options:
        return choose.why_none(options)
    problem = search.best_space.problem
    return problem.does_not_fit() or search.best_space.why_none()
