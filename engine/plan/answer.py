"""The answer to a plan request, by the method that it asks for."""

from collections.abc import Callable
from dataclasses import replace

from engine.plan.dc_selection import algorithm1
from engine.plan.request import PlanRequest
from engine.plan.result import PlanResult
from engine.plan.search.solve import plan_search

# Simulated seconds of one answer, of the machine that `plan.search.cells` counts in: a what-if that must
# come at once, and a plan that may take its time.
WHAT_IF_S = 0.15
FULL_S = 2.0


def plan(
    request: PlanRequest, *, budget_s: float = FULL_S, cancelled: Callable[[], bool] = lambda: False,
    report: Callable[[int, int | None], None] = lambda done, of: None,
) -> PlanResult:  # fmt: skip
    """The options of `request` and the best for its objective: all of Algorithm 1, the best of the search.

    Parameters
    ----------
    budget_s : of a search's simulations, in machine-independent seconds; WHAT_IF_S for an answer at once.
        Where it does not suffice the result says so.
    cancelled : asked between simulations; true ends the search with the best it has, and leaves the cells
        that Algorithm 1 has not simulated without a time.
    report : told the cells that are simulated, and of how many; None where a search cannot know.

    Raises
    ------
    InputError
        The job does not fit its model (more partitions than layers), or a cell is too large to simulate.
    """
    if request.method == "search":
        found = plan_search(request, budget_s=budget_s, cancelled=cancelled, report=report)
    else:
        found = algorithm1(request, cancelled=cancelled, report=report)
    return replace(found, symmetrised=tuple(map(tuple, request.symmetrised)))
