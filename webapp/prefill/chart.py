"""The supply of the next day, and what is sold of it, as a drawing."""

from dataclasses import dataclass
from datetime import UTC

from webapp.prefill.supply import Forecast

LEFT, RIGHT, TOP, BOTTOM = 62.0, 880.0, 14.0, 180.0
TICKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Points of an SVG of WIDTH × HEIGHT: a stepped line of supply, bands of what is sold and asked."""

    supply: str
    sold_y: float
    after_y: float
    ticks: list[tuple[float, str]]
    hours: list[tuple[float, str]]
    ends: list[tuple[float, float, str]]  # where a run ends, and how high its words stand

    left: float = LEFT
    right: float = RIGHT
    top: float = TOP
    bottom: float = BOTTOM
    width: float = RIGHT + 8
    height: float = BOTTOM + 22

    @property
    def wide(self) -> float:
        return self.right - self.left

    @property
    def sold_height(self) -> float:
        return self.bottom - self.sold_y

    @property
    def asked_height(self) -> float:
        return self.sold_y - self.after_y


def supply_chart(forecast: Forecast) -> Chart | None:
    """The chart of a forecast; None where nothing runs that could supply anything."""
    if not forecast.running:
        return None
    step, top = _scale(max(forecast.running, forecast.after) * 1.05)
    begin, end = forecast.hours[0][0], forecast.hours[-1][0]

    def x(at: object) -> float:
        return round(LEFT + (at - begin) / (end - begin) * (RIGHT - LEFT), 1)  # type: ignore[operator]

    def y(rate: float) -> float:
        return round(BOTTOM - rate / top * (BOTTOM - TOP), 1)

    points: list[tuple[float, float]] = []
    ends: list[tuple[float, float, str]] = []
    drops = sorted(
        ((row.cell.until, row) for row in forecast.supply.held if row.cell.until and row.cell.until < end),
        key=lambda drop: drop[0],
    )
    rate = forecast.running
    points.append((LEFT, y(rate)))
    for at, row in drops:
        points.append((x(at), y(rate)))
        rate = max(0.0, rate - row.tokens_per_min)
        points.append((x(at), y(rate)))
        words = f"{row.cell.run.job.name} ends {at.astimezone(UTC):%H:%M}"
        if words not in [label for _, _, label in ends]:  # a run has a cell in each data centre
            ends.append((x(at), TOP + 12 * (len(ends) + 1), words))
    points.append((RIGHT, y(rate)))
    return Chart(
        supply=" ".join(f"{px},{py}" for px, py in points),
        sold_y=y(forecast.sold),
        after_y=y(forecast.after),
        ticks=[
            (y(i * step), f"{i * step / 1e3:,.4g}" if step < 4e3 else f"{i * step / 1e3:,.0f}")
            for i in range(TICKS + 1)
        ],
        hours=[(x(at), f"{at.astimezone(UTC):%H:%M}") for at, _ in forecast.hours[::6]],
        ends=ends[:3],
    )


def _scale(most: float) -> tuple[float, float]:
    """(step, top) of round numbers such that TICKS steps reach `most`."""
    rough = most / TICKS
    power = 10 ** (len(str(int(rough))) - 1)
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= rough)
    return step, step * TICKS
