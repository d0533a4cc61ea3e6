"""What nodes say of a run's checkpoints."""

from typing import Any

from django.db import transaction
from django.db.models import Q

from webapp.jobs import notify
from webapp.jobs.models import MarkLevel, Run
from webapp.jobs.services.status import add_mark


@transaction.atomic
def record_checkpoint(run: Run, event: dict[str, Any]) -> bool:
    """Take in a `checkpoint` event of `run`; returns whether it was news. One that failed is a mark."""
    step = int(event["step"])
    if event["state"] != "saved":
        add_mark(run, MarkLevel.WARN, f"No checkpoint after iteration {step:,}: {event['detail']}"[:600])
        notify.run_changed(run.pk)
        return True
    where = str(event["where"])
    earlier = Run.objects.filter(Q(saved_step=None) | Q(saved_step__lt=step), pk=run.pk)
    if len(where) > Run.LONGEST_WHERE or not earlier.update(saved_step=step, saved_where=where):
        return False
    if event.get("detail"):
        add_mark(run, MarkLevel.WARN, f"Checkpoint after iteration {step:,}: {event['detail']}"[:600])
    notify.run_changed(run.pk)
    return True
