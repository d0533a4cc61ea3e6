"""What our tables share: numeric columns with units, states with shape and word, times."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import django_tables2 as tables
from django.utils.html import format_html

from webapp.markup import DASH, when

__all__ = ["DASH", "NumberColumn", "StateColumn", "Table", "TimeColumn", "state"]


class NumberColumn(tables.Column):
    """A right-aligned number: fixed decimals, thousands parted, the unit on the head's second line."""

    def __init__(self, *args: Any, unit: str = "", decimals: int = 0, **kwargs: Any) -> None:
        number = {"class": "num"}
        kwargs.setdefault("attrs", {"th": number, "td": number})
        kwargs.setdefault("default", DASH)
        super().__init__(*args, **kwargs)
        self.unit = unit
        self.decimals = decimals

    def render(self, value: Any) -> str:
        return f"{value:,.{self.decimals}f}"


class StateColumn(tables.Column):
    """A status: its word, with the code in an attribute that the style sheet gives a shape."""

    def render(self, value: Any) -> str:
        return (
            state(*value)
            if isinstance(value, tuple)
            else state(str(value), getattr(value, "label", str(value)))
        )


class TimeColumn(tables.Column):
    """A time: UTC from the server, the reader's zone once the page's script ran; the head names the zone.

    `style` is one of webapp.markup.STYLES, or "ago".
    """

    zoned = True

    def __init__(self, *args: Any, style: str = "second", **kwargs: Any) -> None:
        kwargs.setdefault("default", DASH)
        super().__init__(*args, **kwargs)
        self.style = style
        self.zoned = style != "ago"

    def render(self, value: datetime) -> str:
        return str(when(value, f"{self.style} cell"))


def state(code: str, label: str) -> str:
    """The HTML of a status."""
    return format_html('<span class="state" data-state="{}">{}</span>', code, label)


class Table(tables.Table):
    """Base of all tables: 50 rows a page, absent values a dash.

    narrow : names of the columns that a telephone's window keeps; the page of a row has the others.
             By default the first column, every state, and the first column of numbers.
    """

    narrow: tuple[str, ...] = ()

    class Meta:
        default = DASH
        per_page = 50
        order_by_field = "sort"

    def get_column_class_names(self, classes_set: set[str], bound_column: Any) -> set[str]:
        """Mark the columns that a narrow window leaves out."""
        if bound_column.name not in self.kept:
            classes_set.add("wide-only")
        return classes_set

    def lines(self) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
        """Of each row on the page: its attributes, and attributes and content of its cells.

        A column's attributes are made once, not per cell as `column.attrs` in a template would, unless the
        column computes them from the row.
        """
        same: dict[str, str] = {}
        for row in self.paginated_rows:
            cells = []
            for column, content in row.items():
                attributes = same.get(column.name)
                if attributes is None:
                    attributes = column.attrs["td"].as_html()
                    if not any(callable(value) for value in column.column.attrs.get("td", {}).values()):
                        same[column.name] = attributes
                cells.append((attributes, content))
            yield row.attrs.as_html(), cells

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the columns that stay in a narrow window."""
        if not self.narrow:
            self.narrow = _worth_keeping([(c.name, c.column) for c in self.columns.iterall()])
        return self.narrow


def _worth_keeping(columns: list[tuple[str, Any]]) -> tuple[str, ...]:
    first = [name for name, _ in columns[:1]]
    states = [name for name, column in columns if isinstance(column, StateColumn)]
    numbers = [name for name, column in columns if isinstance(column, NumberColumn)][:1]
    return tuple(first + states + numbers)
