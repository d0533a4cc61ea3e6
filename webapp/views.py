"""Pages that belong to no single app: the overview and the health check."""

from dataclasses import asdict

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from webapp import broker
from webapp.live import overview as live_overview


def overview(request: HttpRequest) -> HttpResponse:
    """What there is, what runs on it, and what needs attention."""
    return render(request, "overview.html", live_overview.context(request.user))


@login_not_required
@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    """200 where the database and the broker answer, else 503; says which."""
    parts = {"database": broker.database_health(), "broker": broker.health(max_age_s=0.5)}
    healthy = all(part.ok for part in parts.values())
    body = {"ok": healthy, **{name: asdict(part) for name, part in parts.items()}}
    return JsonResponse(body, status=200 if healthy else 503)
