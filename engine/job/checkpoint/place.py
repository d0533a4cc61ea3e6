"""The location of checkpoints: a local folder, or a URL that fsspec opens (s3://, gs://, …).

Both hold folders of files under the name of a checkpoint. Locally a checkpoint is written into a hidden
folder and renamed as a whole; object stores cannot rename, there it exists once its manifest does. Either way
the manifest is written last, and no name is used twice.
"""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from engine.errors import InputError

MANIFEST = "manifest.json"
PARTIAL = ".writing-"
FIELD = "persistence.checkpoint.dir"  # of a job
STALE_S = 6 * 3600.0  # a partial folder that nobody has written to for so long belongs to a run that is gone


class Place(Protocol):
    """A place of checkpoints. Every method may raise OSError (and what a URL's own driver raises)."""

    where: str

    def prepare(self) -> None:
        """Make sure that checkpoints can be written here. Raises InputError where they cannot."""

    def write(self, name: str, file: str, data: bytes) -> None:
        """Write a file of a checkpoint that is not published yet, durably."""

    def size(self, name: str, file: str) -> int | None:
        """Bytes of a file of a checkpoint that is not published yet; None where it is not here."""

    def publish(self, name: str) -> None:
        """Make the checkpoint one: its manifest is written."""

    def discard(self, name: str) -> None:
        """Remove what was written of a checkpoint that is not published."""

    def names(self) -> list[str]:
        """The published checkpoints, in no order."""

    def read(self, name: str, file: str) -> bytes:
        """A file of a published checkpoint."""

    def length(self, name: str, file: str) -> int | None:
        """Bytes of a file of a published checkpoint; None where it is not there."""

    def remove(self, name: str) -> None:
        """Remove a published checkpoint, its manifest first."""

    def sweep(self) -> None:
        """Remove what runs that are long gone left half written."""


def open_place(where: str) -> Place:
    """Return the place at a path or URL; nothing is created.

    Raises
    ------
    InputError
        The URL's scheme is unknown, or its driver is not installed.
    """
    if "://" in where:
        return _Remote(where)
    return _Local(where)


def split(where: str) -> tuple[str, str]:
    """The folder and the last part of a path or URL."""
    head, _, tail = where.rstrip("/").rpartition("/")
    return (head or ("/" if where.startswith("/") else ".")), tail


class _Local:
    def __init__(self, where: str) -> None:
        self.where = where
        self._root = Path(where).expanduser()

    def prepare(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._root):
                pass
        except OSError as error:
            raise InputError(FIELD, self.where, f"cannot be written ({error.strerror})") from None

    def write(self, name: str, file: str, data: bytes) -> None:
        folder = self._root / (PARTIAL + name)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())

    def size(self, name: str, file: str) -> int | None:
        path = self._root / (PARTIAL + name) / file
        return path.stat().st_size if path.exists() else None

    def publish(self, name: str) -> None:
        partial = self._root / (PARTIAL + name)
        _sync_folder(partial)
        partial.rename(self._root / name)
        _sync_folder(self._root)

    def discard(self, name: str) -> None:
        shutil.rmtree(self._root / (PARTIAL + name), ignore_errors=True)

    def names(self) -> list[str]:
        if not self._root.is_dir():
            return []
        return [path.parent.name for path in self._root.glob(f"[!.]*/{MANIFEST}")]

    def read(self, name: str, file: str) -> bytes:
        return (self._root / name / file).read_bytes()

    def length(self, name: str, file: str) -> int | None:
        path = self._root / name / file
        return path.stat().st_size if path.exists() else None

    def remove(self, name: str) -> None:
        (self._root / name / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self._root / name, ignore_errors=True)

    def sweep(self) -> None:
        for partial in self._root.glob(PARTIAL + "*"):
            with contextlib.suppress(OSError):
                if time.time() - partial.stat().st_mtime > STALE_S:
                    shutil.rmtree(partial, ignore_errors=True)


class _Remote:
    def __init__(self, where: str) -> None:
        import fsspec

        self.where = where
        try:
            self._fs: Any
            self._fs, self._root = fsspec.core.url_to_fs(where)
        except ImportError as error:
            raise InputError(FIELD, where, f"needs a package that is missing ({error})") from None
        except ValueError as error:
            raise InputError(FIELD, where, f"cannot be opened ({error})") from None

    def prepare(self) -> None:
        try:
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(f"{self._root}/.writable", b"")
            self._fs.rm_file(f"{self._root}/.writable")
        except Exception as error:  # drivers raise what they like
            raise InputError(FIELD, self.where, f"cannot be written ({error})") from None

    def write(self, name: str, file: str, data: bytes) -> None:
        self._fs.makedirs(f"{self._root}/{name}", exist_ok=True)
        self._fs.pipe_file(f"{self._root}/{name}/{file}", data)

    def size(self, name: str, file: str) -> int | None:
        self._fs.invalidate_cache()
        path = f"{self._root}/{name}/{file}"
        return int(self._fs.size(path)) if self._fs.exists(path) else None

    def publish(self, name: str) -> None:
        """Nothing to do: the manifest, the last file, is there."""

    def discard(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}/{name}", recursive=True)

    def names(self) -> list[str]:
        self._fs.invalidate_cache()
        return [path.split("/")[-2] for path in self._fs.glob(f"{self._root}/*/{MANIFEST}")]

    def read(self, name: str, file: str) -> bytes:
        return bytes(self._fs.cat_file(f"{self._root}/{name}/{file}"))

    def length(self, name: str, file: str) -> int | None:
        return self.size(name, file)  # where a file is does not depend on what is published

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}/{name}/{MANIFEST}")
            self._fs.rm(f"{self._root}/{name}", recursive=True)

    def sweep(self) -> None:
        """Nothing: who writes to a URL cannot be told from who is gone."""


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
