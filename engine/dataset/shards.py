"""Writes one shard: the documents of an item as ids, batch by batch, in memory that does not grow with it."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import xxhash

from engine.dataset.document import DatasetDocument
from engine.dataset.files import Item
from engine.dataset.index import MOST_EXAMPLES, Shard, Skipped
from engine.dataset.readers import Bad, Chat, Record, Text, records
from engine.dataset.streams import LENGTH
from engine.dataset.tokenizer import Ids, TextTokenizer

BATCH_CHARACTERS = 1 << 18  # of documents that are encoded together


class RefusedRecord(Exception):
    """A record cannot be read, and the document says refuse: number of its source, place, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWork:
    """The work of one process at a time: an item of a document, and the folder of its shard."""

    document: DatasetDocument
    item: Item
    name: str
    folder: str


def write_shard(work: ShardWork, tokenizer: TextTokenizer) -> Shard:
    """Write the files of a shard and, once they are whole, NAME.json.

    Raises
    ------
    RefusedRecord, OSError
    """
    document, item = work.document, work.item
    source = document.sources[item.source]
    template = tokenizer.chat_template() if source.messages else None
    folder = Path(work.folder)
    examples: list[Skipped] = []
    with _Writer(folder, work.name, masked=template is not None) as writer:
        for part in item.parts:
            for batch in _batches(records(part, source, document, template)):
                for bad in _write(batch, tokenizer, writer):
                    if document.on_bad == "refuse":
                        raise RefusedRecord(item.source, bad.where, bad.why)
                    writer.skipped += 1
                    if len(examples) < MOST_EXAMPLES:
                        examples.append(Skipped(where=bad.where, why=bad.why[:500]))
    shard = Shard(
        name=work.name,
        source=item.source,
        tokens=writer.tokens,
        documents=writer.documents,
        counted=writer.counted,
        skipped=writer.skipped,
        examples=examples,
        bytes=item.size,
        xxh3_128=digest_of(folder, work.name),
    )
    partial = folder / f"{work.name}.json.partial"
    partial.write_text(shard.model_dump_json(), encoding="utf-8")
    os.replace(partial, folder / f"{work.name}.json")
    return shard


def digest_of(folder: Path, name: str) -> str:
    """xxh3_128 of the files of a shard."""
    digest = xxhash.xxh3_128()
    for suffix in ("tokens", "lengths", "counts"):
        path = folder / f"{name}.{suffix}"
        if path.exists():
            with path.open("rb") as file:
                while data := file.read(1 << 20):
                    digest.update(data)
    return digest.hexdigest()


def _batches(items: Iterable[Record]) -> Iterator[list[Record]]:
    """Records of one kind, in order, of at most so many characters together (or one that is longer)."""
    batch: list[Record] = []
    size = 0
    for record in items:
        length = 0 if isinstance(record, Bad) else len(record.text)
        if batch and (size + length > BATCH_CHARACTERS or type(record) is not type(batch[0])):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += length
    if batch:
        yield batch


def _write(batch: list[Record], tokenizer: TextTokenizer, writer: "_Writer") -> list[Bad]:
    """Encode and write a batch of one kind; what is bad comes back."""
    texts = [record for record in batch if isinstance(record, Text)]
    if texts:
        encoded = tokenizer.of_texts([record.text for record in texts])
        for record, ids in zip(texts, encoded, strict=True):
            writer.add(ids if record.ends else Ids(tokens=ids.tokens[:-1]), ends=record.ends)
    chats = [(record.text, record.spans) for record in batch if isinstance(record, Chat)]
    if chats:
        for ids in tokenizer.of_chats(chats):
            writer.add(ids, ends=True)
    bad = [record for record in batch if isinstance(record, Bad)]
    if bad:
        writer.drop_open()
    return bad


class _Writer:
    """The three files of a shard. A document may come in several parts; one that never ends is taken back."""

    def __init__(self, folder: Path, name: str, *, masked: bool) -> None:
        self._tokens = (folder / f"{name}.tokens").open("wb")
        self._lengths = (folder / f"{name}.lengths").open("wb")
        self._counts = (folder / f"{name}.counts").open("wb") if masked else None
        self._open_bytes = self._open_tokens = 0  # of the document that has not ended
        self.tokens = self.documents = self.counted = self.skipped = 0

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._tokens, self._lengths, self._counts):
            if file is not None:
                file.close()

    def add(self, ids: Ids, *, ends: bool) -> None:
        """Write a document, or the next part of one."""
        self._tokens.write(ids.tokens.tobytes())
        self._open_bytes += ids.tokens.nbytes
        self._open_tokens += ids.tokens.size
        if self._counts is not None:
            assert ids.counts is not None
            self._counts.write(ids.counts.tobytes())
            self.counted += int(ids.counts.sum())
        if ends:
            self._lengths.write(np.array([self._open_tokens], dtype=LENGTH).tobytes())
            self.documents += 1
            self.tokens += self._open_tokens
            if self._counts is None:
                self.counted += self._open_tokens
            self._open_bytes = self._open_tokens = 0

    def drop_open(self) -> None:
        """Take back the parts of a document that cannot be read to its end."""
        if self._open_bytes:
            self._tokens.seek(-self._open_bytes, os.SEEK_CUR)
            self._tokens.truncate()
            self._open_bytes = self._open_tokens = 0
