"""index.json of a prepared folder: what is in its shards. It is written last: a folder with it is whole."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from engine.dataset.document import DatasetDocument
from engine.documents import read_json, read_text
from engine.errors import InputError, reason_of
from engine.inputs import Document, Index, parse

NAME = "index.json"
MOST_EXAMPLES = 20


class Skipped(Document):
    """Something that could not be read, and why."""

    where: str
    why: str


class Shard(Document):
    """The tokens of some documents, in two or three files.

    NAME.tokens, NAME.lengths (uint64, tokens of each document) and, where the source is of messages,
    NAME.counts (a byte for each token: whether a loss counts it).

    counted : tokens that a loss counts.  skipped : lines, rows or files that could not be read, with the
        first of them in `examples`.
    xxh3_128 : of these files, one after another.
    """

    name: Annotated[str, Field(pattern=r"^\d{1,9}$")]  # a run opens files of that name: no path
    source: Index
    tokens: Index
    documents: Index
    counted: Index
    skipped: Index
    examples: Annotated[list[Skipped], Field(max_length=MOST_EXAMPLES)] = []
    bytes: Index
    xxh3_128: str


class PreparedTokenizer(Document):
    """The tokenizer whose files lie in the folder. vocabulary : one more than the largest id."""

    xxh3_128: str
    vocabulary: Index
    eos: Index


class PreparedIndex(Document):
    """What a prepared folder holds.

    version : of the format; a later one that this version does not read is refused.
    document : as it was prepared, with absolute paths.  dtype : of tokens, little-endian.
    files : of all sources.  inputs_sha256 : of document, tokenizer, and names, sizes and times of the files.
    """

    format: Literal["meridian-tokens"] = "meridian-tokens"
    version: Literal[1] = 1
    document: DatasetDocument
    tokenizer: PreparedTokenizer
    dtype: Literal["uint16", "uint32"]
    files: Index
    inputs_sha256: str
    shards: list[Shard]

    @property
    def fingerprint(self) -> str:
        """Hex digest of the tokens, their documents, and how they become sequences."""
        document = self.document
        parts = [self.dtype, document.packing, str(self.tokenizer.eos)]
        parts += [str(source.weight) for source in document.sources]
        parts += [f"{shard.source} {shard.tokens} {shard.xxh3_128}" for shard in self.shards]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Of the sources; None where they have none."""
        weights = tuple(source.weight for source in self.document.sources if source.weight is not None)
        return weights or None

    @property
    def is_masked(self) -> bool:
        """Whether a loss leaves some tokens out."""
        separate = self.document.packing == "separate"
        return separate or any(source.messages for source in self.document.sources)


def read_index(folder: Path, *, field: str) -> PreparedIndex:
    """The index of a prepared folder.

    Raises
    ------
    InputError
        With `field`: there is none, or this version does not read it.
    """
    try:
        value = read_json(read_text(folder / NAME))
    except (OSError, ValueError) as error:
        allowed = f"must be a folder of `meridian data prepare`: {NAME} cannot be read ({reason_of(error)})"
        raise InputError(field, str(folder), allowed) from None
    try:
        return parse(PreparedIndex, value)
    except InputError as error:
        raise InputError(field, str(folder), f"{NAME} is not read by this version ({error})") from None


def write_index(index: PreparedIndex, folder: Path) -> None:
    """Write the index of a folder."""
    (folder / NAME).write_text(json.dumps(index.model_dump(mode="json"), indent=1), encoding="utf-8")
