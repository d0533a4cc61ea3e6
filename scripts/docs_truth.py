"""The plot of docs/truth.md, drawn from the page's own tables: a row for each row, a mark per deviation."""

import re
from dataclasses import dataclass
from html import escape

COLUMNS = ("what", "measured by", "predicted", "measured", "deviation, %", "shown by")
OURS, OTHERS = "#d9761a", "#4f86e8"
WIDTH, LEFT, ROW, TOP, BOTTOM, LONGEST = 980, 470, 17, 58, 34, 78
MOST = 60  # per cent, at both ends of the axis
_NUMBER = re.compile(r"[+−±]\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table, its cells as text."""

    what: str
    measured_by: str
    predicted: str
    measured: str
    deviation: str
    command: str

    @property
    def numbers(self) -> list[float]:
        """The deviations in per cent; ± as both."""
        values: list[float] = []
        for text in _NUMBER.findall(self.deviation):
            size = float(text[1:])
            values += {"+": [size], "−": [-size], "±": [-size, size]}[text[0]]
        return values

    @property
    def is_range(self) -> bool:
        """Whether the numbers are the ends of a range."""
        return " to " in self.deviation or "±" in self.deviation

    @property
    def is_ours(self) -> bool:
        """Whether we measured it."""
        return self.measured_by.startswith("us,")


def rows(page: str) -> list[Row]:
    """The rows of the page's tables."""
    table = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
        if not line.startswith("|") or tuple(cells) == COLUMNS or set(line) <= set("|- "):
            continue
        what, measured_by, predicted, measured, deviation, command = cells
        table.append(
            Row(
                what=what,
                measured_by=measured_by,
                predicted=predicted,
                measured=measured,
                deviation=deviation,
                command=command,
            )
        )
    return table


def figure(page: str) -> str:
    """The plot of the page's tables as SVG."""
    listed = rows(page)
    height = TOP + ROW * len(listed) + BOTTOM
    title = "Predicted ÷ measured − 1, per cent"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="sans-serif" font-size="11"><title>{title}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="18" font-size="13" fill="#222222">{title}</text>',
        f'<text x="8" y="38" fill="{OTHERS}">● measured by others</text>',
        f'<text x="150" y="38" fill="{OURS}">● measured by us</text>',
        '<text x="270" y="38" fill="#444444">grey: within 10 %</text>',
        *_axis(height),
    ]
    for number, row in enumerate(listed):
        parts += _row(row, TOP + ROW * number + ROW / 2, _label(row))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(per_cent: float) -> float:
    return LEFT + (WIDTH - LEFT - 20) * (per_cent + MOST) / (2 * MOST)


def _axis(height: int) -> list[str]:
    bottom = height - BOTTOM + 4
    parts = [
        f'<rect x="{_x(-10):.1f}" y="{TOP}" width="{_x(10) - _x(-10):.1f}" height="{bottom - TOP}"'
        ' fill="#f0f0f0"/>'
    ]
    for tick in range(-MOST, MOST + 1, 20):
        shade = "#888888" if tick == 0 else "#dddddd"
        parts.append(f'<path d="M{_x(tick):.1f} {TOP}V{bottom}" stroke="{shade}"/>')
        text = f"+{tick}" if tick > 0 else str(tick).replace("-", "−")
        parts.append(
            f'<text x="{_x(tick):.1f}" y="{bottom + 16}" fill="#444444" text-anchor="middle">{text}</text>'
        )
    return parts


def _label(row: Row) -> str:
    """What the row is of, without markup, cut where it is too long."""
    text = row.what.replace("**", "").replace("`", "")
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"


def _row(row: Row, y: float, label: str) -> list[str]:
    colour = OURS if row.is_ours else OTHERS
    parts = [f'<text x="8" y="{y + 4:.1f}" fill="#333333">{escape(label)}</text>']
    numbers = row.numbers
    if row.is_range:
        parts.append(
            f'<path d="M{_x(min(numbers)):.1f} {y:.1f}H{_x(max(numbers)):.1f}" stroke="{colour}"'
            ' stroke-width="3"/>'
        )
    parts += [f'<circle cx="{_x(n):.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for n in numbers]
    return parts
