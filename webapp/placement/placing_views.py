"""Having an option of a plan placed, and how far that is."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from engine.errors import InputError
from webapp.accounts.permissions import may, require, visible_or_404
from webapp.common.asked_once import fresh_key
from webapp.common.queries import whole
from webapp.computations.models import ComputationKind
from webapp.placement.placing import latest_of, placing_of, question_of
from webapp.planning.models import Plan
from webapp.planning.services import start_of_plan


def _plan(request: HttpRequest, pk: int) -> Plan:
    return visible_or_404(Plan.objects.select_related("team"), request.user, pk=pk)


@require_POST
def plan_place(request: HttpRequest, pk: int) -> HttpResponse:
    """Have the option that the body names placed; answers with how far that is."""
    plan = _plan(request, pk)
    require(request.user, plan.team)
    index = whole(request.POST.get("option", ""), len(plan.result["options"]) - 1)
    refused = ""
    try:
        if index is None:
            raise InputError("option", request.POST.get("option"), "must be the index of an option")
        latest = latest_of(plan, plan.result["options"][index])
        if latest is None or not latest.is_open:
            name, question = question_of(plan, index, request.user)
            start_of_plan(
                request.user,
                plan,
                kind=ComputationKind.PLACEMENT,
                name=name,
                request=question,
                key=request.POST.get("idempotency_key", ""),
            )
    except InputError as error:
        refused = f"{error}."
    return _section(request, plan, index or 0, refused)


def plan_placing(request: HttpRequest, pk: int) -> HttpResponse:
    """How far the placement of the option that the address names is."""
    plan = _plan(request, pk)
    return _section(request, plan, whole(request.GET.get("option"), len(plan.result["options"]) - 1) or 0)


def _section(request: HttpRequest, plan: Plan, index: int, refused: str = "") -> HttpResponse:
    option: dict[str, Any] = {**plan.result["options"][index], "index": index}
    operates = may(request.user, plan.team)
    placing = placing_of(plan, option, operates=operates, refining=False)
    context = {
        "plan": plan,
        "selected": option,
        "placing": placing,
        "may_operate": operates,
        "refused": refused,
        "launch_key": fresh_key(),
        "ended": not refused and placing.state != "open",
    }
    return render(request, "placement/plan_placing.html", context)
