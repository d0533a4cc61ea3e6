"""Deleting runs that have ended, with all that was measured of them."""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from webapp.accounts.services import Busy, locked, record
from webapp.computations.models import Computation
from webapp.jobs.models import Job, Run


def goes_on_from(runs: Sequence[Run]) -> str:
    """Why `runs` cannot be deleted without another one, as a sentence; empty where they can.

    A run that took the place of another saves into a folder of its own because that one was there.
    """
    keys = [run.pk for run in runs]
    after = (
        Run.objects.filter(moved_from__in=keys).exclude(pk__in=keys).select_related("job", "moved_from__job")
    )
    follower = after.first()
    if follower is None:
        return ""
    return f"{follower} continues {follower.moved_from}. Delete {follower} first, or both together."


@transaction.atomic
def delete_runs(actor: Any, rows: QuerySet[Run]) -> int:
    """Delete runs with their telemetry, and jobs that have no other run; returns how many runs.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of one of their teams.
    Busy
        One has not ended, or another run goes on from it.
    """
    list(Job.objects.filter(runs__in=rows.values("pk")).order_by("pk").select_for_update(of=("self",)))
    runs = locked(actor, rows.order_by("-pk"))  # those that go on from others first
    if why := goes_on_from(runs):
        raise Busy(why)
    for run in runs:
        before = {"name": str(run), "status": run.status, "iterations": run.done}
        record(actor, "delete", run, team=run.team, before=before)
        run.delete()
    Computation.objects.filter(pk__in=[run.search_id for run in runs]).delete()
    for job in Job.objects.filter(pk__in=[run.job_id for run in runs], runs=None).select_related("team"):
        record(actor, "delete", job, team=job.team, before={"name": job.name, "document": job.document})
        job.delete()
    return len(runs)
