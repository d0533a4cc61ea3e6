"""What our tables share: numeric columns with units, states with shape and word, times."""

from collections.abc import Iterator
from datetime import datetime
from html import escape
from typing import Any

import django_tables2 as tables
from django.utils.formats import localize
from django.utils.html import conditional_escape
from django.utils.safestring import SafeString
from django_tables2.rows import BoundRow
from django_tables2.utils import signature

from webapp.common.markup import DASH, when

__all__ = ["DASH", "ChosenColumn", "NumberColumn", "StateColumn", "Table", "TimeColumn", "state"]


class NumberColumn(tables.Column):
    """A right-aligned number: fixed decimals, thousands parted, the unit on the head's second line."""

    def __init__(self, *args: Any, unit: str = "", decimals: int = 0, **kwargs: Any) -> None:
        number = {"class": "num"}
        kwargs.setdefault("attrs", {"th": number, "td": number, "tf": number})
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

    `style` is one of webapp.common.markup.STYLES, or "ago".
    """

    zoned = True

    def __init__(self, *args: Any, style: str = "second", **kwargs: Any) -> None:
        kwargs.setdefault("default", DASH)
        super().__init__(*args, **kwargs)
        self.style = style
        self.zoned = style != "ago"

    def render(self, value: datetime) -> str:
        return str(when(value, f"{self.style} cell"))


class ChosenColumn(tables.Column):
    """A box to tick: what the buttons over a list do, they do to the rows that are ticked."""

    def __init__(self) -> None:
        every = '<input type="checkbox" data-choose-all aria-label="Choose every row of this page">'
        cell = {"class": "choose"}
        super().__init__(SafeString(every), accessor="pk", orderable=False, attrs={"th": cell, "td": cell})

    def render(self, value: Any, record: Any) -> str:
        name = escape(str(record))
        return SafeString(
            f'<input type="checkbox" name="pk" value="{value}" form="bulk" aria-label="Choose {name}">'
        )


def state(code: str, label: str) -> str:
    """The HTML of a status."""
    return SafeString(f'<span class="state" data-state="{escape(code)}">{escape(label)}</span>')


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

    def lines(self) -> Iterator[SafeString]:
        """Each row on the page as HTML.

        Written here and not by a template, which takes three times as long for a thousand cells. A column's
        attributes are made once, unless it computes them from the row.
        """
        same: dict[str, str] = {}
        for row in self.paginated_rows:
            cells = []
            for column, content in _CachedRow(row.record, self).items():
                attributes = same.get(column.name)
                if attributes is None:
                    attributes = column.attrs["td"].as_html()
                    if not any(callable(value) for value in column.column.attrs.get("td", {}).values()):
                        same[column.name] = attributes
                cells.append(f"<td {attributes}>{_written(content)}</td>")
            yield SafeString(f"<tr {row.attrs.as_html()}>{''.join(cells)}</tr>")

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the columns that stay in a narrow window."""
        if not self.narrow:
            self.narrow = _worth_keeping([(c.name, c.column) for c in self.columns.iterall()])
        return self.narrow


class _CachedRow(BoundRow):
    """A row that asks once a table, not once a cell, what the function that renders a column takes."""

    def _call_render(self, bound_column: Any, value: Any = None) -> Any:
        taken_by_render = self._table.__dict__.setdefault("_taken_by_render", {})
        if bound_column.name not in taken_by_render:
            taken_by_render[bound_column.name] = signature(bound_column.render)
        names, takes_all = taken_by_render[bound_column.name]
        arguments = self._optional_cell_arguments(bound_column, value)
        content = bound_column.render(
            **(arguments if takes_all else {name: arguments[name] for name in names})
        )
        return bound_column.link(content, **arguments) if bound_column.link else content


def _written(content: Any) -> str:
    """A cell's content as HTML, as a template writes it."""
    return str(conditional_escape(content if isinstance(content, str) else localize(content)))


def _worth_keeping(columns: list[tuple[str, Any]]) -> tuple[str, ...]:
    first = [name for name, _ in columns[:1]]
    states = [name for name, column in columns if isinstance(column, StateColumn)]
    numbers = [name for name, column in columns if isinstance(column, NumberColumn)][:1]
    return tuple(first + states + numbers)
