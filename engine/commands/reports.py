"""Files that `meridian simulate` writes into the folders of --out, --torch and --megatron."""

from collections.abc import Callable
from pathlib import Path

from engine.commands.files import folder, unwritable, write_json, write_text
from engine.errors import InputError
from engine.schedule.ir import Schedule
from engine.schedule.runtimes import megatron_files, torch_files
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
    _write(result, torch_files, "--torch", out)


def write_megatron(result: SimulationResult, out: Path) -> None:
    """Megatron-LM's options as arguments.txt, and its configuration's fields as config.json; nothing if
    infeasible.

    Raises InputError if Megatron runs another order, or a file cannot be written.
    """
    _write(result, megatron_files, "--megatron", out)


def _write(
    result: SimulationResult, files: Callable[[Schedule], dict[str, str]], option: str, out: Path
) -> None:
    if result.timeline is None:
        return
    try:
        texts = files(result.timeline.schedule)
    except ValueError as error:
        raise InputError(option, str(out), str(error)) from None
    for name, text in texts.items():
        write_text(text, folder(out) / name)
