"""A placement's iteration time compared with its plan's: the predicted time of a run on each."""

from typing import Any

from django.utils.text import capfirst

from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.predict import predict
from webapp.computations.models import Computation
from webapp.placement.options import placed_plan
from webapp.placement.placed import PlacedJob, placed_job
from webapp.planning.document import pinned_document, train_document, train_fields
from webapp.planning.models import Plan

# Of a run's fields, what says where it computes: a placement has its own.
WHERE = ("datacenters", "links", "stages", "dc_of_stage", "pipelines", "cells", "device", "schedule")


def placed_against_plan(placement: Computation, answer: dict[str, Any]) -> dict[str, Any]:
    """{plan_ms, planned_ms, placed_ms}, or {reason} where the placement cannot be run.

    Parameters
    ----------
    answer : the answer of the engine, which `placement` need not hold yet.

    Returns
    -------
    plan_ms : iteration of the option, as the plan says.
    planned_ms, placed_ms : as predicted of a run that is launched from the option, and from the placement.
    """
    placed = placed_plan(placement.request, Plan.objects.filter(work__computation=placement))
    if placed is None:
        return {"reason": "The plan has no such option any more."}
    plan, option = placed
    try:
        return {
            "plan_ms": option["iteration_ms"],
            "planned_ms": _iteration_ms(train_document(plan.request, option, plan.training)),
            "placed_ms": _iteration_ms(option_on_placement(plan, option, placement, answer).document),
        }
    except InputError as error:
        return {"reason": f"{capfirst(error.allowed)}."}


def option_on_placement(
    plan: Plan, option: dict[str, Any], placement: Computation, answer: dict[str, Any] | None = None
) -> PlacedJob:
    """The job that a launch of `option` gives, on the GPUs where `placement` puts them.

    Raises InputError where either cannot be run; says why.
    """
    planned = train_fields(plan.request, option, plan.training)
    training = {name: value for name, value in planned.items() if name not in WHERE}
    return placed_job(placement, training, answer)


def _iteration_ms(document: dict[str, Any]) -> float:
    return predict(parse(TrainJob, pinned_document(document))).iteration_s * 1e3
