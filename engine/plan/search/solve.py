"""The search over layouts, sizes and numbers of DP-cells, best bound first."""

import heapq
import time
from collections.abc import Callable

from engine.plan import choose
from engine.plan.request import PlanRequest
from engine.plan.result import Effort, LeftOut, Option, PlanResult, StoppedBy
from engine.plan.search.cells import Spent
from engine.plan.search.excluded import excluded
from engine.plan.search.problem import (
    Problem,
    in_cells,
    layouts_to_try,
    other_sizes,
    problem_of,
    problems_of,
)
from engine.plan.search.refine import marked
from engine.plan.search.space import Ahead, Space

# From the strongest to the weakest statement: no route, split or number of DP-cells is better; only some
# routes or splits were tried; only some numbers; no time for all that could be better; cancelled.
STOPPED: tuple[StoppedBy, ...] = ("proven", "candidates", "sampled", "budget", "cancelled")
# Approximate cost of computing the stages of a layout; it counts up to this share of the budget.
LAYOUT_S, LAYOUTS_SHARE = 2.5e-3, 0.5
# Share of the budget that orders of slower links may take in addition.
SLOWER_SHARE = 0.1
# The same for cells of other sizes, and the approximate cost of setting up one of them.
SIZES_SHARE, SPACE_S = 0.1, 1e-4
# The same for routes with data centres that are not needed.
LONGER_SHARE = 0.1
# Other numbers of DP-cells that an answer shows.
MOST_AROUND = 8


def plan_search(
    request: PlanRequest,
    *,
    budget_s: float,
    cancelled: Callable[[], bool],
    report: Callable[[int, int | None], None] = lambda done, of: None,
) -> PlanResult:
    """The best option of the search, and others: the best of some other D.

    Parameters
    ----------
    budget_s, cancelled, report : as for `plan`.

    Raises
    ------
    InputError
        The job does not fit its model, or a cell is too large to simulate.
    """
    began = time.perf_counter()
    problems, left_out = _problems(request)
    search = _Search(problems, budget_s, cancelled, report)
    search.try_single_pipelines()
    search.run()
    search.try_other_sizes()
    search.try_longer_routes()
    search.try_slower_orders()
    search.look_around()
    effort = Effort(
        stopped_by=search.stopped_by,
        candidates=sum(len(each) for space in search.spaces for each in space.classes.values()),
        simulated=sum(len(space.cells) for space in search.spaces),
        search_s=time.perf_counter() - began,
    )
    return _result(search, left_out, effort)


def _problems(request: PlanRequest) -> tuple[list[Problem], tuple[LeftOut, ...]]:
    """One for each layout that fits some GPU and each size of cells; the first if none fits."""
    fitting, left_out = [], []
    for layout in request.job.layouts:
        problems = [
            problem for one in layouts_to_try(request, layout) for problem in problems_of(request, one)
        ]
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
    """State of the search. `best` belongs to `best_space`, or to the first space with figures."""

    def __init__(
        self,
        problems: list[Problem],
        budget_s: float,
        cancelled: Callable[[], bool],
        report: Callable[[int, int | None], None],
    ) -> None:
        self.budget_s, self.cancelled, self.report = budget_s, cancelled, report
        layouts = len({problem.job.layout for problem in problems})
        self.spent = Spent(seconds=min(LAYOUT_S * layouts, LAYOUTS_SHARE * budget_s))
        self.spaces: list[Space] = []
        self._add(problems)
        self.objective = problems[0].request.objective
        self.best: Option | None = None
        self.best_space = self.spaces[0]
        self.looked_at: list[Ahead] = []
        self.stopped_by: StoppedBy = "proven"

    def try_single_pipelines(self) -> None:
        """Times the most promising candidate in cells of one pipeline.

        Bounds on cells that share links are far below their times, so a budget may end before anything else
        is tried. This option is near its bound, and rules many of them out.
        """
        alone = [space for space in self.spaces if space.problem.job.cell_pipelines == 1]
        head = min(_numbers_ahead(alone), default=None)
        if head is not None:
            space = self.spaces[head.space]
            candidates = space.candidates_of(head.dp_cells)
            if candidates:
                self._time(space, min(candidates), self.budget_s)

    def run(self) -> None:
        """Times candidates, most promising first; ends when no bound beats the best option."""
        self._through(_numbers_ahead(self.spaces), self.budget_s, "budget")
        if not all(each.complete for space in self.spaces for each in space.classes.values()):
            self._note("candidates")
        # Of stages that choose what they repeat, not every number of replicas is tried (layouts_to_try).
        jobs = [space.problem.job for space in self.spaces]
        if any(space.numbers.is_sampled for space in self.spaces) or any(
            job.zero and job.stages.variants for job in jobs
        ):
            self._note("sampled")

    def try_other_sizes(self) -> None:
        """Repeats the search in cells of all other sizes, if nothing else was left out.

        It may exceed the budget by a share of it; the answer says if that is not enough.
        """
        if self.stopped_by != "proven":
            return
        until_s = self.spent.seconds + SIZES_SHARE * self.budget_s
        alone = [space.problem for space in self.spaces if space.problem.job.cell_pipelines == 1]
        sizes = [(problem, size) for problem in alone for size in other_sizes(problem)]
        if self.spent.seconds + SPACE_S * len(sizes) > until_s:
            self._note("sampled")
            return
        spaces = self._add([in_cells(problem, size) for problem, size in sizes])
        self.spent.seconds += SPACE_S * len(spaces)
        self._through(_numbers_ahead(spaces), until_s, "sampled")
        if not all(each.complete for space in spaces for each in space.classes.values()):
            self._note("candidates")

    def try_longer_routes(self) -> None:
        """Tries routes with data centres that are not needed, if nothing else was left out and their bounds
        allow it.

        A list schedule over a link may be shorter than one within a data centre. So more GPUs never make an
        answer worse. It may exceed the budget by a share of it; the answer says if that is not enough.
        """
        if self.stopped_by != "proven":
            return
        until_s = self.spent.seconds + LONGER_SHARE * self.budget_s
        for head in sorted(space.ahead_of(number) for space in self.spaces for number in space.classes):
            if self._cannot_be_better(head):
                return
            longer = self.spaces[head.space].longer_candidates_of(head.dp_cells, until_s - self.spent.seconds)
            if longer is None:
                self._note("candidates")
                return
            self._through(longer, until_s, "candidates")

    def _add(self, problems: list[Problem]) -> list[Space]:
        """The spaces of `problems`, now among those of the search."""
        first = len(self.spaces)
        added = [Space(problem, i, self.spent) for i, problem in enumerate(problems, start=first)]
        self.spaces += added
        return added

    def _through(self, heap: list[Ahead], until_s: float, short: StoppedBy) -> None:
        """Times candidates, most promising first, until `until_s` seconds are spent in total.

        short : noted if they are not enough.
        """
        heapq.heapify(heap)
        while heap and not self._cannot_be_better(ahead := heapq.heappop(heap)):
            if self.cancelled():
                self._note("cancelled")
                break
            if self.spent.seconds > until_s and self._has_figures():
                self._note(short)
                break
            space = self.spaces[ahead.space]
            if ahead.index < 0:
                for item in space.candidates_of(ahead.dp_cells):
                    heapq.heappush(heap, item)
            elif self._has_figures() and space.surely_past_limits(ahead):
                continue
            elif not self._time(space, ahead, until_s):
                self._note(short)

    def try_slower_orders(self) -> None:
        """Tries the orders of slower links on candidates that could beat the best, most promising first.

        So a faster link does not make the answer worse. It may exceed the budget by a share of it.
        """
        until_s = self.spent.seconds + SLOWER_SHARE * self.budget_s
        for ahead in sorted(self.looked_at):
            space = self.spaces[ahead.space]
            left_s = until_s - self.spent.seconds
            if self._cannot_be_better(ahead) or left_s < space.cells.cost_s() or self.cancelled():
                return
            self._offer(space, space.timed(ahead, slower_s=left_s))

    def look_around(self) -> None:
        """Times the most promising candidate of some other numbers of DP-cells, beyond the budget."""
        space = self.best_space
        until_s = self.spent.seconds + MOST_AROUND * space.cells.cost_s()
        for number in space.numbers.spread(MOST_AROUND):
            if self.cancelled():
                return
            ahead = min(space.candidates_of(number), default=None)
            left_s = until_s - self.spent.seconds
            if ahead is not None and (space.is_known(ahead) or left_s >= space.cells.cost_s()):
                self._offer(space, space.timed(ahead))

    def _time(self, space: Space, ahead: Ahead, until_s: float) -> bool:
        """Times a candidate if the budget allows; the first, and those that cost nothing, always.

        Returns False if it is not timed.
        """
        over = self.spent.seconds + space.cells.cost_s() > until_s
        if over and not space.is_known(ahead) and self._has_figures():
            return False
        self.looked_at.append(ahead)
        if not self.best_space.options:
            self.best_space = space
        self._offer(space, space.timed(ahead))
        self.report(len(self.looked_at), None)
        return True

    def _offer(self, space: Space, option: Option) -> None:
        if option.feasible and (self.best is None or choose.better(option, self.best, self.objective)):
            self.best, self.best_space = option, space

    def _cannot_be_better(self, ahead: Ahead) -> bool:
        return self.best is not None and -ahead.worst <= choose.score(self.best, self.objective)

    def _has_figures(self) -> bool:
        """Whether any option has figures: an answer without a feasible option needs some, too."""
        return bool(self.best_space.options)

    def _note(self, stopped_by: StoppedBy) -> None:
        self.stopped_by = max(self.stopped_by, stopped_by, key=STOPPED.index)


def _numbers_ahead(spaces: list[Space]) -> list[Ahead]:
    return [ahead for space in spaces for ahead in space.numbers_ahead()]


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
    """The best of the winner's space for each D, feasible first, and the front of time and cost."""
    request = search.best_space.problem.request
    timed = [
        (space, space.options[key])
        for space in (search.best_space, *(s for s in search.spaces if s is not search.best_space))
        for key in sorted(space.options)
    ]
    best_of: dict[int, int] = {}
    for i, (space, option) in enumerate(timed):
        j = best_of.get(option.dp_cells)
        if space is search.best_space and (j is None or _preferred(option, timed[j][1], request)):
            best_of[option.dp_cells] = i
    front = choose.pareto([option for _, option in timed])
    shown = [timed[i][1] for i in {*best_of.values(), *front}]
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
