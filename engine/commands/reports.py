"""Files that `meridian simulate` writes into the folder of --out."""

from pathlib import Path

from engine.commands.files import unwritable, write_json, write_text
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
