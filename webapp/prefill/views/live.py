"""Prefill live: what is sold of idle time at this moment."""

import json

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from webapp.accounts.models import OPERATORS
from webapp.accounts.permissions import require_somewhere
from webapp.common.queries import whole
from webapp.live.selectors import snapshot
from webapp.prefill.watching import watched

# What a job's document gets, as the empty page shows it.
SECTION = {
    "prefill": {
        "checkpoint": "/models/llama-3-8b",
        "name": "llama-3-8b",
        "latency": {"a_ms": 3.0, "b_ms": 0.06, "c_ms": 0.0},
    }
}


@never_cache
def live(request: HttpRequest) -> HttpResponse:
    """Coordinators and figures, refreshed every 2 s.

    The timeline of `?run=` (by default the newest) has its own socket.
    """
    require_somewhere(request.user, OPERATORS)
    coordinator = watched(request.user, whole(request.GET.get("run")))
    part = bool(request.headers.get("HX-Request"))
    context = {
        "title": "Prefill live",
        "crumbs": [],
        "watched": coordinator,
        "snapshot": snapshot(coordinator.run.pk) if coordinator.run and not part else None,
        "section": json.dumps(SECTION, indent=2),
    }
    return render(request, "prefill/live.html", context)
