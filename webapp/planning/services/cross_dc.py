"""Comparisons of a plan with data parallelism over the WAN."""

from typing import Any

from webapp.accounts.permissions import require
from webapp.computations.models import Computation, ComputationKind
from webapp.planning.models import Plan
from webapp.planning.services.work import start_of_plan


def ask_to_compare(actor: Any, plan: Plan, document: dict[str, Any]) -> Computation:
    """Have a plan's document, or a what-if of it, compared with data parallelism over the WAN.

    Raises PermissionDenied where `actor` is no operator of the plan's team.
    """
    require(actor, plan.team)
    request = {"document": document}
    return start_of_plan(actor, plan, kind=ComputationKind.CROSS_DC, name=plan.name, request=request)
