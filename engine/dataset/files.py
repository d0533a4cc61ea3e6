"""The files of a source, local or by fsspec, and how they are dealt out to processes."""

import contextlib
import glob
import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.dataset.document import Source
from engine.errors import InputError, reason_of

SUFFIXES = {
    "text": ("",),
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz"),
    "parquet": (".parquet",),
    "datasets": (".arrow",),
}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
LEAST_SHARD_BYTES = 16 << 20  # of input
MOST_SHARDS = 2000  # more only where there are more files than a shard may hold


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of a source. version : changes when the file does (time of modification, or the store's tag)."""

    path: str
    size: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The bytes of a file that one process reads: the lines that begin in [start, end); end None: all."""

    path: str
    start: int = 0
    end: int | None = None
    size: int = 0  # bytes of input


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """The work of one shard: parts of files of one source (by number)."""

    source: int
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of input."""
        return sum(part.size for part in self.parts)


def files_of(source: Source, at: str) -> list[File]:
    """The files of a source in the order of their names.

    Raises
    ------
    InputError
        With a field below `at`: there are none, or they cannot be listed.
    """
    try:
        _check_one_split(source, at)
        files = _remote(source) if "://" in source.path else _local(source)
    except InputError:
        raise
    except Exception as error:  # drivers of stores raise what they like
        raise InputError(f"{at}.path", source.path[:200], f"cannot be read ({reason_of(error)})") from None
    if not files:
        suffixes = ", ".join(SUFFIXES[source.format])
        allowed = f"no such file, or no files of format {source.format} ({suffixes or 'any name'}) in it"
        raise InputError(f"{at}.path", source.path[:200], allowed)
    return files


def _check_one_split(source: Source, at: str) -> None:
    """Raise InputError for a folder of DatasetDict.save_to_disk, which holds several datasets."""
    if source.format != "datasets":
        return
    with contextlib.suppress(OSError), opened(f"{source.path}/dataset_dict.json") as file:
        allowed = (
            f"holds several splits: name the folder of one, such as {source.path}/train ({file.read(200)!r})"
        )
        raise InputError(f"{at}.path", source.path[:200], allowed)


def _local(source: Source) -> list[File]:
    root = Path(source.path).expanduser()
    if root.is_dir():
        paths = [path for path in root.rglob("*") if _belongs(str(path.relative_to(root)), source)]
    elif root.exists():
        paths = [root]
    else:
        paths = [Path(path) for path in glob.glob(str(root), recursive=True)]
    files = sorted(path.resolve() for path in paths if path.is_file())
    return [_stated(path) for path in files]


def _stated(path: Path) -> File:
    stat = path.stat()
    return File(path=str(path), size=stat.st_size, version=str(stat.st_mtime_ns))


def _remote(source: Source) -> list[File]:
    import fsspec

    store, root = fsspec.core.url_to_fs(source.path)
    if any(mark in root for mark in "*?["):
        entries = store.glob(root, detail=True)
    elif store.isfile(root):
        entries = {root: store.info(root)}
    else:
        entries = store.find(root, detail=True)
        entries = {path: info for path, info in entries.items() if _belongs(path[len(root) :], source)}
    return [
        File(
            path=store.unstrip_protocol(path),
            size=int(info["size"] or 0),
            version=str(info.get("ETag") or info.get("mtime") or info.get("created") or ""),
        )
        for path, info in sorted(entries.items())
    ]


def _belongs(path: str, source: Source) -> bool:
    hidden = any(name.startswith(".") for name in path.split("/"))
    cached = source.format == "datasets" and path.split("/")[-1].startswith(
        "cache-"
    )  # results of Dataset.map
    return not hidden and not cached and path.lower().endswith(SUFFIXES[source.format])


class StoreError(Exception):
    """A store did not give a file: its path, and why. Nothing is wrong with the data."""


class _StoredFile(io.RawIOBase):
    """A file of a store, for `io.BufferedReader`: files of fsspec lack readline(limit)."""

    def __init__(self, path: str) -> None:
        import fsspec

        self._path = path
        self._file: Any = self._asked(fsspec.open(path, "rb").open)

    def _asked(self, call: Callable[..., Any], *arguments: int) -> Any:
        try:
            return call(*arguments)
        except FileNotFoundError:
            raise
        except Exception as error:  # drivers of stores raise what they like
            raise StoreError(self._path, reason_of(error)) from None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._asked(self._file.read, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._asked(self._file.seek, offset, whence))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def opened(path: str) -> IO[bytes]:
    """A file to read; what is compressed comes out as it was. Raises OSError, StoreError."""
    compressed = path.lower().endswith(COMPRESSED)
    if "://" not in path and not compressed:
        return open(path, "rb")
    import fsspec

    file: IO[bytes]
    if "://" not in path:
        file = fsspec.open(path, "rb", compression="infer").open()
        return file
    file = io.BufferedReader(_StoredFile(path))
    if compressed:
        file = fsspec.compression.compr[fsspec.utils.infer_compression(path)](file, mode="rb")
    return file


def items_of(sources: list[Source], files: list[list[File]]) -> list[Item]:
    """The shards to make: a function of the files alone, whatever the number of processes.

    Large files of JSONL are cut, small files come together.
    """
    total = sum(file.size for listed in files for file in listed)
    target = max(LEAST_SHARD_BYTES, -(-total // MOST_SHARDS))
    items = []
    for number, (source, listed) in enumerate(zip(sources, files, strict=True)):
        cut = source.format == "jsonl"
        for parts in _grouped(_parts(listed, target if cut else None), target):
            items.append(Item(source=number, parts=tuple(parts)))
    return items


def _parts(files: list[File], target: int | None) -> Iterator[Part]:
    for file in files:
        if target is None or file.size <= target or file.path.lower().endswith(COMPRESSED):
            yield Part(path=file.path, size=file.size)
            continue
        for start in range(0, file.size, target):
            end = min(file.size, start + target)
            yield Part(path=file.path, start=start, end=end, size=end - start)


def _grouped(parts: Iterable[Part], target: int) -> Iterator[list[Part]]:
    group: list[Part] = []
    for part in parts:
        if group and sum(p.size for p in group) + part.size > target:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def line_before(path: str, position: int) -> int:
    """How many lines end before a byte of a file."""
    lines = 0
    with opened(path) as file:
        while position > 0 and (data := file.read(min(position, 1 << 20))):
            lines += data.count(b"\n")
            position -= len(data)
    return lines


def absolute(path: str) -> str:
    """A path that holds whatever the current folder is; URLs as they are."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))
