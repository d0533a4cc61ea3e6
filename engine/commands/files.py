"""Files that commands write into the folder of --out."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engine.errors import InputError


def folder(out: Path) -> Path:
    """The folder `out`, created if missing. Raises InputError if it cannot be created."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(out, error) from None
    return out


def write_json(value: Any, path: Path) -> None:
    """Write `value` as JSON. Raises InputError if the file cannot be written."""
    write_text(json.dumps(value, allow_nan=False), path)


def write_rows(head: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> None:
    """Write a table as CSV; None is an empty field. Raises InputError if the file cannot be written."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(head)
            table.writerows(rows)
    except OSError as error:
        raise unwritable(path.parent, error) from None


def write_text(text: str, path: Path) -> None:
    """Write a file. Raises InputError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(path.parent, error) from None


def unwritable(out: Path, error: OSError) -> InputError:
    """The refusal of a folder."""
    return InputError("--out", str(out), f"cannot be written ({error.strerror})")
