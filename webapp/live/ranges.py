"""Reading the kept ranges of a run, and what is there in place of a range that is gone."""

from collections import defaultdict
from typing import Any

from django.db.models import Max, Min, QuerySet

from webapp.jobs.models import Run
from webapp.live.models import KeptRange, SpanBatch
from webapp.live.payload import unix


def kept_ranges(run: Run) -> QuerySet[KeptRange]:
    """The kept ranges of `run`, by iteration, with who made them."""
    return KeptRange.objects.filter(run=run).select_related("created_by")


def iterations_held() -> dict[int, list[tuple[int, int]]]:
    """{run id: [(first, last)]} of all kept ranges."""
    by_range = defaultdict(list)
    for run, first, last in KeptRange.objects.values_list("run_id", "first", "last"):
        by_range[run].append((first, last))
    return dict(by_range)


def entry(span_range: KeptRange) -> dict[str, Any]:
    """One range as JSON; iterations from 0."""
    return {
        "id": span_range.pk,
        "from": span_range.first,
        "to": span_range.last,
        "bytes": span_range.bytes,
        "by": span_range.created_by.username if span_range.created_by else None,
        "at": unix(span_range.created_at),
    }


def nearest(run: Run, first: int, last: int) -> dict[str, int] | None:
    """Iterations {from, to} with spans that are nearest to `first` to `last`, of which none has any.

    They are the kept range, else the one iteration. None: the run has no spans at all.
    """
    spans = SpanBatch.objects.filter(run=run)
    before = spans.filter(iteration__lt=first).aggregate(last=Max("iteration"))["last"]
    after = spans.filter(iteration__gt=last).aggregate(first=Min("iteration"))["first"]
    if before is None and after is None:
        return None
    earlier = after is None or (before is not None and first - before < after - last)
    iteration = before if earlier else after
    row = kept_ranges(run).filter(first__lte=iteration, last__gte=iteration).first()
    return {"from": row.first, "to": row.last} if row else {"from": iteration, "to": iteration}
