"""Whether ingest is at work and hears nodes: only then does a missing heartbeat say anything of a node."""

from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.utils import timezone

from webapp.computations.models import Beat

INGEST = "ingest"
RECONCILER = "reconciler"
SEARCH = "search"
STALE = timedelta(seconds=6)


def beat(name: str = INGEST, *, anew: bool = False) -> None:
    """Say that the part `name` is at work now; after a pause, or with `anew`, its `since` starts again.

    Ingest begins anew after it could not hear nodes though it was at work: the broker was away, had forgotten
    them or took no writes. That is an outage of ours, and no node is silent for it.
    """
    now = timezone.now()
    fresh = not anew and _of_now(name).update(at=now)
    if not fresh:
        Beat.objects.update_or_create(name=name, defaults={"at": now, "since": now})


def listening_since() -> datetime | None:
    """Since when nodes could be heard without a pause; None where they cannot be now."""
    row = _of_now(INGEST).first()
    return row.since if row else None


def _of_now(name: str) -> QuerySet[Beat]:
    """The beat of a part if it is recent. One of the future is of before our clock was set back: it says
    nothing of what was heard since."""
    now = timezone.now()
    return Beat.objects.filter(name=name, at__gte=now - STALE, at__lte=now + STALE, since__lte=now + STALE)
