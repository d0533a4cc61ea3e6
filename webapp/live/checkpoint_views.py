"""The checkpoints of a run, and where to resume from one."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from engine.job.changed import value_at
from webapp.accounts.permissions import may, visible_or_404
from webapp.common.lists import bound_table
from webapp.jobs.models import CheckpointStatus, Run, RunCheckpoint
from webapp.live.tables import CheckpointTable


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
