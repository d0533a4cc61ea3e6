"""The checkpoints of a run: the page that resumes from one, and the same as JSON."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from engine.job.changed import value_at
from webapp.accounts.permissions import may, visible_or_404
from webapp.common.lists import bound_table
from webapp.jobs.models import CheckpointStatus, Run, RunCheckpoint
from webapp.live.payload import unix
from webapp.live.tables import CheckpointTable

MOST_ENTRIES = 2_000


@never_cache
def run_checkpoints(request: HttpRequest, pk: int) -> HttpResponse:
    run = visible_or_404(Run.objects.select_related("job__team", "job__plan"), request.user, pk=pk)
    rows = RunCheckpoint.objects.filter(run=run)
    saves = value_at(run.document, "persistence.checkpoint", {})
    operates = may(request.user, run.job.team)
    table = bound_table(request, CheckpointTable, rows, every=saves.get("every"), resumable=operates)
    context = {
        "run": run,
        "title": "Checkpoints",
        "table": table,
        "saves": saves,
        "may_operate": operates,
        "usable": rows.filter(status=CheckpointStatus.SAVED).count(),
    }
    return render(request, "live/run_checkpoints.html", context)


@never_cache
def run_checkpoints_json(request: HttpRequest, pk: int) -> JsonResponse:
    """The last MOST_ENTRIES checkpoints of a run, the newest first (docs/dev/interfaces.md)."""
    run = visible_or_404(Run.objects.only("pk"), request.user, pk=pk)
    rows = RunCheckpoint.objects.filter(run=run).order_by("-step", "-pk")[:MOST_ENTRIES]
    entries = [
        {
            "step": row.step,
            "state": row.status,
            "where": row.where,
            "bytes": row.size,
            "seconds": row.took_s,
            "detail": row.detail,
            "t": unix(row.at),
        }
        for row in rows
    ]
    return JsonResponse({"checkpoints": entries})
