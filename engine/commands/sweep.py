"""`meridian sweep FILE`: one parameter of a scenario over several values, under several policies."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from engine.commands.compiled import announce_compilation
from engine.commands.files import folder, write_json, write_rows
from engine.commands.layer_tables import with_tables
from engine.commands.printed import show
from engine.commands.tables import render
from engine.documents import load_document
from engine.inputs import parse
from engine.schedule.registry import name_of
from engine.simulate import SweepDocument, SweepRow, sweep


@click.command("sweep")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for result.json and rows.csv.")
def command(file: str, as_json: bool, out: Path | None) -> None:
    """Sweep one parameter of a scenario over values and policies.

    FILE (JSON or YAML, - for standard input): scenario (as for `meridian simulate`, without policy),
    parameter (a path such as wan.latency or times.forward[2]), values, policies.
    """
    given = with_tables(load_document(file), ("scenario", "times", "layer_profiles"))
    document = parse(SweepDocument, given)
    announce_compilation()
    rows = list(sweep(document))
    if out is not None:
        _write(rows, out)
    show(as_json, lambda: {"rows": [row.as_dict() for row in rows]}, lambda: lines(document, rows))


def _write(rows: Sequence[SweepRow], out: Path) -> None:
    """Writes the answer, as JSON and as a table. Raises InputError if the folder cannot be written."""
    given = [row.as_dict() for row in rows]
    write_json({"rows": given}, folder(out) / "result.json")
    columns = list(given[0])
    write_rows(columns, ([row[name] for name in columns] for row in given), out / "rows.csv")


def lines(document: SweepDocument, rows: Sequence[SweepRow]) -> Iterator[str]:
    """A line per value and policy, the best policy of each value marked."""
    best: dict[str, float] = {}
    for row in rows:
        if row.makespan is not None:
            best[str(row.value)] = min(best.get(str(row.value), row.makespan), row.makespan)
    head = [document.parameter, "policy", "makespan", "", "lower\nbound", "utilization", "note"]
    yield from render(head, [_cells(row, best.get(str(row.value))) for row in rows], left=(1, 3, 6))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cells(row: SweepRow, best: float | None) -> list[str | None]:
    if row.makespan is None or row.lower_bound is None or row.utilization is None:
        return [
            _shown(row.value),
            name_of(row.policy),
            None,
            "",
            None,
            None,
            (row.reason or "").splitlines()[0],
        ]
    mark = "best" if best is not None and row.makespan <= best * (1 + 1e-9) else ""
    return [
        _shown(row.value),
        name_of(row.policy),
        f"{row.makespan:.6g}",
        mark,
        f"{row.lower_bound:.6g}",
        f"{100 * row.utilization:.1f} %",
        "",
    ]
