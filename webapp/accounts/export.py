"""Audit rows as CSV and as JSON lines, one at a time: however many there are, few are in memory."""

import csv
import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from django.db.models import QuerySet

from webapp.accounts.models import AuditEntry

FIELDS = (
    "id",
    "at",
    "actor",
    "team",
    "verb",
    "object_type",
    "object_id",
    "object_label",
    "before",
    "after",
    "request_id",
    "message",
)
AT_ONCE = 1000
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def values(entry: AuditEntry) -> dict[str, Any]:
    """The fields of a row as JSON values."""
    return {
        "id": entry.pk,
        "at": entry.at.isoformat(),
        "actor": entry.actor.username if entry.actor else None,
        "team": entry.team.name if entry.team else None,
        **{name: getattr(entry, name) for name in FIELDS[4:]},
    }


def as_json_line(entry: AuditEntry) -> str:
    return json.dumps(values(entry), ensure_ascii=False) + "\n"


def as_csv_line(entry: AuditEntry) -> str:
    """A row whose before and after are JSON; text that a spreadsheet takes for a formula gets a quote."""
    row = []
    for name, value in values(entry).items():
        if name in ("before", "after"):
            row.append("" if value is None else json.dumps(value, ensure_ascii=False))
        else:
            row.append("" if value is None else harmless(str(value)))
    return csv_line(row)


def csv_line(row: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(row)
    return out.getvalue()


def harmless(text: str) -> str:
    """Text that a spreadsheet takes for a formula gets a quote."""
    return f"'{text}" if text.startswith(FORMULA) else text


async def lines(rows: QuerySet[Any], write: Callable[[Any], str], head: str = "") -> AsyncIterator[bytes]:
    """`head`, then every row, read from the database AT_ONCE at a time."""
    yield head.encode()
    async for entry in rows.aiterator(chunk_size=AT_ONCE):
        yield write(entry).encode()
