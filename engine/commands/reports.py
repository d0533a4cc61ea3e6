"""Files that `meridian simulate` writes into the folders of --out, --torch and --megatron."""

from pathlib import Path

from engine.commands.files import folder, unwritable, write_json, write_text
from engine.errors import InputError
from engine.schedule.megatron import megatron_pipeline
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


def write_megatron(result: SimulationResult, out: Path) -> None:
    """Megatron-LM's options as arguments.txt, and its configuration's fields as config.json; nothing if
    infeasible.

    Raises InputError if Megatron runs another order, or a file cannot be written.
    """
    if result.timeline is None:
        return
    schedule = result.timeline.schedule
    try:
        settings = [megatron_pipeline(schedule, pipeline) for pipeline in range(schedule.pipelines)]
    except ValueError as error:
        raise InputError("--megatron", str(out), str(error)) from None
    first = settings[0]  # orders that are Megatron's are the same for every pipeline of a cell
    write_text(" ".join(first.arguments()) + "\n", folder(out) / "arguments.txt")
    write_json({**first.config(), "num_microbatches": first.microbatches}, folder(out) / "config.json")
