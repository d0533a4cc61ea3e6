"""Pages of runs."""

import json

from csp.constants import UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from webapp.accounts.permissions import may, visible_or_404
from webapp.jobs.filters import RunFilterSet
from webapp.jobs.models import Run, RunEvent
from webapp.jobs.services import cancel_run
from webapp.jobs.tables import RunTable
from webapp.lists import list_page
from webapp.live.selectors import snapshot


def run_list(request: HttpRequest) -> HttpResponse:
    return list_page(
        request,
        title="Runs",
        rows=Run.objects.visible_to(request.user).for_lists(),
        filter_class=RunFilterSet,
        table_class=RunTable,
        empty="No run yet. Launch one from a plan.",
    )


@never_cache
@csp_update({"style-src": [UNSAFE_INLINE]})  # type: ignore[arg-type]  # plotly writes its rules into a style element
def run_detail(request: HttpRequest, pk: int) -> HttpResponse:
    run = visible_or_404(Run.objects.select_related("job__team", "job__plan"), request.user, pk=pk)
    context = {
        "run": run,
        "job": run.job,
        "plan": run.job.plan,
        "snapshot": snapshot(pk),
        "ws_path": f"/ws/runs/{pk}/",
        "live_url": reverse("jobs:run-live", args=[pk]),
        "cancel_url": reverse("jobs:run-cancel", args=[pk]),
        "may_operate": may(request.user, run.job.team),
        "document": json.dumps(run.job.document, indent=2),
        "ranks": run.ranks.select_related("node", "dc"),
        "events": RunEvent.objects.filter(run=run).order_by("-seq")[:200],
    }
    return render(request, "jobs/run_detail.html", context)


@never_cache
def run_live(request: HttpRequest, pk: int) -> JsonResponse:
    """The snapshot of a run, for browsers whose socket is blocked."""
    visible_or_404(Run.objects.only("pk"), request.user, pk=pk)
    return JsonResponse(snapshot(pk))


@require_POST
def run_cancel(request: HttpRequest, pk: int) -> HttpResponse:
    run = visible_or_404(Run.objects.select_related("job__team"), request.user, pk=pk)
    cancel_run(request.user, run)
    return redirect("jobs:run-detail", pk=pk)
