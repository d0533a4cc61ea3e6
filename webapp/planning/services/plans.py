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
        plan.full_clean(exclude=["request", "result", "training", "created_by"])
        plan.save()
        record(actor, "create", plan, team=team, after={"name": name, "request": request})
    return plan
