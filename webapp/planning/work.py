"""The work at plans: at once where that is quick for sure, else by the search worker, which also refines
plans and compares them."""

import time
from collections.abc import Iterator
from typing import Any

from engine.inputs import parse
from engine.plan.answer import WHAT_IF_S, plan
from engine.plan.cross_dc_plan import compare_plan, default_variants
from engine.plan.dc_selection import most_listed
from engine.plan.job import cluster_of, job_of
from engine.plan.request import KINDS, PlanRequest
from engine.plan.search.cells import CELL_S, FAST, OP_S
from engine.plan.search.refine import Refined, refine
from webapp.computations.wires import Wires
from webapp.planning import services

# A request may be as large as this and still be answered while a page waits: what-ifs of 5 × 600 GPUs are.
MOST_SITES, MOST_GPUS, MOST_LAYOUTS = 5, 5_000, 2
# A what-if may take a second: one of 20 × 1,000 GPUs takes 0.3 s, one of 30 in twelve layouts 1.3 s.
MOST_WHAT_IF_SITES, MOST_WHAT_IF_S = 20, 1.0
# Policies that take milliseconds a cell; of `auto` the search tries the fast ones.
QUICK = ("auto", "gpipe", *FAST)
SLOWER = 30  # what others may take, of that; `optimal` takes as long as it is given
# Of one shape, of at most six: others wait for the same worker.
SHAPE_S = 20.0


def answers_at_once(request: PlanRequest) -> bool:
    """Whether `request` is surely answered in a few tenths of a second.

    Raises
    ------
    InputError
        The job does not fit its model, or an answer would have too many options.
    """
    gpus = sum(dc.gpus for dc in request.datacenters)
    small = len(request.datacenters) <= MOST_SITES and gpus <= MOST_GPUS
    fits = request.method == "algorithm1" or (small and len(request.job.layouts) <= MOST_LAYOUTS)
    return _simulated_s(request) <= WHAT_IF_S and request.policy in QUICK and fits


def what_if_at_once(request: PlanRequest) -> bool:
    """Whether a what-if is answered in about a second: who moves a slider waits for it.

    Raises InputError as `answers_at_once`.
    """
    if request.policy == "optimal" or len(request.datacenters) > MOST_WHAT_IF_SITES:
        return False
    slower = 1 if request.policy in QUICK else SLOWER
    return slower * _simulated_s(request) <= MOST_WHAT_IF_S


def _simulated_s(request: PlanRequest) -> float:
    """Seconds that simulating takes, roughly: all options of Algorithm 1, or one shape of a search."""
    job = job_of(request, cluster_of(request))
    cell_s = CELL_S + OP_S * KINDS * job.partitions * job.microbatches * job.cell_pipelines
    cell_s *= 1 if job.balance is None else 2  # with even layers too
    return cell_s * (most_listed(request, job) if request.method == "algorithm1" else len(FAST))


def compute_plan(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"plan": its number}: the plan is there once it is computed; one that is stopped is not kept."""
    wires.of = 1
    began = time.perf_counter()

    def report(cells: int, of: int | None) -> None:
        wires.publish({"cells": cells, "cells_of": of})

    result = plan(parse(PlanRequest, request["document"]), cancelled=wires.cancelled, report=report)
    if wires.cancelled():
        return
    took_ms = (time.perf_counter() - began) * 1e3
    plan_row = services.keep_plan(wires.computation, result.as_dict(), took_ms)
    if plan_row is not None:
        yield {"plan": plan_row.pk}


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


def compare_with_data(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"rows": as `meridian plan --cross-dc` prints them}, one more each time."""
    plan_request = parse(PlanRequest, request["document"])
    variants = default_variants(plan_request)
    wires.of = len(variants)
    rows: list[dict[str, Any]] = []
    for one in compare_plan(plan_request, variants, cancelled=wires.cancelled):
        rows.append(one.as_dict())
        yield {"rows": rows}
