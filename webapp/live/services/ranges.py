"""Kept ranges: iterations whose spans outlive the clean-up, because somebody has copied a link to them."""

from typing import Any

from django.db import transaction
from django.db.models import Count, F, Func, IntegerField, Max, Min, Sum

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.common.markup import as_bytes
from webapp.jobs.models import Run
from webapp.live.models import KeptRange, SpanBatch

MOST_RANGES = 20  # of a run
MOST_BYTES = 64_000_000  # of all ranges of a run together, as the database stores them
STORED = Func(F("spans"), function="pg_column_size", output_field=IntegerField())


class NotKept(Exception):
    """The spans of a range are not kept; the message says why, and what to do."""


@transaction.atomic
def keep_range(actor: Any, run: Run, first: int, last: int) -> KeptRange:
    """Keep the spans of iterations `first` to `last` (from 0, both inside) of `run`.

    Spans that are gone already are left out. Where an earlier range holds all of the rest, that one is
    returned and nothing changes.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of its team.
    NotKept
        None of these spans is left, or the run keeps as many ranges or bytes as it may.
    """
    # The clean-up takes the same lock: what is counted here is not deleted meanwhile.
    run = Run.objects.select_for_update(of=("self",)).select_related("job__team").get(pk=run.pk)
    require(actor, run.team)
    spans = SpanBatch.objects.filter(run=run, iteration__range=(first, last))
    extent = spans.aggregate(first=Min("iteration"), last=Max("iteration"), bytes=Sum(STORED))
    if extent["first"] is None:
        raise NotKept("No span of these iterations is left.")
    ranges = KeptRange.objects.filter(run=run)
    existing = ranges.filter(first__lte=extent["first"], last__gte=extent["last"]).first()
    if existing is not None:
        return existing
    _refuse_beyond_bounds(ranges.aggregate(count=Count("pk"), bytes=Sum("bytes")), extent["bytes"])
    kept_range = KeptRange.objects.create(run=run, created_by=actor, **extent)
    record(actor, "keep", kept_range, team=run.team, after=extent)
    return kept_range


def _refuse_beyond_bounds(totals: dict[str, Any], more: int) -> None:
    count, size = totals["count"], totals["bytes"] or 0
    if count < MOST_RANGES and size + more <= MOST_BYTES:
        return
    raise NotKept(
        f"This range has {as_bytes(more)}. The run keeps {count} ranges with {as_bytes(size)} already, "
        f"of at most {MOST_RANGES} ranges and {as_bytes(MOST_BYTES)}. Delete a kept range first."
    )


@transaction.atomic
def delete_range(actor: Any, kept_range: KeptRange) -> None:
    """Keep `kept` no longer: its spans go with the next clean-up, where they are old.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the run's team.
    """
    team = kept_range.run.team
    require(actor, team)
    before = {"first": kept_range.first, "last": kept_range.last, "bytes": kept_range.bytes}
    record(actor, "delete", kept_range, team=team, before=before)
    kept_range.delete()
