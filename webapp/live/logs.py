"""Reading the log lines of a run: the tail, what came after, and what matches."""

from collections.abc import AsyncIterator
from typing import Any

from django.db.models import QuerySet

from webapp.jobs.models import Run
from webapp.live.models import LogLine

TAIL = 500
MOST = 2_000


def lines(run: Run, *, rank: int | None = None, q: str = "") -> QuerySet[LogLine]:
    """The lines of `run` (of one `rank`; those that hold `q`, whatever the case), oldest first."""
    rows = LogLine.objects.filter(run=run)
    if rank is not None:
        rows = rows.filter(rank=rank)
    if q:
        rows = rows.filter(text__icontains=q)
    return rows.order_by("seq", "rank")


def tail(rows: QuerySet[LogLine], after: int | None) -> tuple[list[LogLine], bool]:
    """The last TAIL lines, or those written after row `after`; and whether there are more than these.

    What came after is told by row and not by `seq`: the ids of two nodes know nothing of each other.
    """
    if after is None:
        last = list(rows.order_by("-seq", "-rank")[: TAIL + 1])
        return last[:TAIL][::-1], len(last) > TAIL
    new = list(rows.filter(pk__gt=after).order_by("pk")[: MOST + 1])
    return sorted(new[:MOST], key=lambda line: (line.seq, line.rank)), len(new) > MOST


def entry(line: LogLine) -> dict[str, Any]:
    """One line as JSON."""
    return {
        "id": line.pk,
        "seq": line.seq,
        "rank": line.rank,
        "t": round(line.at.timestamp(), 3),
        "text": line.text,
        "dropped": line.dropped,
    }


async def as_text(rows: QuerySet[LogLine]) -> AsyncIterator[str]:
    """Every line as text: time in UTC, rank, line."""
    async for line in rows.aiterator(chunk_size=2_000):
        yield f"{line.at:%Y-%m-%dT%H:%M:%S.%f}Z rank {line.rank} {line.text}\n"
