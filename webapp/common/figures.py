"""Key figures and tables of an answer, on pages and as CSV."""

import csv
import io
import zipfile
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse

from webapp.common.markup import DASH

NUMBER = (int, float)
LEVELS = 5  # tokens of the heat ramp


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: the value at a dotted `key` × `scale`; decimals None: text."""

    label: str
    key: str
    unit: str = ""
    decimals: int | None = None
    scale: float = 1.0
    wide: bool = False  # left out of a narrow window

    @property
    def is_number(self) -> bool:
        return self.decimals is not None

    def value(self, row: dict[str, Any]) -> Any:
        """The value of a row; None where there is none."""
        part_value: Any = row
        for part in self.key.split("."):
            part_value = part_value.get(part) if isinstance(part_value, dict) else None
        is_number = isinstance(part_value, NUMBER) and not isinstance(part_value, bool)
        return part_value * self.scale if is_number and self.is_number and self.scale != 1 else part_value

    def text(self, row: dict[str, Any]) -> str:
        """The cell as people read it."""
        value = self.value(row)
        if value is None or value == "":
            return DASH
        return f"{value:,.{self.decimals}f}" if self.is_number and isinstance(value, NUMBER) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A key figure: what it is, its value with its unit, and what it is to be held against."""

    label: str
    value: str
    unit: str = ""
    beside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A table of an answer. `name` is a part of the address of its CSV, with the rows past `most` too."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    note: str = ""
    most: int | None = None
    file_only: bool = False  # drawn in another way on the page

    @property
    def is_cut(self) -> bool:
        """Whether the page leaves rows to the file."""
        return self.most is not None and len(self.rows) > self.most

    @property
    def lines(self) -> list[list[tuple[Column, str]]]:
        """Cells of each row that the page shows, with their columns."""
        return [[(column, column.text(row)) for column in self.columns] for row in self.rows[: self.most]]

    def as_csv(self) -> str:
        """Figures in full precision, units in the head."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f"{c.label} {c.unit}".strip() for c in self.columns])
        writer.writerows([[c.value(row) for c in self.columns] for row in self.rows])
        return file.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A figure of every two things, as a heat map; rows are (name, [(text, level or None, title)])."""

    show: str
    label: str
    unit: str
    names: list[str]
    rows: list[tuple[str, list[tuple[str, int | None, str]]]]
    most: float | None
    of: int
    by_device: bool


def zipped(files: dict[str, str]) -> bytes:
    """The texts of `files` by name in one archive: the same texts, the same bytes."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as into:
        for name, text in files.items():
            into.writestr(zipfile.ZipInfo(name), text)  # without the time of day
    return archive.getvalue()


def download(content: str | bytes, content_type: str, name: str) -> HttpResponse:
    """`content` as a file of that name."""
    return HttpResponse(content, content_type=content_type, headers=_attached(name))


def download_in_pieces(
    pieces: AsyncIterable[str | bytes], content_type: str, name: str
) -> StreamingHttpResponse:
    """As `download`, of what is too long to be in memory at once."""
    return StreamingHttpResponse(pieces, content_type=content_type, headers=_attached(name))


def _attached(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}
