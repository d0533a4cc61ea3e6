"""The work at a placement: the search, then what it is compared with, each on the same inner solve."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from engine.inputs import parse
from engine.plan.placement.request import PlacementRequest
from webapp.computations.wires import Wires
from webapp.placement.forms import document_of
from webapp.placement.placed import placed_against_plan
from webapp.planning.models import PlanComputation


def place_devices(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"placement": as `meridian place` prints it, "baselines": [{name, cost_s, history}], "run"?}.

    A baseline's history is where its least cost fell, [[evaluations, cost_s]…]; empty for one that only is.
    `run` is of a placement of a plan's option: see `placed_against_plan`.
    """
    from engine.plan.placement import (
        baselines,
    )  # compiled kernels: the site's own process has no need of them
    from engine.plan.placement.place import default_evaluations, place
    from engine.plan.placement.problem import problem_of

    request_document = parse(PlacementRequest, document_of(request))
    limit = request_document.evaluations or default_evaluations(
        request_document.devices, request_document.stages
    )
    problem, seed = problem_of(request_document), request_document.seed
    others: dict[str, Callable[[], Any]] = {
        f"random, mean of {baselines.DRAWS}": lambda: baselines.random_s(problem, seed),
        "plain genetic": lambda: baselines.plain_genetic(problem, seed),
        "the paper's search": lambda: baselines.published_search(problem, seed),
        "Kernighan–Lin": lambda: baselines.score(problem, baselines.kernighan_lin(problem, seed)),
    }
    of_plan = PlanComputation.objects.filter(computation=wires.computation).exists()
    wires.of = 1 + (len(others) if request["baselines"] else 0) + of_plan
    falls: list[tuple[int, float]] = []

    def report(evaluations: int, cost_s: float) -> None:
        if not math.isfinite(cost_s):
            return  # nothing has been looked at yet
        if not falls or cost_s < falls[-1][1]:
            falls.append((evaluations, cost_s))
        wires.publish({"evaluations": evaluations, "limit": limit, "cost_s": cost_s, "falls": falls})

    answer: dict[str, Any] = {
        "placement": place(request_document, report=report, cancelled=wires.cancelled).as_dict(),
        "baselines": [],
    }
    yield answer
    for name, run in others.items() if request["baselines"] else ():
        baseline = run()
        entry = {"name": name, "cost_s": baseline, "history": []}
        if not isinstance(baseline, float):
            book, entries = baseline.book, int(baseline.book.entries[0])
            falls_at = zip(book.at[:entries].tolist(), book.fell_to[:entries].tolist(), strict=True)
            entry |= {"cost_s": baseline.best_s, "history": [list(fall) for fall in falls_at]}
        answer = {**answer, "baselines": [*answer["baselines"], entry]}
        yield answer
    if of_plan:
        against = placed_against_plan(wires.computation, answer["placement"])
        yield {**answer, "run": against}
