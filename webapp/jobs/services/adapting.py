"""Runs that plan anew while they run: what their first rank says of it."""

from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from engine.runtime.adapt.told import described
from webapp.jobs import notify
from webapp.jobs.models import MarkLevel, Run, RunEvent
from webapp.jobs.services.status import add_mark


@transaction.atomic
def record_adapted(run: Run, event: dict[str, Any]) -> bool:
    """Take in an `adapted` event of `run` as a mark; whether it was news. The prediction is not changed."""
    at = datetime.fromtimestamp(float(event["t"]), UTC)
    text = f"{described(event)} The predicted timeline stays that of the plan at launch."[:600]
    if RunEvent.objects.filter(run=run, at=at, text=text).exists():
        return False
    add_mark(run, MarkLevel.WARN, text, at)
    notify.run_changed(run.pk)
    return True
