"""The Placement pages: which device computes which stage of which pipeline, where links differ (DT-FM)."""

import json
import uuid
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from webapp.accounts.permissions import may, require_somewhere
from webapp.common.additions import extended
from webapp.common.figures import download
from webapp.common.lists import list_page
from webapp.computations import services
from webapp.computations.filters import ComputationFilterSet
from webapp.computations.models import Computation, ComputationKind
from webapp.placement.forms import PlacementForm
from webapp.placement.pages import pages
from webapp.placement.selectors import (
    command_document,
    file_of,
    initial_from,
    listed,
    result_context,
)
from webapp.placement.tables import PlacementTable
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
