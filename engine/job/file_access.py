"""Which folders and object stores the documents of runs may name on a machine.

Operators of a site write documents; the machine is somebody else's. Its agent opens some folders and some
kinds of object stores to runs, and refuses everything else before a rank starts, whether it is there or not.
`meridian train` by hand asks nobody: who runs it owns the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import InputError

if TYPE_CHECKING:  # an agent reads its settings, and joins, without all that a job is made of
    from engine.job.job import TrainJob

# Of object stores: what a URL of these names lies on no machine and in none of its networks.
STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
LOCAL = ("file", "local")  # fsspec's names of this machine's own files
# Fields that may be a URL; the others are read as paths.
OF_CHECKPOINTS = ("persistence.checkpoint.dir", "persistence.resume")


def with_files(job: TrainJob, change: Callable[[str, str], str]) -> TrainJob:
    """The job with each path and URL of its document replaced by `change(field, value)`."""
    persistence, validation = job.persistence, job.data.validation
    for name, value in (("files", job.data.files), ("prepared", job.data.prepared)):
        if isinstance(value, dict):
            paths = {dc: change(f"data.{name}.{dc}", path) for dc, path in value.items()}
            job = job.with_fields("data", **{name: paths})
        elif value is not None:
            job = job.with_fields("data", **{name: change(f"data.{name}", value)})
    if validation is not None and validation.prepared is not None:
        folder = change("data.validation.prepared", validation.prepared)
        job = job.with_fields("data", validation=validation.model_copy(update={"prepared": folder}))
    if job.model.tokenizer is not None:
        job = job.with_fields("model", tokenizer=change("model.tokenizer", job.model.tokenizer))
    init = getattr(job.model, "init", None)  # of a model that transformers knows
    if init is not None:
        job = job.with_fields("model", init=change("model.init", init))
    if isinstance(persistence.resume, str):
        job = job.with_fields("persistence", resume=change("persistence.resume", persistence.resume))
    if persistence.checkpoint is not None:
        folder = change("persistence.checkpoint.dir", persistence.checkpoint.dir)
        saves = persistence.checkpoint.model_copy(update={"dir": folder})
        job = job.with_fields("persistence", checkpoint=saves)
    folders = {name: change(f"tracking.{name}", folder) for name, folder in job.tracking.folders.items()}
    job = job.with_fields("tracking", **folders)
    if job.tls is not None:
        job = job.with_fields("tls", **{name: change(f"tls.{name}", path) for name, path in job.tls})
    if job.prefill is not None:
        folder = change("prefill.checkpoint", job.prefill.checkpoint)
        job = job.with_fields("prefill", checkpoint=folder, name=job.prefill.model)
    return job


def files_of(job: TrainJob) -> list[tuple[str, str]]:
    """(field, value) of each path and URL of the job's document."""
    files = []

    def note(field: str, value: str) -> str:
        files.append((field, value))
        return value

    with_files(job, note)
    return files


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAccess:
    """What a machine opens to runs.

    roots : absolute folders, without symbolic links.  schemes : of URLs.
    closed : what no run may name, though it lies under a root: what Meridian keeps there for itself.
    """

    roots: tuple[str, ...]
    schemes: tuple[str, ...] = STORES
    closed: tuple[str, ...] = ()

    def opened(self, job: TrainJob) -> TrainJob:
        """The job with its paths as they are once links and ``..`` are followed.

        Raises
        ------
        InputError
            One of them is not open to runs. What is said depends on the document alone, never on what there
            is on the machine.
        """
        return with_files(job, self._opened)

    def _opened(self, field: str, value: str) -> str:
        if field in OF_CHECKPOINTS and "://" in value:
            self.require(field, value)
            return value
        try:
            path = str(Path(value).expanduser().resolve())
        except (OSError, RuntimeError, ValueError):  # links in a circle, a user that is none, NUL
            raise self._refusal(field, value) from None
        if not self.covers(path):
            raise self._refusal(field, value)
        return path

    def require(self, field: str, value: str) -> None:
        """Raise InputError unless a URL, or an absolute path as it is written, is open to runs."""
        if field in OF_CHECKPOINTS and "://" in value:
            scheme, _, rest = value.partition("://")
            # fsspec chains stores with "::", each of which may be another one.
            if scheme not in self.schemes or scheme in LOCAL or "::" in value or not rest:
                raise self._refusal(field, value)
        elif not self.covers(os.path.normpath(value)):
            raise self._refusal(field, value)

    def covers(self, path: str) -> bool:
        """Whether an absolute path lies in a root, and neither holds nor lies in what is closed."""
        inside = any(_holds(root, path) for root in self.roots)
        return inside and not any(_holds(own, path) or _holds(path, own) for own in self.closed)

    def _refusal(self, field: str, value: str) -> InputError:
        return InputError(field, value[:200], f"must be {' or '.join(self._allowed())}. {REMEDY}")

    def _allowed(self) -> Iterator[str]:
        yield f"under a folder that the node opens to runs ({', '.join(self.roots) or 'none'})"
        if self.schemes:
            yield f"a URL of an object store for checkpoints ({', '.join(self.schemes)})"


REMEDY = "Or have the owner of the machine add the folder to MERIDIAN_NODE_ROOTS and restart its agent"


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
