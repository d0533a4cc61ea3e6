"""Runs that plan anew while they run: what their first rank says of it."""

from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from engine.runtime.adapt.told import described
from webapp.jobs import disturbances, notify
from webapp.jobs.models import MarkLevel, Run, RunEvent
from webapp.jobs.prediction import adapted_payload
from webapp.jobs.services.predictions import record_prediction
from webapp.jobs.services.status import add_mark


@transaction.atomic
def record_adapted(run: Run, event: dict[str, Any]) -> bool:
    """Take in an `adapted` event of `run`: a mark, and another prediction; whether it was news."""
    at = datetime.fromtimestamp(float(event["t"]), UTC)
    text = described(event)[:600]
    if RunEvent.objects.filter(run=run, at=at, text=text).exists():
        return False
    since, cut = int(event["iteration"]), run.cuts[-1] if run.cuts else None
    document, seats = (cut["job"], cut["seats"]) if cut else (run.job.document, None)
    record_prediction(run, since, adapted_payload(document, event, seats=seats))
    add_mark(run, MarkLevel.WARN, text, at, cost=disturbances.adaptation(event))
    notify.run_changed(run.pk)
    return True
