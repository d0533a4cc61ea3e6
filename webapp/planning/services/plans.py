"""Making plans: the engine's answer is kept with the question."""

import time
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from engine.inputs import parse
from engine.plan.answer import FULL_S
from engine.plan.answer import plan as solve
from engine.plan.request import PlanRequest
from webapp.accounts.models import Team
from webapp.accounts.permissions import require
from webapp.accounts.services import locked, record
from webapp.common.asked_once import once
from webapp.computations.models import Computation, ComputationKind
from webapp.computations.services import claimed, start
from webapp.planning.models import Plan, PlanComputation
from webapp.planning.services.work import ask_to_refine, wants_second_look

UNCHECKED = ("request", "result", "training", "created_by")


@transaction.atomic
def create_plan(
    actor: Any,
    *,
    team: Team,
    name: str,
    request: dict[str, Any],
    training: dict[str, Any] | None,
    budget_s: float = FULL_S,
    key: str = "",
) -> Plan:
    """Compute and keep a plan.

    Parameters
    ----------
    budget_s : of a search, as `engine.plan.answer.plan`.
    key : idempotency key: the plan that `actor` has asked for with the same key before is returned.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of `team`.
    InputError
        The engine refuses the request.
    ValidationError
        The team has a plan of this name already.
    """
    require(actor, team)
    question = {"name": name, "request": request, "training": training, "idempotency_key": key}

    def make() -> Plan:
        began = time.perf_counter()
        result = solve(parse(PlanRequest, request), budget_s=budget_s).as_dict()
        took_ms = (time.perf_counter() - began) * 1e3
        plan = Plan(team=team, result=result, computed_ms=took_ms, created_by=actor, **question)
        return _kept(plan)

    return once(actor, Plan.objects.all(), key, make)


@transaction.atomic
def ask_for_plan(
    actor: Any,
    *,
    team: Team,
    name: str,
    request: dict[str, Any],
    training: dict[str, Any] | None,
    key: str = "",
) -> Computation:
    """Have the search worker compute a plan; see `create_plan`.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of `team`.
    ValidationError
        The team has a plan of this name already.
    """
    require(actor, team)
    question = {"document": request, "training": training}
    earlier = Computation.objects.filter(created_by=actor, idempotency_key=key).exclude(idempotency_key="")
    if not earlier.exists():
        Plan(team=team, name=name, computed_ms=0).full_clean(exclude=UNCHECKED)
    return start(actor, team=team, kind=ComputationKind.PLAN, name=name, request=question, key=key)


def keep_plan(computation: Computation, result: dict[str, Any], took_ms: float) -> Plan | None:
    """Make the plan that a computation was asked for, and have it refined where that may help.

    A name that was given away meanwhile gets a number. None where nobody waits for the plan any more.
    """
    with transaction.atomic():
        mine = claimed(computation)
        if mine is None or mine.cancel_asked:
            return None
        plan = Plan(
            team=mine.team,
            name=mine.name,
            request=mine.request["document"],
            result=result,
            training=mine.request["training"],
            computed_ms=took_ms,
            created_by=mine.created_by,
        )
        if Plan.objects.filter(team=plan.team, name=plan.name).exists():
            plan.name = plan.free_name()
        _kept(plan)
        PlanComputation.objects.create(plan=plan, computation=mine)
    if wants_second_look(result):
        ask_to_refine(plan.created_by, plan, plan.request)
    return plan


@transaction.atomic
def _kept(plan: Plan, after: dict[str, Any] | None = None) -> Plan:
    """Check a plan whose answer is there, save it and note that; `after` is what the audit tells of it."""
    plan.full_clean(exclude=UNCHECKED)
    plan.save()
    after = after or {"name": plan.name, "request": plan.request}
    record(plan.created_by, "create", plan, team=plan.team, after=after)
    return plan


@transaction.atomic
def rename_plan(actor: Any, plan: Plan, name: str) -> None:
    """Give a plan another name; its runs keep the name that they were launched with.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the plan's team.
    ValidationError
        The name is missing or too long, or the team has a plan of this name already.
    """
    require(actor, plan.team)
    before, plan.name = plan.name, name.strip()
    plan.full_clean(exclude=UNCHECKED)
    plan.save(update_fields=["name"])
    record(actor, "rename", plan, team=plan.team, before={"name": before}, after={"name": plan.name})


def clone_plan(actor: Any, plan: Plan) -> Plan:
    """A copy of a plan with its answer, under the next free name.

    Raises PermissionDenied where `actor` is no operator of the plan's team.
    """
    require(actor, plan.team)
    copied = Plan(
        team=plan.team,
        name=plan.free_name(),
        request=plan.request,
        result=plan.result,
        training=plan.training,
        computed_ms=plan.computed_ms,
        created_by=actor,
    )
    return _kept(copied, {"name": copied.name, "copy_of": plan.name})


@transaction.atomic
def delete_plans(actor: Any, rows: QuerySet[Plan]) -> int:
    """Delete plans with their computations; returns how many. Their runs stay, with what they were launched
    with.

    Raises PermissionDenied where `actor` is no operator of one of their teams.
    """
    plans = locked(actor, rows)
    for plan in plans:
        before = {"name": plan.name, "request": plan.request}
        record(actor, "delete", plan, team=plan.team, before=before)
        Computation.objects.filter(of_plan__plan=plan).delete()
        plan.delete()
    return len(plans)
