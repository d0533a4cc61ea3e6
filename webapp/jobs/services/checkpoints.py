"""What nodes say of a run's checkpoints."""

from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.db.models import Q, QuerySet

from engine.job.events.training import Checkpoint, CheckpointState
from webapp.jobs import notify
from webapp.jobs.models import CheckpointStatus, MarkLevel, Run, RunCheckpoint
from webapp.jobs.services.status import add_mark_once

STATUS = {CheckpointState.SAVED: CheckpointStatus.SAVED, CheckpointState.FAILED: CheckpointStatus.FAILED}


@transaction.atomic
def record_checkpoint(run: Run, event: Checkpoint) -> bool:
    """Take in a `checkpoint` event of `run`, whose row is locked; returns whether it was news.

    One that failed or is torn is a mark. Those that were removed can be of another run of the team.
    """
    if event.state is CheckpointState.TORN:
        return _passed_over(run, event)
    is_new = _keep(run, event)
    if event.state is CheckpointState.FAILED:
        return is_new and _tell(run, event, f"No checkpoint after iteration {event.step:,}: {event.detail}")
    _of_team(run, event.removed).update(status=CheckpointStatus.REMOVED)
    earlier = Run.objects.filter(Q(saved_step=None) | Q(saved_step__lt=event.step), pk=run.pk)
    if not _fits(event) or not earlier.update(saved_step=event.step, saved_where=event.where):
        return False
    if event.detail:
        return _tell(run, event, f"Checkpoint after iteration {event.step:,}: {event.detail}")
    notify.run_changed(run.pk)
    return True


def _passed_over(run: Run, event: Checkpoint) -> bool:
    """`run` went on from an older checkpoint, because this one is torn; it is of any run of the team."""
    rows = _of_team(run, [event.where])
    rows.update(status=CheckpointStatus.TORN, detail=event.detail[:500])
    what = event.detail.removeprefix("is torn: ")
    return _tell(run, event, f"Passed over the torn checkpoint after iteration {event.step:,}: {what}")


def _tell(run: Run, event: Checkpoint, text: str) -> bool:
    """Add a warning to `run` unless the same event made it before; whether it was news."""
    is_new = add_mark_once(run, MarkLevel.WARN, text, event.t)
    if is_new:
        notify.run_changed(run.pk)
    return is_new


def _fits(event: Checkpoint) -> bool:
    return len(event.where) <= Run.LONGEST_WHERE


def _keep(run: Run, event: Checkpoint) -> bool:
    """Keep a row of the checkpoint; whether there was none. Where its place is too long, none is kept."""
    if not _fits(event):
        return True
    _, is_new = RunCheckpoint.objects.get_or_create(
        run=run,
        where=event.where,
        defaults={
            "step": event.step,
            "status": STATUS[event.state],
            "size": event.bytes,
            "took_s": event.seconds,
            "detail": event.detail[:500],
            "at": datetime.fromtimestamp(event.t, UTC),
        },
    )
    return is_new


def _of_team(run: Run, where: Sequence[str]) -> QuerySet[RunCheckpoint]:
    """Rows of checkpoints at these places that can still be there, of all runs of the team of `run`."""
    rows = RunCheckpoint.objects.filter(where__in=where, run__job__team=run.job.team_id)
    return rows.filter(status__in=(CheckpointStatus.SAVED, CheckpointStatus.TORN))
