"""The answer to a plan request, by the method that it asks for."""

from collections.abc import Callable
from dataclasses import replace

from engine.plan.dc_selection import algorithm1
from engine.plan.request import PlanRequest
from engine.plan.result import PlanResult
from engine.plan.search.solve import plan_search

# Budgets of one answer, in the simulated seconds that `plan.search.cells` counts: of a what-if, whose answer
# must be immediate, and of a plan.
WHAT_IF_S = 0.15
FULL_S = 2.0


def plan(
    request: PlanRequest,
    *,
    budget_s: float = FULL_S,
    cancelled: Callable[[], bool] = lambda: False,
    report: Callable[[int, int | None], None] = lambda done, of: None,
) -> PlanResult:
    """The options of `request` and the best for its objective: all of Algorithm 1, the best of the search.

    Parameters
    ----------
    budget_s : of a search's simulations, in machine-independent seconds; WHAT_IF_S for an immediate answer.
        If it does not suffice, the result says so.
    cancelled : called between simulations; true ends the search with the best it has, and leaves the cells
        that Algorithm 1 has not simulated without a time.
    report : called with the number of simulated cells and their total; None if a search cannot know it.

    Raises
    ------
    InputError
        The job does not fit its model (more partitions than layers), or a cell is too large to simulate.
    """
    if request.method == "search":
        answer = plan_search(request, budget_s=budget_s, cancelled=cancelled, report=report)
    else:
        answer = algorithm1(request, cancelled=cancelled, report=report)
    return replace(answer, symmetrised=tuple(map(tuple, request.symmetrised)))
