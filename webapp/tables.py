"""What our tables share: numeric columns with units, states with shape and word."""

from typing import Any

import django_tables2 as tables
from django.utils.html import format_html

DASH = "–"


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


def state(code: str, label: str) -> str:
    """The HTML of a status."""
    return format_html('<span class="state" data-state="{}">{}</span>', code, label)


class Table(tables.Table):
    """Base of all tables: 50 rows a page, absent values a dash."""

    class Meta:
        default = DASH
        per_page = 50
        order_by_field = "sort"
