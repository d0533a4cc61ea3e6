"""Refining a plan, or a what-if of it: the best options once more with `auto`, by the search worker."""

from collections.abc import Iterator
from typing import Any

from engine.inputs import parse
from engine.plan.answer import plan
from engine.plan.request import PlanRequest
from engine.plan.search.refine import Refined, refine
from webapp.computations.wires import Wires
from webapp.planning import services

# Of one shape, of at most six: others wait for the same worker.
SHAPE_S = 20.0


def refine_plan(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"result": as `meridian plan` prints it}; the plan keeps it where its own document was refined."""
    plan_request = parse(PlanRequest, request["document"])
    wires.of = 1

    def report(refined: Refined) -> None:
        best = refined.result.best
        progress: dict[str, Any] = {"shapes": refined.of, "shapes_done": refined.done}
        if best is not None:
            progress["iteration_ms"] = refined.result.options[best].iteration_ms
        wires.publish(progress)

    first = plan(
        plan_request,
        cancelled=wires.cancelled,
        report=lambda cells, of: wires.publish({"cells": cells, "cells_of": of}),
    )
    if wires.cancelled():
        return  # what is there has had more time
    refined_plan = refine(plan_request, first, report=report, cancelled=wires.cancelled, seconds=SHAPE_S)
    if wires.ending():
        return
    result = refined_plan.as_dict()
    services.keep_refined(wires.computation, result)
    yield {"result": result}


def wants_refining(result: dict[str, Any]) -> bool:
    """Whether an answer has options that `auto` has not looked at yet."""
    return any(option.get("refining") for option in result["options"])
