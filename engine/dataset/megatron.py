"""Megatron's indexed datasets: NAME.idx beside NAME.bin, read as they are.

The index (of Megatron-LM's `core/datasets/indexed_dataset.py`), little-endian: 9 bytes of magic, version
(u64), code of the tokens' type (u8), counts of sequences and of documents' bounds (u64 each); the length of
each sequence in tokens (i32), its first byte in NAME.bin (i64), and the sequence with which each document
begins (i64; the last one is where all end). What may follow is of other modalities.
"""

from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from engine.dataset.digest import add_samples
from engine.dataset.streams import TokenStream
from engine.errors import InputError, reason_of

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats: no tokens
_HEAD = np.dtype([("version", "<u8"), ("code", "u1"), ("sequences", "<u8"), ("bounds", "<u8")])


def is_megatron(path: str) -> bool:
    """Whether NAME.idx stands at a path (with or without its ending)."""
    return prefix_of(path).with_name(prefix_of(path).name + ".idx").is_file()


def prefix_of(path: str) -> Path:
    """The path without .bin or .idx."""
    return Path(path.removesuffix(".idx").removesuffix(".bin")).expanduser()


def megatron_stream(path: str, *, field: str) -> tuple[TokenStream, str]:
    """The tokens of a dataset, and a digest of them. A document's end is where Megatron says it is.

    Raises
    ------
    InputError
        With `field`: a file is missing, is no such index, or does not fit to the other.
    """
    prefix = prefix_of(path)
    index_path, data_path = (prefix.with_name(prefix.name + suffix) for suffix in (".idx", ".bin"))
    try:
        index = index_path.read_bytes()
        dtype, lengths, pointers, bounds = _parsed(index)
        data = np.memmap(data_path, dtype=dtype, mode="r") if data_path.stat().st_size else np.empty(0, dtype)
        _check(lengths, pointers, bounds, data)
    except (OSError, ValueError) as error:
        raise InputError(field, path, f"is not an indexed dataset of Megatron ({reason_of(error)})") from None
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[bounds[1:]]
    digest = xxhash.xxh3_128(index)
    add_samples(digest, data)
    return TokenStream([data], [], np.unique(ends), separate=False, eos=0), digest.hexdigest()


def _parsed(index: bytes) -> tuple[np.dtype, NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Type of the tokens, length and first byte of each sequence, and first sequences of documents."""
    if not index.startswith(MAGIC):
        raise ValueError("its .idx does not begin with MMIDIDX")
    if len(index) < len(MAGIC) + _HEAD.itemsize:
        raise ValueError("its .idx is cut short")
    head = np.frombuffer(index, _HEAD, count=1, offset=len(MAGIC))[0]
    if head["version"] != VERSION or int(head["code"]) not in DTYPES:
        raise ValueError(f"version {head['version']}, type {head['code']}; version 1 with integers is read")
    sequences, bounds = int(head["sequences"]), int(head["bounds"])
    at = len(MAGIC) + _HEAD.itemsize
    if len(index) < at + 12 * sequences + 8 * bounds:
        raise ValueError("its .idx is cut short")
    return (
        np.dtype(DTYPES[int(head["code"])]),
        np.frombuffer(index, "<i4", sequences, at),
        np.frombuffer(index, "<i8", sequences, at + 4 * sequences),
        np.frombuffer(index, "<i8", bounds, at + 12 * sequences),
    )


def _check(
    lengths: NDArray[np.int32], pointers: NDArray[np.int64], bounds: NDArray[np.int64], data: NDArray
) -> None:
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    if (lengths < 0).any() or (pointers != starts * data.dtype.itemsize).any():
        raise ValueError("its sequences do not stand one after another")
    if data.size != int(lengths.sum(dtype=np.int64)):
        raise ValueError(f"its .bin has {data.size:,} tokens, its .idx {lengths.sum(dtype=np.int64):,}")
    whole = bounds.size and bounds[0] == 0 and bounds[-1] == lengths.size
    if not whole or (np.diff(bounds) < 0).any():
        raise ValueError("its documents do not hold all sequences in order")
