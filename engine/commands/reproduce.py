"""`meridian reproduce`: published figures compared with ours; exit status 1 if one exceeds its tolerance."""

import json
from collections.abc import Iterator
from pathlib import Path

import click

from engine.commands.compiled import announce_compilation
from engine.commands.tables import render
from engine.errors import InputError
from engine.inputs import nearest
from engine.reproduce import PAPERS, Experiment, Outcome, Row, experiments


@click.command("reproduce")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "list_only", is_flag=True, help="List the experiments and run none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--out", type=click.Path(path_type=Path), help="Write a report with plots into this folder.")
def command(names: tuple[str, ...], list_only: bool, as_json: bool, out: Path | None) -> int:
    """Compute the figures that the papers print, and compare them.

    NAME is an experiment or a paper (see --list); by default all. Rows without tolerance are informative.
    """
    chosen = select(names)
    if list_only:
        _list(chosen, as_json)
        return 0
    if out is not None:
        from engine.reproduce.report import require_matplotlib

        require_matplotlib()
    announce_compilation()
    outcomes = {name: (experiment, experiment.run()) for name, experiment in chosen.items()}
    rows = [row for _, outcome in outcomes.values() for row in outcome.rows]
    if as_json:
        click.echo(json.dumps({"rows": [row.as_dict() for row in rows]}, allow_nan=False))
    else:
        click.echo("\n".join(_lines(outcomes)))
    if out is not None:
        from engine.reproduce.report import write

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
    if as_json:
        listed = [{"name": name, "title": experiment.title} for name, experiment in chosen.items()]
        click.echo(json.dumps({"experiments": listed}))
        return
    rows = [(name, experiment.title) for name, experiment in chosen.items()]
    click.echo("\n".join(render(["name", "what"], rows, left=(0, 1))))


def _lines(outcomes: dict[str, tuple[Experiment, Outcome]]) -> Iterator[str]:
    checked = past = 0
    for name, (experiment, outcome) in outcomes.items():
        yield f"{experiment.title}  ({name})"
        head = ["", "paper", "ours", "unit", "tolerance", "", "note"]
        yield from render(head, [_cells(row) for row in outcome.rows], left=(0, 3, 5, 6))
        yield ""
        checked += sum(row.ok is not None for row in outcome.rows)
        past += sum(row.ok is False for row in outcome.rows)
    yield f"{checked} checked, {past} past tolerance"


def _cells(row: Row) -> tuple[str | None, ...]:
    return (
        row.name,
        None if row.paper is None else f"{row.paper:g}",
        f"{row.ours:.4g}",
        row.unit,
        None if row.tolerance is None else f"{100 * row.tolerance:g} %",
        {None: "", True: "ok", False: "PAST"}[row.ok],
        row.note,
    )
