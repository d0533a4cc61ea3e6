"""Files that commands leave in the folder of --out."""

import json
from pathlib import Path
from typing import Any

from engine.errors import InputError
from engine.simulate import SimulationResult
from engine.simulate.export import write_csv
from engine.simulate.trace import chrome_trace


def folder(out: Path) -> Path:
    """The folder `out`, made where it is missing. Raises InputError where it cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", str(out), f"cannot be written ({error.strerror})") from None
    return out


def write_json(value: Any, path: Path) -> None:
    """Write `value` as JSON. Raises InputError where the file cannot be written."""
    _write(json.dumps(value, allow_nan=False), path)


def write_result(result: SimulationResult, out: Path) -> None:
    """The answer as result.json; where feasible its spans.csv, trace.json and schedule.txt.

    Raises InputError where a file cannot be written.
    """
    write_json(result.as_dict(), out / "result.json")
    if result.timeline is None:
        return
    spans = result.spans()
    write_json(chrome_trace(spans, unit="slot"), out / "trace.json")
    _write(f"{result.timeline.schedule}\n", out / "schedule.txt")
    try:
        with (out / "spans.csv").open("w", encoding="utf-8", newline="") as file:
            write_csv(spans, file)
    except OSError as error:
        raise InputError("--out", str(out), f"cannot be written ({error.strerror})") from None


def _write(text: str, path: Path) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("--out", str(path.parent), f"cannot be written ({error.strerror})") from None
