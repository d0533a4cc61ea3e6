"""Plain-text tables: columns are aligned, numbers to the right, and a missing value is a dash."""

from collections.abc import Sequence

DASH = "–"


def render(head: Sequence[str], rows: Sequence[Sequence[str | None]], left: Sequence[int] = ()) -> list[str]:
    """Lines of a table.

    Parameters
    ----------
    head : column titles; a title of two lines (``\\n``) gives a second line, for units.
    rows : cells as text; None shows as a dash.
    left : indexes of the columns that are aligned to the left.
    """
    titles = [title.split("\n") for title in head]
    depth = max(len(title) for title in titles)
    heads = [[title[line] if line < len(title) else "" for title in titles] for line in range(depth)]
    body = [[DASH if cell is None else cell for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [*heads, *body]) for i in range(len(head))]
    return [_line(cells, widths, left) for cells in [*heads, *body]]


def number(value: float | None, decimals: int = 2) -> str | None:
    """`value` with thousands separators; a small value does not read 0."""
    if value is None:
        return None
    if value != 0 and abs(value) < 10 ** (1 - decimals):
        return f"{value:.3g}"
    return f"{value:,.{decimals}f}"


def _line(cells: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> str:
    placed = [
        cell.ljust(width) if i in left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(placed).rstrip()
