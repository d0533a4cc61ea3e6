"""`meridian reproduce`: published figures compared with ours; exit status 1 if a row is not as it says."""

from collections.abc import Iterator
from pathlib import Path

import click

from engine.commands.compiled import announce_compilation
from engine.commands.printed import show
from engine.commands.tables import render
from engine.errors import InputError
from engine.inputs import nearest
from engine.reproduce import PAPERS, STATUSES, Experiment, Outcome, Row, experiments
from engine.reproduce.report import figures, require_matplotlib, shown_orders, write


@click.command("reproduce")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "list_only", is_flag=True, help="List the experiments and run none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--out", type=click.Path(path_type=Path), help="Write a report with plots into this folder.")
def command(names: tuple[str, ...], list_only: bool, as_json: bool, out: Path | None) -> int:
    """Compute the figures that the papers print, and compare them.

    NAME is an experiment or a paper (see --list); by default all. Each printed figure is met,
    explained, refuted or untested; the exit status is 1 if a row is not as it says.
    """
    chosen = select(names)
    if list_only:
        _list(chosen, as_json)
        return 0
    if out is not None:
        require_matplotlib()
    announce_compilation()
    outcomes = {name: (experiment, experiment.run()) for name, experiment in chosen.items()}
    rows = [row for _, outcome in outcomes.values() for row in outcome.rows]
    listed = [row.as_dict(name) for name, (_, outcome) in outcomes.items() for row in outcome.rows]
    show(as_json, lambda: {"rows": listed, **_counts(rows)}, lambda: _lines(outcomes))
    if out is not None:
        click.echo(f"report: {write(out, outcomes)}", err=as_json)
    return int(any(row.ok is False for row in rows))


def select(names: tuple[str, ...]) -> dict[str, Experiment]:
    """The experiments of that name or paper, in their own order; all where `names` is empty.

    Raises InputError for an unknown name.
    """
    known = experiments()
    for name in names:
        if name not in known and name not in PAPERS:
            raise InputError("NAME", name, "unknown experiment, " + nearest(name, [*PAPERS, *known]))
    wanted = set(names)
    return {
        name: experiment
        for name, experiment in known.items()
        if not wanted
        or name in wanted
        or any(name.startswith(f"{paper}-") for paper in wanted & PAPERS.keys())
    }


def _list(chosen: dict[str, Experiment], as_json: bool) -> None:
    listed = [{"name": name, "title": experiment.title} for name, experiment in chosen.items()]
    rows = [tuple(row.values()) for row in listed]
    show(as_json, lambda: {"experiments": listed}, lambda: render(["name", "what"], rows, left=(0, 1)))


def _lines(outcomes: dict[str, tuple[Experiment, Outcome]]) -> Iterator[str]:
    for name, (experiment, outcome) in outcomes.items():
        yield f"{experiment.title}  ({name})"
        assumptions = list(dict.fromkeys(row.assumes for row in outcome.rows if row.assumes))
        marks = {text: f"[{i}]" for i, text in enumerate(assumptions, start=1)}
        orders = shown_orders(outcome.rows)
        head = ["", "paper", "ours", *orders, "unit", "allowed", "status", "assumes", "note"]
        cells = [(*figures(row, orders), marks.get(row.assumes, ""), row.remark) for row in outcome.rows]
        left = (3, 5, 6, 7)  # of the columns after the orders
        yield from render(head, cells, left=(0, *(len(orders) + column for column in left)))
        yield from (f"{mark} {text}" for text, mark in marks.items())
        yield ""
    rows = [row for _, outcome in outcomes.values() for row in outcome.rows]
    failing = sum(row.ok is False for row in rows)
    counts = [f"{number} {status}" for status, number in _counts(rows).items()]
    if failing:
        counts.append(f"{failing} not as stated")
    yield ", ".join(counts)


def _counts(rows: list[Row]) -> dict[str, int]:
    """How many printed figures have each status; a row that is not as it says counts nowhere."""
    return {status: sum(row.status == status and row.ok is not False for row in rows) for status in STATUSES}
