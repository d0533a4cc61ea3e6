"""The Placement pages: which device computes which stage of which pipeline, where links differ (DT-FM);
and the placement of a plan's option, on the page of the plan."""

import json
import uuid
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from engine.errors import InputError
from webapp.accounts.permissions import may, require, require_somewhere, visible_or_404
from webapp.common.additions import extended
from webapp.common.asked_once import fresh_key
from webapp.common.figures import download
from webapp.common.lists import list_page
from webapp.common.queries import whole
from webapp.computations import services
from webapp.computations.filters import ComputationFilterSet
from webapp.computations.models import Computation, ComputationKind
from webapp.placement.forms import PlacementForm
from webapp.placement.pages import pages
from webapp.placement.placing import latest_of, placing_of, question_of
from webapp.placement.selectors import (
    command_document,
    file_of,
    initial_from,
    listed,
    result_context,
)
from webapp.placement.tables import PlacementTable
from webapp.planning.models import Plan
from webapp.planning.services import start_of_plan


def placement_list(request: HttpRequest) -> HttpResponse:
    return list_page(
        request,
        title="Placement",
        filter_class=ComputationFilterSet,
        table_class=PlacementTable,
        rows=listed().visible_to(request.user),
        create=("placement:placement-create", "Place devices"),
        bulk=pages.archive.bulk(request),
        empty="No placements yet. A placement shows which device should compute which stage of which "
        "pipeline when links between devices differ.",
    )


def placement_create(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user)
    initial = initial_from(request.user, request.GET)
    form = PlacementForm(request.POST or None, request.FILES or None, user=request.user, initial=initial)

    def start(values: dict[str, Any]) -> Computation:
        plan = form.plan_of_team
        fields = {
            "kind": ComputationKind.PLACEMENT,
            "name": values["name"],
            "request": form.question,
            "key": values["idempotency_key"],
        }
        if plan is None:
            return services.start(request.user, team=values["team"], **fields)
        return start_of_plan(request.user, plan, **fields)

    template = "placement/placement_form.html"
    return pages.ask(
        request, form, start, template=template, title="Place devices", submit="Place", wide=True
    )


def placement_detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    placement = pages.visible(request, pk)
    compared = " --baselines" if placement.request["baselines"] else ""
    context = result_context(placement, request.GET.get("show", "")) | {
        "placement": placement,
        "may_operate": may(request.user, placement.team),
        "command": f"meridian place placement-{pk}.json{compared}",
        "document_name": f"placement-{pk}.json",
        "document_url": reverse("placement:placement-document", args=[pk]),
    }
    name = "result" if request.headers.get("HX-Request") else "detail"
    context = extended("placement", request, context)
    return render(request, f"placement/placement_{name}.html", context)


def placement_document(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The document that `meridian place` answers."""
    text = json.dumps(command_document(pages.visible(request, pk)))
    return download(text, "application/json", f"placement-{pk}.json")


def placement_table(request: HttpRequest, pk: uuid.UUID, table: str) -> HttpResponse:
    """One table or chart as CSV, in full."""
    text = file_of(pages.visible(request, pk), table)
    if text is None:
        raise Http404
    return download(text, "text/csv", f"placement-{table}-{pk}.csv")


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
