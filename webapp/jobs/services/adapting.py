"""Runs that re-plan while they run: the reports of their first rank."""

from datetime import UTC, datetime

from django.db import transaction

from engine.job.adapt.sentences import described, moved
from engine.job.events.incidents import Adapted, LayoutChanged
from webapp.jobs import incidents, notify
from webapp.jobs.models import MarkLevel, Run, RunEvent
from webapp.jobs.prediction import measured_payload, present_job
from webapp.jobs.services.predictions import record_prediction
from webapp.jobs.services.recovery import cut_run, dismiss_ranks
from webapp.jobs.services.status import add_mark


@transaction.atomic
def record_adapted(run: Run, event: Adapted) -> bool:
    """Take in an `adapted` event of `run`: a mark, and another prediction; whether it was news."""
    at = datetime.fromtimestamp(event.t, UTC)
    text = described(event)[:600]
    if RunEvent.objects.filter(run=run, at=at, text=text).exists():
        return False
    at_present = present_job(run)
    if at_present is not None and event.schedule is not None and event.times is not None:
        document, position_of_rank = at_present
        record_prediction(
            run,
            event.iteration,
            measured_payload(document, event.schedule, event.times, position_of_rank=position_of_rank),
        )
    add_mark(run, MarkLevel.WARN, text, at, cost=incidents.adaptation(event))
    notify.run_changed(run.pk)
    return True


@transaction.atomic
def record_layout_changed(run: Run, event: LayoutChanged) -> bool:
    """Take in a `layout_changed` event of `run`: a mark, the layout, a prediction; whether it was news."""
    at = datetime.fromtimestamp(event.t, UTC)
    text = moved(event)[:600]
    if RunEvent.objects.filter(run=run, at=at, text=text).exists():
        return False
    add_mark(run, MarkLevel.WARN, text, at, cost=incidents.layout_change(event, done=run.done))
    cut_run(run, event.iteration, event.layout, event.times)
    dismiss_ranks(run, event.left or ())
    notify.run_changed(run.pk)
    return True
