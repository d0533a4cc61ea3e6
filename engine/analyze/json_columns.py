"""Reads long JSON in columns: the elements of one array in a document, or a document a line; gzip too.

A part of the file is in memory at a time, and no element becomes a Python object. Traces have millions of
elements, which is why `engine.documents` does not read them.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.analyze.kernels import split as kernel
from engine.documents import read_json
from engine.errors import InputError

MOST_BYTES = 16 << 30  # of a file, unpacked
MOST_ELEMENTS = 50_000_000
MOST_REST = 16 << 20  # bytes of a document before its array, and behind it
PART = 16 << 20  # bytes in memory at a time, and the most of one element
BLOCK = 2 << 20

_GZIP = b"\x1f\x8b"


@dataclass(slots=True)
class Rest:
    """The fields of a document beside its array, once all of it was read."""

    fields: dict[str, Any] = field(default_factory=dict)


def open_text(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked if it is gzip. Raises InputError where it cannot be read."""
    try:
        file = path.open("rb")
        packed = file.read(2) == _GZIP
        file.seek(0)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError("TRACE", str(path), f"cannot be read ({why})") from None
    return io.BufferedReader(gzip.GzipFile(fileobj=file), PART) if packed else file


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file, unpacked. Raises InputError as `open_text`, and where gzip is damaged."""
    with open_text(path) as file:
        return _read(file, count, path)


def _read(file: IO[bytes], count: int, path: Path) -> bytes:
    try:
        return file.read(count)
    except (OSError, EOFError, zlib.error) as error:
        why = str(error).rstrip(".").lower()
        raise InputError("TRACE", str(path), f"gzip that cannot be unpacked ({why})") from None


def read_lines(path: Path, schema: Any) -> Iterator[Any]:
    """Tables of a file with one JSON object a line; columns are those of the pyarrow `schema`."""
    counted = _Counter(path)
    with open_text(path) as file:
        carried = b""
        while part := _read(file, PART, path):
            counted.bytes(len(part))
            part = carried + part
            end = part.rfind(b"\n") + 1
            carried = part[end:]
            if end:
                yield counted.table(_table(part[:end], schema, path))
            elif len(carried) > 2 * PART:
                raise InputError("TRACE", str(path), f"a line of more than {PART:,} bytes")
        if carried.strip():
            yield counted.table(_table(carried, schema, path))


def read_array(path: Path, names: tuple[str, ...], schema: Any, rest: Rest) -> Iterator[Any]:
    """Tables of the elements of an array: the file's own, or that in the field of one of these names.

    rest : takes the other fields of the document when the last table was read.
    """
    counted = _Counter(path)
    with open_text(path) as file:
        head, body = _head(file, names, path)
        state = np.zeros(kernel.STATE, dtype=np.int64)
        carried, seen = b"", 0
        while body:
            counted.bytes(len(body))
            data = np.frombuffer(bytearray(carried + body), dtype=np.uint8)
            whole, at = kernel.split(data, seen, state)
            if whole:
                yield counted.table(_table(data[:whole].tobytes(), schema, path))
            if state[kernel.ENDED]:
                tail = data[at + 1 :].tobytes()
                _fill(rest, head, tail + _read(file, MOST_REST, path), path)
                return
            carried = data[whole:].tobytes()
            seen = len(carried)
            if len(carried) > 2 * PART:
                raise InputError("TRACE", str(path), f"an element of more than {PART:,} bytes")
            body = _read(file, PART, path)
        # Chrome's format lets an array of events end without its bracket.
        if head or state[kernel.DEPTH] or state[kernel.IN_STRING]:
            raise InputError("TRACE", str(path), "ends in the middle: it is not whole")
        if carried.strip():
            yield counted.table(_table(carried, schema, path))


def _head(file: IO[bytes], names: tuple[str, ...], path: Path) -> tuple[bytes, bytes]:
    """What stands before the array (nothing, if the file is one), and the first part of its elements."""
    part = _read(file, MOST_REST, path)
    if part.lstrip().startswith(b"["):
        return b"", part.lstrip()[1:]
    match = re.search(rb'"(?:%s)"\s*:\s*\[' % "|".join(names).encode(), part)
    if match is None:
        allowed = f"no field {' or '.join(names)} with a list in the first {MOST_REST:,} bytes"
        raise InputError("TRACE", str(path), allowed)
    return part[: match.end()], part[match.end() :]


def _fill(rest: Rest, head: bytes, tail: bytes, path: Path) -> None:
    if not head:
        return
    try:
        value = read_json(head + b"]" + tail)
    except ValueError as error:
        raise InputError("TRACE", str(path), f"not JSON beside its list ({str(error)[:100]})") from None
    rest.fields = value if isinstance(value, dict) else {}


def _table(data: bytes, schema: Any, path: Path) -> Any:
    """The objects of `data`, one a line. Fields that the schema does not name are left out."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    if not data.strip():
        return schema.empty_table()
    parsing = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = arrow_json.ReadOptions(block_size=BLOCK)  # one core each
    try:
        return arrow_json.read_json(pa.BufferReader(data), reading, parsing)
    except MemoryError:  # Arrow's is an ArrowException, too
        raise
    except (pa.ArrowException, ValueError):
        return _one_by_one(data, schema, path)


def _one_by_one(data: bytes, schema: Any, path: Path) -> Any:
    """The same where an element has a field of another type: such a field is not there."""
    import pyarrow as pa

    rows = []
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            rows.append(_typed(json.loads(line), schema))
        except (ValueError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            text = line.strip()[:60].decode(errors="replace")
            raise InputError("TRACE", str(path), f"not JSON ({why}): {text!r}") from None
    return pa.Table.from_pylist(rows, schema=schema)


def _typed(value: Any, schema: Any) -> dict[str, Any]:
    import pyarrow as pa

    if not isinstance(value, dict):
        return {}
    values: dict[str, Any] = {}
    for column in schema:
        given = value.get(column.name)
        if pa.types.is_struct(column.type):
            values[column.name] = _typed(given, column.type) if isinstance(given, dict) else None
        elif pa.types.is_string(column.type):
            values[column.name] = given if isinstance(given, str) else None
        else:
            is_number = isinstance(given, int | float) and not isinstance(given, bool)
            values[column.name] = float(given or 0) if is_number else None
    return values


class _Counter:
    """Refuses a file beyond its bounds as soon as they are passed."""

    def __init__(self, path: Path) -> None:
        self._path, self._bytes, self._elements = path, 0, 0

    def bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes > MOST_BYTES:
            raise InputError("TRACE", str(self._path), f"too large: at most {MOST_BYTES:,} bytes, unpacked")

    def table(self, table: Any) -> Any:
        self._elements += table.num_rows
        if self._elements > MOST_ELEMENTS:
            raise InputError("TRACE", str(self._path), f"too many events: at most {MOST_ELEMENTS:,}")
        return table
