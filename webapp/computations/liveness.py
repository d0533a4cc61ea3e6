"""Whether ingest is at work: only then does a missing heartbeat say anything of a node."""

from datetime import datetime, timedelta

from django.utils import timezone

from webapp.computations.models import Beat

INGEST = "ingest"
RECONCILER = "reconciler"
SEARCH = "search"
STALE = timedelta(seconds=6)


def beat(name: str = INGEST) -> None:
    """Say that the part `name` is at work now; after a pause its `since` starts again."""
    now = timezone.now()
    fresh = Beat.objects.filter(name=name, at__gte=now - STALE).update(at=now)
    if not fresh:
        Beat.objects.update_or_create(name=name, defaults={"at": now, "since": now})


def listening_since() -> datetime | None:
    """Since when ingest has read heartbeats without a pause; None where it does not now."""
    row = Beat.objects.filter(name=INGEST, at__gte=timezone.now() - STALE).first()
    return row.since if row else None
