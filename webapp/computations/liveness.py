"""Whether ingest is at work and hears nodes: only then does a missing heartbeat say anything of a node."""

from datetime import datetime, timedelta

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
    fresh = not anew and Beat.objects.filter(name=name, at__gte=now - STALE).update(at=now)
    if not fresh:
        Beat.objects.update_or_create(name=name, defaults={"at": now, "since": now})


def listening_since() -> datetime | None:
    """Since when nodes could be heard without a pause; None where they cannot be now."""
    row = Beat.objects.filter(name=INGEST, at__gte=timezone.now() - STALE).first()
    return row.since if row else None
