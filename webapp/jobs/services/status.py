"""The state of a run: the verbs that move it, and the marks that tell of it."""

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.jobs import notify
from webapp.jobs.models import TERMINAL, Desired, MarkLevel, Run, RunEvent, Status


@transaction.atomic
def cancel_run(actor: Any, run: Run) -> Run:
    """Want `run` stopped. What does not run yet is over at once; ranks are stopped by the reconciler."""
    require(actor, run.job.team)
    run = lock(run.pk)
    if not run.can_cancel:
        return run
    run.desired_state = Desired.CANCELLED
    run.save(update_fields=["desired_state"])
    record(
        actor, "cancel", run, team=run.job.team,
        before={"desired_state": Desired.RUNNING}, after={"desired_state": Desired.CANCELLED},
    )  # fmt: skip
    add_mark(run, MarkLevel.INFO, f"Stop asked by {actor}." if actor else "Stop asked.")
    by = f"Stopped by {actor}." if actor else "Stopped."
    if run.status == Status.QUEUED:
        set_status(run, Status.CANCELLED, by)
    else:
        set_status(run, Status.STOPPING, by)
    notify.reconcile_soon()
    return run


@transaction.atomic
def fail_run(run: Run, reason: str) -> Run:
    """End `run` as failed with `reason`; a run that is over stays as it ended."""
    run = lock(run.pk)
    if not run.is_over:
        before = {"status": run.status}
        set_status(run, Status.FAILED, reason)
        add_mark(run, MarkLevel.ERROR, reason)
        record(
            None, "fail", run, team=run.job.team, before=before, after={"status": run.status}, message=reason
        )
        notify.reconcile_soon()
    return run


@transaction.atomic
def finish_stopped(run: Run) -> Run:
    """End a stopping `run` as stopped: none of its ranks is left."""
    run = lock(run.pk)
    if run.status == Status.STOPPING:
        set_status(run, Status.CANCELLED, run.status_reason or "Stopped.")
        add_mark(run, MarkLevel.INFO, "All ranks are gone.")
    return run


@transaction.atomic
def wait_for(run: Run, what: str, *, needs_action: bool = False) -> None:
    """Say what a queued or starting `run` waits for (empty: nothing), if that is news.

    `needs_action` where it does not come by itself.
    """
    said = {"waits_for": what[:300], "needs_action": needs_action}
    if Run.objects.open().filter(pk=run.pk).exclude(**said).update(**said):
        notify.run_changed(run.pk)


@transaction.atomic
def forget_stopped_work(reason: str) -> list[Run]:
    """Fail every open run: the whole installation was down and with it their ranks. Returns them."""
    return [fail_run(run, reason) for run in Run.objects.open()]


def lock(run_id: int) -> Run:
    """The run, locked until the end of the transaction."""
    return Run.objects.select_for_update(of=("self",)).select_related("job__team").get(pk=run_id)


def set_status(run: Run, status: Status, reason: str) -> None:
    """Move a locked `run` on. Terminal states are never left."""
    if run.is_over:
        raise ValueError(f"{run} is {run.status} and stays so")
    now = timezone.now()
    run.status, run.status_reason, run.waits_for, run.status_since = status, reason[:500], "", now
    run.needs_action = False
    run.finished_at = now if status in TERMINAL else None
    fields = ["status", "status_reason", "waits_for", "needs_action", "status_since", "finished_at"]
    run.save(update_fields=fields)
    notify.run_changed(run.pk)


def add_mark(run: Run, level: MarkLevel, text: str, at: datetime | None = None) -> RunEvent:
    """Tell something of `run` on its page; numbered in order without gaps."""
    Run.objects.filter(pk=run.pk).update(mark_seq=F("mark_seq") + 1)
    seq = Run.objects.values_list("mark_seq", flat=True).get(pk=run.pk)
    return RunEvent.objects.create(run=run, seq=seq, at=at or timezone.now(), level=level, text=text[:600])
