"""The history of a link as a chart: what was measured and declared over time, and what is in use."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from django.utils.safestring import SafeString

from webapp.common.markup import STYLES
from webapp.inventory.models import LinkMeasurement, LinkSource, WanLink

MOST_POINTS = 200
WIDE, HIGH, LEFT, FOOT, HEAD = (
    520,
    150,
    44,
    20,
    8,
)  # of a chart, in its own units: axis at left, times at foot


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement: its place in the chart, when it was, and what it says."""

    x: float
    y: float
    source: str
    at: datetime
    text: str

    @property
    def circle(self) -> str:
        """Its mark as SVG, which says when and what. A template takes ten times as long for hundreds."""
        at, text = self.at.astimezone(UTC), escape(self.text)
        title = (
            f'<title data-at="{at.isoformat()}" data-when="second" data-rest=": {text}">'
            f"{at.strftime(STYLES['second'])} UTC: {text}</title>"
        )
        place = f'cx="{self.x}" cy="{self.y}" r="3"'
        return f'<circle class="point" data-source="{escape(self.source)}" {place}>{title}</circle>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure over time. Levels start at 0; `in_use` is the height of the value that plans reckon with."""

    label: str
    unit: str
    points: list[Point]
    line: str
    ticks: list[tuple[float, str]]
    in_use: float
    in_use_text: str
    first: datetime
    last: datetime
    wide: int = WIDE
    high: int = HIGH
    left: int = LEFT
    right: int = WIDE - 8
    foot: int = HIGH - FOOT

    @property
    def circles(self) -> SafeString:
        """The marks of all points."""
        return SafeString("".join(point.circle for point in self.points))


def link_charts(link: WanLink) -> list[Chart]:
    """Latency and bandwidth of `link` over its last MOST_POINTS measurements, as far as there are any."""
    rows = list(link.measurements.order_by("-at", "-pk")[:MOST_POINTS])[::-1]
    figures = (
        ("Latency, one way", "ms", "latency_ms"),
        ("Bandwidth per node pair", "Gbit/s", "bandwidth_gbps"),
    )
    charts = [_chart(label, unit, field, rows, getattr(link, field)) for label, unit, field in figures]
    return [chart for chart in charts if chart]


def _chart(label: str, unit: str, field: str, rows: Sequence[LinkMeasurement], in_use: float) -> Chart | None:
    with_values = [row for row in rows if getattr(row, field) is not None]
    if not with_values:
        return None
    most = max(in_use, *(getattr(row, field) for row in with_values))
    step, count = _axis(most)
    top = step * count
    first, last = with_values[0].at, with_values[-1].at
    span = (last - first).total_seconds()

    def x(at: datetime) -> float:
        share = (at - first).total_seconds() / span if span > 0 else 0.5
        return round(LEFT + share * (WIDE - 8 - LEFT), 1)

    def y(value: float) -> float:
        return round(HIGH - FOOT - value / top * (HIGH - FOOT - HEAD), 1)

    points = [_point(row, field, unit, x(row.at), y(getattr(row, field))) for row in with_values]
    return Chart(
        label=label,
        unit=unit,
        points=points,
        line=" ".join(f"{point.x},{point.y}" for point in points),
        ticks=[(y(i * step), f"{i * step:g}") for i in range(count + 1)],
        in_use=y(in_use),
        in_use_text=f"in use {in_use:.4g} {unit}",
        first=first,
        last=last,
    )


def _point(row: LinkMeasurement, field: str, unit: str, x: float, y: float) -> Point:
    source = LinkSource(row.source).label.lower()
    return Point(x=x, y=y, source=row.source, at=row.at, text=f"{getattr(row, field):g} {unit}, {source}")


def _axis(most: float) -> tuple[float, int]:
    """A round step that parts 0 to `most` into three to five, and how many of it reach `most`."""
    if most <= 0:
        return 1.0, 1
    size = 10.0 ** math.floor(math.log10(most))
    step = next(size * part for part in (0.25, 0.5, 1, 2, 2.5) if most / (size * part) <= 5)
    return step, math.ceil(most * (1 - 1e-9) / step)


def values_in_use(link: WanLink) -> list[dict[str, Any]]:
    """Latency and bandwidth as plans reckon with them, each with the row of the history that it is from."""
    return [
        {"label": "Latency, one way", "value": link.latency_ms, "unit": "ms", "from": link.latency_from},
        {
            "label": "Bandwidth",
            "value": link.bandwidth_gbps,
            "unit": "Gbit/s per node pair and direction",
            "from": link.bandwidth_from,
        },
    ]
