"""Spans as CSV: one row per op and transfer, for spreadsheets and data frames."""

import csv
from collections.abc import Iterable
from typing import TextIO

from engine.simulate.spans import Span

COLUMNS = (
    "track",
    "pipeline",
    "stage",
    "op",
    "from_stage",
    "to_stage",
    "payload",
    "microbatch",
    "chunk",
    "start",
    "end",
    "arrives",
)


def write_csv(spans: Iterable[Span], file: TextIO) -> None:
    """Write `spans` with a head line; fields that do not apply are empty. Times as in the spans."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(COLUMNS)
    for span in spans:
        values = span.as_dict()
        rows.writerow([values.get(name, "") for name in COLUMNS])
