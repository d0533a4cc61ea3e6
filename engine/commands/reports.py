"""Files that `meridian simulate` writes into the folders of --out and --torch."""

from pathlib import Path

from engine.commands.files import folder, unwritable, write_json, write_text
from engine.errors import InputError
from engine.schedule.torch_actions import add_reductions, torch_actions, torch_csv
from engine.schedule.torch_exchange import add_exchange
from engine.simulate import SimulationResult
from engine.simulate.export import write_csv
from engine.simulate.trace import chrome_trace


def write_result(result: SimulationResult, out: Path) -> None:
    """The answer as result.json; if feasible, its spans.csv, trace.json and schedule.txt.

    Raises InputError if a file cannot be written.
    """
    write_json(result.as_dict(), out / "result.json")
    if result.timeline is None:
        return
    spans = result.spans()
    write_json(chrome_trace(spans, unit="slot"), out / "trace.json")
    write_text(f"{result.timeline.schedule}\n", out / "schedule.txt")
    try:
        with (out / "spans.csv").open("w", encoding="utf-8", newline="") as file:
            write_csv(spans, file)
    except OSError as error:
        raise unwritable(out, error) from None


def write_torch(result: SimulationResult, out: Path) -> None:
    """The orders of each pipeline for torch's runtime as pipeline0.csv, …; nothing if infeasible.

    Raises InputError if torch cannot run them, or a file cannot be written.
    """
    if result.timeline is None:
        return
    schedule = result.timeline.schedule
    try:
        tables = [
            torch_csv(add_exchange(add_reductions(torch_actions(schedule, pipeline)), schedule, pipeline))
            for pipeline in range(schedule.pipelines)
        ]
    except ValueError as error:
        raise InputError("--torch", str(out), str(error)) from None
    for pipeline, table in enumerate(tables):
        write_text(table, folder(out) / f"pipeline{pipeline}.csv")
