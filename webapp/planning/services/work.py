"""Computations of plans."""

from typing import Any

from django.db import transaction

from webapp.computations.models import Computation
from webapp.computations.services import start
from webapp.planning.models import Plan, PlanComputation


def start_of_plan(
    actor: Any, plan: Plan, *, kind: str, name: str, request: dict[str, Any], key: str = ""
) -> Computation:
    """Start a computation that refines `plan` or places an option of it; see `start`."""
    with transaction.atomic():
        computation = start(actor, team=plan.team, kind=kind, name=name, request=request, key=key)
        PlanComputation.objects.get_or_create(computation=computation, defaults={"plan": plan})
    return computation
