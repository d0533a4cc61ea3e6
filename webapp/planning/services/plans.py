"""Making plans: the engine's answer is kept with the question."""

import time
from typing import Any

from django.db import transaction

from engine.inputs import parse
from engine.plan.dc_selection import plan as solve
from engine.plan.request import PlanRequest
from webapp.accounts.models import Team
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.planning.models import Plan

UNCHECKED = ("request", "result", "training", "created_by")


def create_plan(
    actor: Any, *, team: Team, name: str, request: dict[str, Any], training: dict[str, Any] | None
) -> Plan:
    """Compute and keep a plan.

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
    began = time.perf_counter()
    result = solve(parse(PlanRequest, request)).as_dict()
    took_ms = (time.perf_counter() - began) * 1e3
    plan = Plan(
        team=team,
        name=name,
        request=request,
        result=result,
        training=training,
        computed_ms=took_ms,
        created_by=actor,
    )
    with transaction.atomic():
        plan.full_clean(exclude=UNCHECKED)
        plan.save()
        record(actor, "create", plan, team=team, after={"name": name, "request": request})
    return plan


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
    with transaction.atomic():
        plan.full_clean(exclude=UNCHECKED)
        plan.save(update_fields=["name"])
        record(actor, "rename", plan, team=plan.team, before={"name": before}, after={"name": plan.name})


def clone_plan(actor: Any, plan: Plan) -> Plan:
    """A copy of a plan with its answer, under the next free name.

    Raises PermissionDenied where `actor` is no operator of the plan's team.
    """
    require(actor, plan.team)
    copied = Plan(
        team=plan.team, name=plan.free_name(), request=plan.request, result=plan.result,
        training=plan.training, computed_ms=plan.computed_ms, created_by=actor,
    )  # fmt: skip
    with transaction.atomic():
        copied.full_clean(exclude=UNCHECKED)
        copied.save()
        record(actor, "create", copied, team=plan.team, after={"name": copied.name, "copy_of": plan.name})
    return copied
