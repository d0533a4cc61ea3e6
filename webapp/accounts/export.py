"""Lists as CSV and as JSON lines, one row at a time: however many there are, few are in memory."""

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.utils import timezone

from webapp.common.figures import download_in_pieces
from webapp.common.lists import bound_table, matching

AT_ONCE = 1000
FORMULA = ("=", "+", "-", "@", "\t", "\r")
FORMATS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl; charset=utf-8"}
Values = Callable[[Any], dict[str, Any]]


def exported(
    request: HttpRequest,
    kind: str,
    *,
    name: str,
    rows: QuerySet[Any],
    filter_class: Any,
    table_class: Any,
    fields: Sequence[str],
    values: Values,
) -> StreamingHttpResponse:
    """A file of exactly the rows that the filter of a list shows, in its order, all pages of them.

    Parameters
    ----------
    kind : of FORMATS, else Http404 is raised.
    name : of the list, as a part of the file's.
    fields, values : names of the columns; of a row, {name: JSON value} in their order.
    """
    if kind not in FORMATS:
        raise Http404
    filter_set = filter_class(request.GET, queryset=rows, request=request)
    shown = bound_table(request, table_class, matching(filter_set)).data.data
    lines = _csv_lines(shown, fields, values) if kind == "csv" else _json_lines(shown, values)
    file_name = f"meridian-{name}-{timezone.now():%Y%m%d-%H%M%S}.{kind}"
    return download_in_pieces(lines, FORMATS[kind], file_name)


async def _csv_lines(rows: QuerySet[Any], fields: Sequence[str], values: Values) -> AsyncIterator[str]:
    yield csv_line(fields)
    async for row in rows.aiterator(chunk_size=AT_ONCE):
        yield csv_line(map(_cell, values(row).values()))


async def _json_lines(rows: QuerySet[Any], values: Values) -> AsyncIterator[str]:
    async for row in rows.aiterator(chunk_size=AT_ONCE):
        yield json.dumps(values(row), ensure_ascii=False) + "\n"


def csv_line(cells: Iterable[Any]) -> str:
    """A line of CSV; None is an empty cell."""
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A JSON value as a cell: an object as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else harmless(value)


def harmless(value: Any) -> Any:
    """Text that a spreadsheet takes for a formula gets a quote."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
