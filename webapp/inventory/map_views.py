"""Data centres and links at one glance: the map and the matrix; and what is done with a link's history."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.permissions import may_somewhere, visible_or_404
from webapp.common.lists import matching
from webapp.common.queries import number, whole
from webapp.common.work import flows_now
from webapp.inventory import services
from webapp.inventory.catalogue import suggestion
from webapp.inventory.filters import DataCenterFilterSet
from webapp.inventory.layout import CLOSEST_DEGREES, WIDEST_DEGREES, Frame, frame_at
from webapp.inventory.models import DataCenter, LinkMeasurement, WanLink
from webapp.inventory.selectors.matrix import MEASURES, link_matrix
from webapp.inventory.selectors.worldmap import world_map

ZOOM = 1.6  # of one press of + or −


@require_GET
def datacenter_map(request: HttpRequest) -> HttpResponse:
    """Data centres by longitude and latitude, and the links between them.

    `?lat=`, `?lon=` and `?degrees=` (of longitude across) are the part of the world to show. If one is
    missing or out of range, the page shows all data centres.
    """
    frame = _frame(request.GET)
    drawn = world_map(request.user, flows_now(request.user), frame)
    zooms = [_address(drawn.frame.zoomed(factor)) for factor in (ZOOM, 1 / ZOOM)]
    context = {
        "map": drawn,
        "zoom_in": zooms[0],
        "zoom_out": zooms[1],
        "is_part": frame is not None,
        "is_zoomable": True,
    }
    return render(request, "inventory/map.html", context)


def _frame(query: QueryDict) -> Frame | None:
    limits = {"lat": (-90.0, 90.0), "lon": (-360.0, 360.0), "degrees": (CLOSEST_DEGREES, WIDEST_DEGREES)}
    values = [number(query.get(name), *limits[name]) for name in limits]
    return None if None in values else frame_at(*[value for value in values if value is not None])


def _address(frame: Frame | None) -> str:
    """The query that shows `frame`; empty where there is none."""
    if not frame:
        return ""
    latitude, longitude = frame.centre
    return f"?lat={latitude:.3f}&lon={longitude:.3f}&degrees={frame.degrees:.3f}"


@require_GET
def link_matrix_page(request: HttpRequest) -> HttpResponse:
    """Latency or bandwidth (`?show=`) of every pair of data centres."""
    measure = MEASURES.get(request.GET.get("show", ""), MEASURES["latency"])
    visible = DataCenter.objects.visible_to(request.user)
    filter_set = DataCenterFilterSet(request.GET, queryset=visible, request=request)
    matrix = link_matrix(request.user, measure, matching(filter_set), may_add=may_somewhere(request.user))
    context: dict[str, Any] = {"matrix": matrix, "measures": MEASURES.values(), "filter": filter_set}
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
