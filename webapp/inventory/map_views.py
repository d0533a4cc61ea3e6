"""Data centres and links at one glance: the map and the matrix; and what is done with a link's history."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.permissions import may_somewhere, visible_or_404
from webapp.common.queries import whole
from webapp.common.work import flows_now
from webapp.inventory import services
from webapp.inventory.catalogue import suggestion
from webapp.inventory.filters import DataCenterFilterSet
from webapp.inventory.models import DataCenter, LinkMeasurement, WanLink
from webapp.inventory.selectors.matrix import MEASURES, link_matrix
from webapp.inventory.selectors.worldmap import world_map


@require_GET
def datacenter_map(request: HttpRequest) -> HttpResponse:
    """Data centres by longitude and latitude, and the links between them."""
    return render(request, "inventory/map.html", {"map": world_map(request.user, flows_now(request.user))})


@require_GET
def link_matrix_page(request: HttpRequest) -> HttpResponse:
    """Latency or bandwidth (`?show=`) of every pair of data centres."""
    measure = MEASURES.get(request.GET.get("show", ""), MEASURES["latency"])
    visible = DataCenter.objects.visible_to(request.user)
    found = DataCenterFilterSet(request.GET, queryset=visible, request=request)
    matrix = link_matrix(request.user, measure, found.qs, may_add=may_somewhere(request.user))
    context: dict[str, Any] = {"matrix": matrix, "measures": MEASURES.values(), "filter": found}
    return render(request, "inventory/link_matrix.html", context)


@require_GET
def link_suggestion(request: HttpRequest) -> HttpResponse:
    """What the catalogue offers for a link between `?a=` and `?b=`: a part of the link's form."""
    visible = DataCenter.objects.visible_to(request.user)
    ids = [request.GET.get(name, "") for name in ("a", "b")]
    chosen = [visible.filter(pk=whole(pk) or 0).first() for pk in ids]
    a, b = chosen
    offered = suggestion(a, b) if a and b and a != b else None
    return render(request, "inventory/link_suggestion.html", {"offered": offered})


@require_POST
def measurement_use(request: HttpRequest, pk: int, measurement: int) -> HttpResponse:
    """Put a row of the history of link `pk` into use."""
    link = visible_or_404(WanLink.objects.all(), request.user, pk=pk)
    row = get_object_or_404(LinkMeasurement.objects.filter(link=link), pk=measurement)
    try:
        services.use_measurement(request.user, row)
    except ValidationError as error:
        messages.error(request, f"The measurement cannot be used: {' '.join(error.messages)}")
    else:
        messages.success(request, f"New plans use {row}. Older plans keep their values.")
    return redirect("inventory:link-detail", pk=pk)
