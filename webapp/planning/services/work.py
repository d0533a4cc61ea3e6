"""Computations of plans: refinements with `auto`, comparisons with data parallelism over the WAN, and what
later apps compute for a plan."""

from typing import Any

from django.db import transaction

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.computations.models import OPEN, Computation, ComputationKind
from webapp.computations.services import remove, start
from webapp.planning.models import Plan, PlanComputation


@transaction.atomic
def start_of_plan(
    actor: Any, plan: Plan, *, kind: str, name: str, request: dict[str, Any], key: str = ""
) -> Computation:
    """Start a computation that refines `plan` or places an option of it; see `start`."""
    computation = start(actor, team=plan.team, kind=kind, name=name, request=request, key=key)
    PlanComputation.objects.get_or_create(computation=computation, defaults={"plan": plan})
    return computation


def ask_to_refine(actor: Any, plan: Plan, document: dict[str, Any]) -> Computation:
    """Have a plan's document, or a what-if of it, refined.

    One person looks at one what-if at a time: what they had asked for another of this plan is taken back.

    Raises PermissionDenied where `actor` is no operator of the plan's team.
    """
    require(actor, plan.team)
    of_plan = Computation.objects.of(ComputationKind.REFINE).filter(of_plan__plan=plan, state__in=OPEN)
    for other in of_plan.filter(created_by=actor).exclude(request__document=plan.request):
        remove(actor, other)
    request = {"document": document}
    return start_of_plan(actor, plan, kind=ComputationKind.REFINE, name=plan.name, request=request)


def wants_second_look(result: dict[str, Any]) -> bool:
    """Whether the worker may find a better answer: with `auto`, or with more time than a page has."""
    searched = result.get("search") or {
        "stopped_by": "proven"
    }  # Algorithm 1 has looked at all that it looks at
    unsure = searched["stopped_by"] != "proven"
    return unsure or any(option.get("refining") for option in result["options"])


@transaction.atomic
def keep_refined(computation: Computation, result: dict[str, Any]) -> bool:
    """Put a refined answer in place of the plan's own; False where it is a what-if's, or the plan is gone."""
    plan = Plan.objects.select_for_update(of=("self",)).filter(work__computation=computation).first()
    if plan is None or plan.request != computation.request["document"]:
        return False
    before, after = plan.best, result["options"][result["best"]] if result["best"] is not None else None
    plan.result = result
    plan.save(update_fields=["result"])
    figures = [None if option is None else option["iteration_ms"] for option in (before, after)]
    record(
        computation.created_by,
        "refine",
        plan,
        team=plan.team,
        before={"iteration_ms": figures[0]},
        after={"iteration_ms": figures[1]},
    )
    return True


def ask_to_compare(actor: Any, plan: Plan, document: dict[str, Any]) -> Computation:
    """Have a plan's document, or a what-if of it, compared with data parallelism over the WAN.

    Raises PermissionDenied where `actor` is no operator of the plan's team.
    """
    require(actor, plan.team)
    request = {"document": document}
    return start_of_plan(actor, plan, kind=ComputationKind.CROSS_DC, name=plan.name, request=request)
