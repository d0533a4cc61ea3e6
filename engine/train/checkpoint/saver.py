"""Saving while training goes on: copied at the iteration boundary, written by a separate thread.

One replica of each stage writes its layers' files and says so in the rendezvous store; the first rank waits
for all of them and for word that the step's loss is sound, then writes the manifest and publishes. What fails
on the way leaves the checkpoints that are there as they are, and the run goes on.
"""

import json
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engine.errors import InputError, reason_of
from engine.job.checkpoint.manifest import Checkpoint, LayerFile, Manifest, name_of
from engine.job.checkpoint.place import MANIFEST, Place
from engine.job.events.base import Emit
from engine.job.events.training import Checkpoint as CheckpointEvent
from engine.job.events.training import CheckpointState
from engine.job.sections.persistence import CheckpointSettings
from engine.train.agreement import ForgettingStore, taken
from engine.train.checkpoint.layers import to_bytes

log = logging.getLogger(__name__)
POLL_S = 0.02
NONCE = "checkpoint/nonce"

Copies = Mapping[int, Mapping[str, Tensor]]  # of layers by number


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The settings that all writers of a run share.

    writers : the ranks that write, one replica of each stage. leader : the one of them that publishes.
    manifest : makes the manifest of a step from the time and the files; called on the leader only.
    tokenizer : its file, which the leader writes too; None where the model reads bytes.
    """

    settings: CheckpointSettings
    place: Place
    writers: tuple[int, ...]
    leader: int
    manifest: Callable[[int, float, list[LayerFile]], Manifest]
    tokenizer: bytes | None = None


class Saver:
    """One writer's side of all checkpoints of a run.

    Parameters
    ----------
    copies : copies this rank's layers as they are now.
    emit : takes the `checkpoint` events; the leader sends them.
    after : Unix time at which the checkpoint was saved from which the run has resumed, or 0.
    """

    def __init__(
        self,
        terms: Terms,
        store: ForgettingStore,
        *,
        rank: int,
        copies: Callable[[], Copies],
        emit: Emit,
        after: float = 0.0,
    ) -> None:
        self._terms, self._store, self._rank, self._copies, self._emit = terms, store, rank, copies, emit
        self._leads = rank == terms.leader
        self._nonce = self._agreed_nonce()
        self._latest = after
        self._sound = 0
        self._changed = threading.Condition()
        self.saved = self.failed = 0
        self.took_s: float | None = None  # the last one, from its copy until it was published
        self._asked_at = 0.0
        self.last_step: int | None = None
        # One at a time: a step that is due while the last one is still being written waits for it, on all
        # ranks alike.
        self._work: queue.Queue[tuple[int, Copies] | None] = queue.Queue(1)
        self._idle = threading.Semaphore(1)
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()
        if self._leads:
            terms.place.prepare()
            terms.place.sweep()

    def due(self, step: int, *, last: bool) -> bool:
        """Whether the state after `step` steps is to be saved; the state at the run's end is."""
        return is_due(self._terms.settings, step, last=last)

    def save(self, step: int) -> None:
        """Copy the layers now and write them in the background; waits for the previous save."""
        self._idle.acquire()
        self._asked_at = time.monotonic()
        self._work.put((step, self._copies()))

    def sound(self, step: int) -> None:
        """Tell the leader that losses and norms of the first `step` steps are finite."""
        with self._changed:
            self._sound = step
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all is written."""
        self._work.put(None)
        self._thread.join()

    def stats(self) -> dict[str, Any]:
        """For the result of the run."""
        return {"saved": self.saved, "failed": self.failed, "last_step": self.last_step}

    def _agreed_nonce(self) -> str:
        if self._leads:
            self._store.set(NONCE, secrets.token_hex(4))
        return self._store.get(NONCE).decode()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            step, copies = item
            files, problem = self._write(name_of(step, self._nonce), copies)
            del item, copies
            if self._leads:
                self._lead(step, files, problem)
            else:
                answer = {"files": [file.model_dump() for file in files], "problem": problem}
                self._store.set(_key(step, self._rank), json.dumps(answer))
            self._idle.release()

    def _write(self, name: str, copies: Copies) -> tuple[list[LayerFile], str]:
        """Write this rank's layers; returns what was written, and why not all of it."""
        files = []
        try:
            for number, tensors in copies.items():
                data = to_bytes(tensors)
                file = f"layer-{number:05d}.safetensors"
                self._terms.place.write(name, file, data)
                shapes = {key: list(tensor.shape) for key, tensor in tensors.items()}
                files.append(LayerFile.of(file, data, number=number, shapes=shapes))
        except (
            Exception
        ) as error:  # drivers of URLs raise what they like; the run is worth more than its copy
            return files, f"rank {self._rank}: {reason_of(error)}"
        return files, ""

    def _lead(self, step: int, files: list[LayerFile], problem: str) -> None:
        began, name, place = time.time(), name_of(step, self._nonce), self._terms.place
        problems = [problem] if problem else []
        for rank in self._terms.writers:
            if rank != self._rank:
                answer = json.loads(taken(self._store, _key(step, rank), poll_s=POLL_S))
                files += [LayerFile(**file) for file in answer["files"]]
                problems += [answer["problem"]] if answer["problem"] else []
        self._await_sound(step)
        try:
            if problems:
                raise OSError(problems[0])
            manifest = self._manifest(step, sorted(files, key=lambda file: file.number))
            self._check_all_here(name, manifest)
            if manifest.tokenizer and self._terms.tokenizer:
                place.write(name, manifest.tokenizer.file, self._terms.tokenizer)
            place.write(name, MANIFEST, manifest.to_bytes())
            place.publish(name)
        except Exception as error:
            self.failed += 1
            self._discard(name)
            self._announce(step, CheckpointState.FAILED, name, detail=reason_of(error))
            return
        self._latest, self.last_step = manifest.saved_at, step
        self.saved += 1
        self.took_s = time.monotonic() - self._asked_at
        took_s = round(max(0.0, time.time() - began), 6)
        removed, problem = self._prune(name, manifest)
        self._announce(
            step,
            CheckpointState.SAVED,
            name,
            bytes=manifest.total_bytes,
            seconds=took_s,
            detail=problem,
            removed=removed,
        )

    def _await_sound(self, step: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._sound >= step)

    def _manifest(self, step: int, files: list[LayerFile]) -> Manifest:
        # A clock that is set back must not make an older checkpoint the latest.
        return self._terms.manifest(step, max(time.time(), self._latest + 1e-3), files)

    def _check_all_here(self, name: str, manifest: Manifest) -> None:
        for layer in manifest.layers:
            size = self._terms.place.size(name, layer.file)
            if size != layer.bytes:
                fault = "is not here" if size is None else f"has {size:,} bytes here"
                raise OSError(
                    f"{layer.file} of {layer.bytes:,} bytes {fault}: checkpoint.dir must be one folder that "
                    "all nodes share, or a URL"
                )

    def _prune(self, newest: str, manifest: Manifest) -> tuple[tuple[str, ...], str]:
        """Remove the oldest checkpoints of this training beyond what is kept; returns where they were, and
        what went wrong."""
        settings, place = self._terms.settings, self._terms.place
        removed: list[str] = []
        try:
            ours = [c for c in self._others(newest) if c.manifest.line == manifest.line]
            ours.sort(key=lambda checkpoint: checkpoint.manifest.saved_at, reverse=True)
            total, count = manifest.total_bytes, 1
            for checkpoint in ours:
                total, count = total + checkpoint.manifest.total_bytes, count + 1
                if count > settings.keep or total > settings.most_bytes:
                    place.remove(checkpoint.name)
                    removed.append(checkpoint.where)
        except Exception as error:
            return tuple(removed), f"older checkpoints could not be removed: {reason_of(error)}"
        return tuple(removed), ""

    def _others(self, newest: str) -> list[Checkpoint]:
        others = []
        for name in self._terms.place.names():
            try:
                others += [Checkpoint(self._terms.place, name)] if name != newest else []
            except InputError:
                continue  # what cannot be read is not ours to remove
        return others

    def _discard(self, name: str) -> None:
        try:
            self._terms.place.discard(name)
        except Exception as error:
            self._announce(
                0,
                CheckpointState.FAILED,
                name,
                detail=f"an incomplete checkpoint remains: {reason_of(error)}",
            )

    def _announce(self, step: int, state: CheckpointState, name: str, **more: Any) -> None:
        where = f"{self._terms.place.where.rstrip('/')}/{name}"
        detail = f" ({more['detail']})" if more.get("detail") else ""
        log.info("Checkpoint after iteration %s %s: %s%s.", f"{step:,}", state, where, detail)
        self._emit(
            CheckpointEvent(rank=self._rank, step=step, state=state, where=where, **more, t=time.time())
        )


class Helper:
    """A rank's side where another one writes what both have parts of (tensor parallelism, ZeRO-1).

    copies : puts layer after layer together, as the writer does at the same time.
    """

    took_s = None

    def __init__(self, settings: CheckpointSettings, copies: Callable[[], Iterable[object]]) -> None:
        self._settings, self._copies = settings, copies

    def due(self, step: int, *, last: bool) -> bool:
        """Whether the state after `step` steps is to be saved."""
        return is_due(self._settings, step, last=last)

    def save(self, step: int) -> None:
        """Take part, and keep nothing."""
        for _ in self._copies():
            pass

    def sound(self, step: int) -> None:
        """The leader of all writers is told."""

    def close(self) -> None:
        """Nothing is under way."""

    def stats(self) -> None:
        """The leader of all writers counts."""


def is_due(settings: CheckpointSettings, step: int, *, last: bool) -> bool:
    """Whether a checkpoint is to be saved after `step` steps, or at the run's end."""
    return step % settings.every == 0 or last


def _key(step: int, rank: int) -> str:
    return f"checkpoint/{step}/{rank}"
