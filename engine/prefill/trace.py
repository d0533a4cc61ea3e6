"""Request traces: arrival times and prompt lengths.

Azure's LLM inference traces (CSV: TIMESTAMP, ContextTokens, GeneratedTokens), BurstGPT's (CSV: Timestamp in
seconds, Model, Request tokens, Response tokens, Total tokens, Log Type) and Mooncake's (JSON lines: timestamp
in ms, input_length, output_length, hash_ids).
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.documents import read_json, read_text
from engine.errors import InputError, reason_of

# Excerpts that the product ships.
SHIPPED = {"azure-code": "azure_code_2023.csv", "mooncake-conversation": "mooncake_conversation.jsonl"}
# Columns of the time and of the prompt's tokens, of Azure's files and of BurstGPT's.
COLUMNS = (("TIMESTAMP", "ContextTokens"), ("Timestamp", "Request tokens"))
MOST_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Arrivals in ms from the first, ascending, and prompt tokens of as many requests."""

    arrival_ms: NDArray[np.float64]
    tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, requests: int | None, load: float) -> "Trace":
        """The first `requests` (None: all) with arrivals divided by `load`.

        A shorter trace is repeated; each repetition begins one mean gap after the last arrival.
        """
        wanted = len(self) if requests is None else requests
        repeats = -(-wanted // len(self))
        span = float(self.arrival_ms[-1])
        again = span + span / max(1, len(self) - 1)
        arrivals = np.concatenate([self.arrival_ms + i * again for i in range(repeats)])
        return Trace(arrival_ms=arrivals[:wanted] / load, tokens=np.tile(self.tokens, repeats)[:wanted])


def read_trace(source: str) -> Trace:
    """The trace in the file `source`, or the shipped one of that name.

    Raises
    ------
    InputError
        The file cannot be read, is of neither kind, has no request, or an invalid one.
    """
    lines = _lines(source)
    if not lines:
        raise InputError("trace", source, "is empty: at least one request is needed")
    require_trace(lines[0])
    read = _mooncake if lines[0].lstrip().startswith("{") else _table
    rows = list(read(lines))
    if not rows:
        raise InputError("trace", source, "has no request: at least one is needed")
    arrivals, tokens = np.array([row[0] for row in rows]), np.array([row[1] for row in rows], dtype=np.int64)
    order = np.argsort(arrivals, kind="stable")
    return Trace(arrival_ms=arrivals[order] - arrivals[order[0]], tokens=tokens[order])


def require_trace(first_line: str) -> None:
    """Raise InputError unless a file that begins with this line can be a trace of a known kind."""
    names = next(csv.reader([first_line]), [])
    if not first_line.lstrip().startswith("{") and _columns(names) is None:
        either = ", or ".join(f"{time} and {tokens}" for time, tokens in COLUMNS)
        head = f"JSON lines (timestamp, input_length), or CSV with the columns {either}"
        raise InputError("trace", first_line, head)


def _columns(names: Sequence[str]) -> tuple[str, str] | None:
    return next((columns for columns in COLUMNS if {*columns} <= {*names}), None)


def _lines(source: str) -> list[str]:
    if source in SHIPPED:
        text = files("engine").joinpath(f"data/prefill/{SHIPPED[source]}").read_text(encoding="utf-8")
    else:
        try:
            text = read_text(Path(source))
        except (OSError, ValueError) as error:
            reason = reason_of(error)
            allowed = f"cannot be read ({reason}); a file, or shipped: {', '.join(SHIPPED)}"
            raise InputError("trace", source, allowed) from None
    return [line for line in text.splitlines() if line.strip()]


def _table(lines: list[str]) -> Iterator[tuple[float, int]]:
    rows = csv.DictReader(lines)
    time, tokens = _columns(rows.fieldnames or ()) or COLUMNS[0]
    for i, row in enumerate(rows):
        at = f"trace[{i}]"
        yield _time_ms(row[time], f"{at}.{time}"), _tokens(row[tokens], f"{at}.{tokens}")


def _mooncake(lines: list[str]) -> Iterator[tuple[float, int]]:
    for i, line in enumerate(lines):
        at = f"trace[{i}]"
        try:
            row = read_json(line)
        except ValueError:
            raise InputError(at, line, "must be one JSON object per line") from None
        if not isinstance(row, dict):
            raise InputError(at, row, "must be one JSON object per line")
        time = row.get("timestamp")
        if isinstance(time, bool) or not isinstance(time, int | float) or not abs(time) < 1e15:
            raise InputError(f"{at}.timestamp", time, "must be a number of ms")
        yield float(time), _tokens(row.get("input_length"), f"{at}.input_length")


def _time_ms(value: Any, at: str) -> float:
    """Of a date and time, or of a number of seconds."""
    try:
        return datetime.fromisoformat(value.strip()).timestamp() * 1e3
    except (ValueError, AttributeError, OverflowError, OSError):
        pass
    try:
        seconds = float(value)
    except (ValueError, TypeError):
        seconds = np.nan
    if not abs(seconds) < 1e12:
        raise InputError(at, value, "must be a time as 2023-11-16 18:17:03.98, or seconds")
    return seconds * 1e3


def _tokens(value: Any, at: str) -> int:
    try:
        tokens = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else 0
    except ValueError:
        tokens = 0
    if not 1 <= tokens <= MOST_TOKENS:
        raise InputError(at, value, f"must be a whole number of tokens from 1 to {MOST_TOKENS}")
    return tokens
