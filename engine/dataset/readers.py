"""Documents of files, one after another; what cannot be read comes with its place."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from engine.dataset.chat import ChatError, ChatTemplate, Spans
from engine.dataset.document import DatasetDocument, Source
from engine.dataset.files import Part, line_before, opened
from engine.errors import reason_of

PIECE_CHARACTERS = 1_000_000  # a text file is read in pieces that end with a line
SKIM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text; `ends` is false where the document goes on in the next one."""

    text: str
    ends: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A rendered chat, and the spans of its characters that the assistant wrote."""

    text: str
    spans: Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """What cannot be read: `where` names file and line or row."""

    where: str
    why: str


Record = Text | Chat | Bad


def records(
    part: Part, source: Source, document: DatasetDocument, template: ChatTemplate | None
) -> Iterator[Record]:
    """The documents of a part of a file, in order; those without text are left out.

    template : where the source has messages.
    """
    try:
        if source.format == "text":
            yield from _text(part)
            return
        rows = (
            _lines(part, source, document.longest_bytes) if source.format == "jsonl" else _rows(part, source)
        )
        for row in rows:
            record = row if isinstance(row, Bad) else _record(*row, source, template)
            if isinstance(record, Bad) or record.text:
                yield record
    except UnicodeDecodeError as error:
        yield Bad(where=part.path, why=f"is not UTF-8 text ({error.reason} at byte {error.start})")
    except (OSError, ValueError, EOFError) as error:  # pyarrow's errors are both; gzip ends early
        yield Bad(where=part.path, why=f"cannot be read ({reason_of(error)})")


def _text(part: Part) -> Iterator[Text]:
    with opened(part.path) as file:
        before = ""
        for piece in _pieces(file):
            if before:
                yield Text(text=before, ends=False)
            before = piece
        if before:
            yield Text(text=before)


def _pieces(file: IO[bytes]) -> Iterator[str]:
    """The text in pieces that end with a line, or in a line too long for a piece with a character."""
    rest = b""
    while data := file.read(PIECE_CHARACTERS):
        data = rest + data
        cut = data.rfind(b"\n") + 1 or _whole(data)
        yield data[:cut].decode()
        rest = data[cut:]
    if rest:
        yield rest.decode()


def _whole(data: bytes) -> int:
    """How many bytes of UTF-8 make whole characters: the last one may lack up to three."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # begins a character of 2 to 4 bytes
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if back < needed else len(data)
        if byte < 0x80:
            break
    return len(data)


Row = tuple[Any, Callable[[], str]]  # the value of the field, and its place


def _lines(part: Part, source: Source, longest: int) -> Iterator[Row | Bad]:
    before: int | None = None  # lines before the part: counted only where one is to be named
    number = 0

    def where() -> str:
        nonlocal before
        if before is None:
            before = line_before(part.path, begin)
        return f"{part.path}:{before + number}"

    with opened(part.path) as file:
        if part.start:
            file.seek(part.start - 1)
            _skip_line(file)
        begin = position = file.tell() if part.start else 0
        while part.end is None or position < part.end:
            line = file.readline(longest + 1)
            if not line:
                return
            number += 1
            position += len(line)
            if len(line) > longest and not line.endswith(b"\n"):
                position += _skip_line(file)
                yield Bad(where=where(), why=f"is longer than longest_bytes = {longest:,}")
            elif line.strip():
                yield _parsed(line, source.column, where)


def _skip_line(file: IO[bytes]) -> int:
    """Read to the end of a line; returns how many bytes that were."""
    skipped = 0
    while data := file.readline(SKIM_BYTES):
        skipped += len(data)
        if data.endswith(b"\n"):
            break
    return skipped


def _parsed(line: bytes, column: str, where: Callable[[], str]) -> Row | Bad:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        return Bad(where=where(), why=f"is not UTF-8 text ({error.reason} at byte {error.start})")
    except (ValueError, RecursionError) as error:
        return Bad(where=where(), why=f"is not JSON ({error})")
    if not isinstance(value, dict):
        return Bad(where=where(), why=f"must be an object with field {column!r}")
    if column not in value:
        names = ", ".join(sorted(value)[:8])
        return Bad(where=where(), why=f"has no field {column!r}; it has {names or 'none'}")
    return value[column], where


def _rows(part: Part, source: Source) -> Iterator[Row | Bad]:
    number = 0
    with opened(part.path) as file:
        for batch in _batches(file, source):
            if source.column not in batch.schema.names:
                names = ", ".join(batch.schema.names[:8])
                yield Bad(where=part.path, why=f"has no column {source.column!r}; it has {names}")
                return
            for value in batch.column(source.column).to_pylist():
                number += 1
                yield value, partial("{}: row {}".format, part.path, number)


def _batches(file: IO[bytes], source: Source) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if source.format == "datasets":  # Dataset.save_to_disk writes Arrow's stream format
        yield from pa.ipc.open_stream(file)
        return
    parquet = pq.ParquetFile(file)
    columns = [source.column] if source.column in parquet.schema_arrow.names else None
    yield from parquet.iter_batches(batch_size=256, columns=columns)


def _record(value: Any, where: Callable[[], str], source: Source, template: ChatTemplate | None) -> Record:
    if template is not None:
        try:
            text, spans = template.rendered(value)
        except ChatError as error:
            return Bad(where=where(), why=f"field {source.column!r}: {error}")
        record: Text | Chat = Chat(text=text, spans=spans)
    elif isinstance(value, str):
        record = Text(text=value)
    else:
        return Bad(where=where(), why=f"field {source.column!r} must be text, not {type(value).__name__}")
    if not record.text.isascii() and _has_surrogate(record.text):
        return Bad(where=where(), why=f"field {source.column!r} has half of a surrogate pair")
    return record


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
