"""What nodes say of a run's checkpoints."""

from django.db import transaction
from django.db.models import Q

from engine.job.events.training import Checkpoint, CheckpointState
from webapp.jobs import notify
from webapp.jobs.models import MarkLevel, Run
from webapp.jobs.services.status import add_mark


@transaction.atomic
def record_checkpoint(run: Run, event: Checkpoint) -> bool:
    """Take in a `checkpoint` event of `run`; returns whether it was news. One that failed is a mark."""
    step = event.step
    if event.state is not CheckpointState.SAVED:
        add_mark(run, MarkLevel.WARN, f"No checkpoint after iteration {step:,}: {event.detail}"[:600])
        notify.run_changed(run.pk)
        return True
    earlier = Run.objects.filter(Q(saved_step=None) | Q(saved_step__lt=step), pk=run.pk)
    if len(event.where) > Run.LONGEST_WHERE or not earlier.update(saved_step=step, saved_where=event.where):
        return False
    if event.detail:
        add_mark(run, MarkLevel.WARN, f"Checkpoint after iteration {step:,}: {event.detail}"[:600])
    notify.run_changed(run.pk)
    return True
