"""The tokens of one source in a prepared folder, mapped from disk, and the sequences in them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.dataset.index import Shard

SHARDS = "shards"  # the folder of them
LENGTH = np.dtype("<u8")

Mapped = NDArray[Any]


class TokenStream:
    """All tokens of a source, one after another.

    Parameters
    ----------
    parts : tokens of each file.  counts : bytes of each file that say which tokens a loss counts; empty
        where it counts all.
    document_ends : in tokens, running over all parts.
    separate : each document begins in a sequence of its own, which is filled up with `eos`.
    """

    def __init__(
        self,
        parts: Sequence[Mapped],
        counts: Sequence[Mapped],
        document_ends: NDArray[np.int64],
        *,
        separate: bool,
        eos: int,
    ) -> None:
        self._parts, self._counts, self._separate, self._eos = tuple(parts), tuple(counts), separate, eos
        self._ends = np.cumsum([part.size for part in parts], dtype=np.int64)
        self.document_ends = document_ends
        self._rows: tuple[int, NDArray[np.int64]] | None = None  # a length, and running rows by document

    @property
    def tokens(self) -> int:
        """How many there are."""
        return int(self._ends[-1]) if self._ends.size else 0

    def sequences(self, seq: int) -> int:
        """How many sequences of `seq` tokens, each with a target, there are."""
        if not self._separate:
            return max(0, self.tokens - 1) // seq
        rows = self._rows_to(seq)
        return int(rows[-1]) if rows.size else 0

    def sequence(self, number: int, seq: int) -> tuple[Mapped, NDArray[np.bool_]]:
        """The seq + 1 tokens of a sequence, and which of them a loss counts as targets."""
        start, end = self.extent(number, seq)
        tokens, counts = self._read(self._parts, start, end), np.ones(end - start, dtype=bool)
        if self._counts:
            counts = self._read(self._counts, start, end).astype(bool)
        lacking = seq + 1 - (end - start)
        if lacking:
            tokens = np.append(tokens, np.full(lacking, self._eos, dtype=tokens.dtype))
            counts = np.append(counts, np.zeros(lacking, dtype=bool))
        return tokens, counts

    def extent(self, number: int, seq: int) -> tuple[int, int]:
        """Where the tokens of a sequence begin and end: fewer than seq + 1 where it is to be filled up."""
        if not self._separate:
            return number * seq, number * seq + seq + 1
        rows = self._rows_to(seq)
        document = int(np.searchsorted(rows, number, side="right"))
        before = int(rows[document - 1]) if document else 0
        begin = int(self.document_ends[document - 1]) if document else 0
        start = begin + (number - before) * seq
        return start, min(start + seq + 1, int(self.document_ends[document]))

    def _rows_to(self, seq: int) -> NDArray[np.int64]:
        """Sequences of all documents up to each one: a document of n tokens has ⌈(n − 1) / seq⌉."""
        if self._rows is None or self._rows[0] != seq:
            lengths = np.diff(self.document_ends, prepend=0)
            self._rows = seq, np.cumsum(-(-(lengths - 1) // seq))
        return self._rows[1]

    def _read(self, parts: Sequence[Mapped], start: int, end: int) -> Mapped:
        part = int(np.searchsorted(self._ends, start, side="right"))
        pieces = []
        while start < end:
            first = int(self._ends[part - 1]) if part else 0
            piece = parts[part][start - first : end - first]
            pieces.append(piece)
            start, part = start + piece.size, part + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def stream_of(
    folder: Path, shards: Sequence[Shard], *, dtype: str, masked: bool, separate: bool, eos: int
) -> TokenStream:
    """The tokens of the shards of one source. Raises OSError, ValueError: files are not as the index says."""
    shards = [shard for shard in shards if shard.tokens]
    parts = [_mapped(folder / f"{shard.name}.tokens", np.dtype(dtype), shard.tokens) for shard in shards]
    lengths = [_mapped(folder / f"{shard.name}.lengths", LENGTH, shard.documents) for shard in shards]
    counts = [
        _mapped(folder / f"{shard.name}.counts", np.dtype("u1"), shard.tokens) for shard in shards if masked
    ]
    ends = np.cumsum(np.concatenate(lengths, dtype=np.int64)) if lengths else np.empty(0, dtype=np.int64)
    return TokenStream(parts, counts, ends, separate=separate, eos=eos)


def _mapped(path: Path, dtype: np.dtype[Any], size: int) -> Mapped:
    if path.stat().st_size != size * dtype.itemsize:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes, not {size * dtype.itemsize:,}")
    return np.memmap(path, dtype=dtype, mode="r")
