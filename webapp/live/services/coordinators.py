"""Prefill coordinators of runs and their reports: taken from nodes, later summed up by the minute."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from engine.job.events import prefill as events
from webapp.inventory.models import Node
from webapp.inventory.selectors import datacenter_name
from webapp.jobs.models import RankState, Run
from webapp.live.models import CoordinatorState, PrefillCoordinator, PrefillMinute, PrefillSecond
from webapp.live.shape import shape_of_run

ANY_HOST = ("", "0.0.0.0", "::")
MINUTE_S = 60
_REPORTED = (
    "t",
    "window_s",
    "accepted",
    "refused",
    "delivered",
    "failed",
    "missed",
    "waiting",
    "prefill_ms",
    "waited_ms",
    "gpus",
    "guard_ms",
    "slowdown",
    "paused",
)
MOST_AT_ONCE = 20_000  # seconds that one call adds up


def record_coordinator(
    run: Run, node: str, at: datetime, event: events.CoordinatorEvent
) -> PrefillCoordinator | None:
    """Note that a prefill coordinator of `run` was opened or closed; what is older than the last changes
    nothing.

    Parameters
    ----------
    node : who says so; it speaks for data centres in which it has a rank of the run, and for its own host.
    at : when the broker heard of it.

    Raises
    ------
    ValueError
        The event speaks for another.
    """
    dc = _dc_of(run, node, event.dc)
    values = {
        "model": event.model,
        "host": _host(node, event.host),
        "port": event.port,
        "rank": event.rank,
        "state": CoordinatorState(event.state),
        "detail": event.detail[:300],
        "said_at": event.t,
        "heard_at": at,
    }
    row = PrefillCoordinator.objects.select_for_update().filter(run=run, dc=dc).first()
    if row is None:
        return PrefillCoordinator.objects.create(run=run, dc_id=dc, **values)
    if row.said_at > event.t:
        return None
    for name, value in values.items():
        setattr(row, name, value)
    row.save(update_fields=list(values))
    return row


def record_prefill(run: Run, node: str, at: datetime, event: events.Prefill) -> PrefillSecond | None:
    """Keep what a prefill coordinator did in the last second; a report again, or one added up already,
    changes nothing.

    Raises as `record_coordinator` does.
    """
    dc = _dc_of(run, node, event.dc)
    row = PrefillSecond(run=run, dc_id=dc, **{name: getattr(event, name) for name in _REPORTED})
    PrefillCoordinator.objects.filter(run=run, dc=dc, heard_at__lt=at).update(heard_at=at)
    if PrefillMinute.objects.filter(run=run, dc=dc, minute=_minute(row.t)).exists():
        return None
    created = PrefillSecond.objects.bulk_create([row], ignore_conflicts=True)
    return created[0]


@transaction.atomic
def add_up_prefill(keep_s: int) -> int:
    """Replace the reports of minutes that ended over `keep_s` seconds ago by a row each; returns how many
    reports."""
    before = (int(timezone.now().timestamp()) - keep_s) // MINUTE_S * MINUTE_S
    old = PrefillSecond.objects.select_for_update(skip_locked=True).filter(t__lt=before).order_by("t", "pk")
    minutes: dict[tuple[int, int, int], list[PrefillSecond]] = {}
    for row in old[:MOST_AT_ONCE]:
        minutes.setdefault((row.run_id, row.dc_id, _minute(row.t)), []).append(row)
    if len(minutes) > 1 and sum(map(len, minutes.values())) == MOST_AT_ONCE:
        newest = max(key[2] for key in minutes)  # perhaps not all of it was read
        minutes = {key: rows for key, rows in minutes.items() if key[2] < newest}
    PrefillMinute.objects.bulk_create(
        [_added_up(*key, rows) for key, rows in minutes.items()], ignore_conflicts=True
    )
    pks = [row.pk for rows in minutes.values() for row in rows]
    PrefillSecond.objects.filter(pk__in=pks).delete()
    return len(pks)


def _added_up(run: int, dc: int, minute: int, rows: Iterable[PrefillSecond]) -> PrefillMinute:
    rows = list(rows)
    return PrefillMinute(
        run_id=run,
        dc_id=dc,
        minute=minute,
        window_s=sum(row.window_s for row in rows),
        **{name: sum(getattr(row, name) for row in rows) for name in ("accepted", "delivered", "missed")},
        refused=merged(row.refused for row in rows),
        failed=merged(row.failed for row in rows),
        waiting=max(row.waiting for row in rows),
        prefill_ms=sum(row.prefill_ms for row in rows),
        waited_ms=sum(row.waited_ms for row in rows),
        guard_ms=max((row.guard_ms for row in rows if row.guard_ms is not None), default=None),
        gpus=max(row.gpus for row in rows),
        slowdown=max((row.slowdown for row in rows if row.slowdown is not None), default=None),
        paused_s=sum(row.window_s for row in rows if row.paused),
    )


def merged(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sum of {reason: requests}."""
    return dict(sum(map(Counter, counts), Counter()))


def _dc_of(run: Run, node: str, name: str | int) -> int:
    """The id of the data centre that `node`, which has ranks of `run` there, calls `name` (or its index)."""
    if isinstance(name, int):
        dcs = shape_of_run(run.pk).dcs
        if name >= len(dcs):
            raise ValueError(f"the run has no data centre {name}")
        name = dcs[name]
    own = RankState.objects.filter(run=run, node__name=node, dc__name=datacenter_name(name))
    dc = own.values_list("dc", flat=True).first()
    if dc is None:
        raise ValueError("the node has no rank of the run in that data centre")
    return dc


def _host(node: str, host: str) -> str:
    own = Node.objects.values_list("host", flat=True).get(name=node)
    if host not in (own, *ANY_HOST):
        raise ValueError("a node speaks for its own host")
    return own


def _minute(t: float) -> int:
    return int(t // MINUTE_S)
