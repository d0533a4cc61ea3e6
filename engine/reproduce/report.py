"""The report of `meridian reproduce --out`: a Markdown page with a table per experiment, and plots as SVG."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import InputError
from engine.reproduce import ORDERS, Experiment, Order, Outcome, Plot, Row

WIDTH_IN, HEIGHT_IN = 6.4, 3.6


def write(out: Path, outcomes: Mapping[str, tuple[Experiment, Outcome]]) -> Path:
    """Writes ``report.md`` and the plots into `out`, which is created if missing; returns the page's path.

    Raises
    ------
    InputError
        `out` cannot be written, or matplotlib, the optional extra `report`, is not installed.
    """
    require_matplotlib()
    try:
        out.mkdir(parents=True, exist_ok=True)
        lines = ["# Published figures and ours", ""]
        for experiment, outcome in outcomes.values():
            lines += _section(out, experiment, outcome)
        page = out / "report.md"
        page.write_text("\n".join(lines), encoding="utf-8")
    except OSError as error:
        raise InputError("--out", str(out), f"cannot be written ({error.strerror})") from None
    return page


def require_matplotlib() -> None:
    """Raises InputError if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        allowed = "plots need matplotlib: pip install 'meridian[report]'"
        raise InputError("--out", "matplotlib", allowed) from None


def _section(out: Path, experiment: Experiment, outcome: Outcome) -> list[str]:
    orders = shown_orders(outcome.rows)
    head = ["figure", "paper", "ours", *orders, "unit", "allowed", "status", "assumes", "note"]
    rule = ["---", "---:", "---:", *["---:"] * len(orders), "---", "---:", "---", "---", "---"]
    lines = [f"## {experiment.title}", "", _line(head), _line(rule)]
    lines += [_table_line(row, orders) for row in outcome.rows]
    lines.append("")
    for plot in outcome.plots:
        draw(plot, out / f"{plot.name}.svg")
        lines += [f"![{plot.title}]({plot.name}.svg)", ""]
    return lines


def _table_line(row: Row, orders: Sequence[Order]) -> str:
    return _line([cell or "–" for cell in figures(row, orders)] + [row.assumes, row.remark])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def shown_orders(rows: Iterable[Row]) -> tuple[Order, ...]:
    """The columns of a table for rules of contention and auto; none if no row shares links."""
    return ORDERS if any(row.by_order for row in rows) else ()


def figures(row: Row, orders: Sequence[Order] = ()) -> tuple[str | None, ...]:
    """Cells of a table: name, printed figure, ours, ours in each of `orders`, unit, tolerance, status; None
    where there is none."""
    by_order = row.by_order or {}
    sign = {"equal": "", "at most": "≤ ", "at least": "≥ "}[row.relation]
    return (
        row.name,
        f"{sign}{row.paper:g}",
        f"{row.ours:.4g}" if math.isfinite(row.ours) else None,
        *(f"{by_order[order]:.4g}" if order in by_order else None for order in orders),
        row.unit,
        None if row.tolerance is None else f"{100 * row.tolerance:g} %",
        row.status if row.ok is not False else f"{row.status}: FAILS",
    )


def draw(plot: Plot, path: Path) -> None:
    """One plot as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.add_subplot()
    if plot.kind == "bars":
        _bars(axes, plot)
    else:
        for series in plot.series:
            axes.plot(series.x, series.y, marker="o", linewidth=1.4, label=series.label)
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    if len(plot.series) > 1:
        axes.legend(frameon=False)
    # Neither the date nor random ids: the same figures give the same file.
    with rc_context({"svg.hashsalt": plot.name}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _bars(axes: Any, plot: Plot) -> None:
    step = min((b - a for a, b in zip(plot.series[0].x, plot.series[0].x[1:], strict=False)), default=1.0)
    width = 0.8 * step / len(plot.series)
    for i, series in enumerate(plot.series):
        offset = (i - (len(plot.series) - 1) / 2) * width
        axes.bar([x + offset for x in series.x], series.y, width=width, label=series.label)
    axes.set_xticks(plot.series[0].x)
