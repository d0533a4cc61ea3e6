"""Pages that belong to no single app: the overview ."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from webapp.live import overview as live_overview


def overview(request: HttpRequest) -> HttpResponse:
    """What there is, what runs on it, and what needs attention."""
    return render(request, "overview.html", live_overview.context(request.user))
