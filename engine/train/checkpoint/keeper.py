"""One rank's checkpoints: the one that it resumes from, and those that it saves."""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from engine import __version__
from engine.job.checkpoint.manifest import (
    Checkpoint,
    DataPosition,
    LayerFile,
    Manifest,
    RandomState,
    SavedFile,
    find,
    resumed,
)
from engine.job.checkpoint.place import open_place
from engine.job.checkpoint.resuming import changes, saved_sections
from engine.job.events.base import Emit
from engine.job.events.training import Checkpoint as CheckpointEvent
from engine.job.events.training import CheckpointState
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.sections.persistence import CheckpointSettings
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.train.agreement import ForgettingStore
from engine.train.checkpoint.layers import copy_of, load_into
from engine.train.checkpoint.saver import Helper, Saver, Terms
from engine.train.corpus import Corpus
from engine.train.optimizer import Optimizer
from engine.train.zero import ShardedAdamW

RESUMED = "checkpoint/resumed"
log = logging.getLogger(__name__)


class Keeper:
    """Restores and saves the `layers` (by number) of one rank; a job without checkpoints costs it nothing.

    Parameters
    ----------
    emit : takes the `checkpoint` events.
    tp : how the stage is shared with other ranks: the lead writes its layers, all put them together.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        me: RankAssignment,
        store: ForgettingStore,
        corpus: Corpus,
        *,
        layers: Mapping[int, nn.Module],
        optimizer: Optimizer,
        emit: Emit,
        tp: OneRank = ONE_RANK,
    ) -> None:
        self._spec, self._me, self._job, self._store = spec, me, spec.job, store
        self._layers, self._optimizer, self._tp, self._emit = layers, optimizer, tp, emit
        self._leads = me.rank == spec.first_rank
        self._tokenizer: bytes | None = None
        self._tokenizer_file = self._job.model.tokenizer or corpus.tokenizer_file
        needed = self._leads and (self._job.persistence.checkpoint or self._job.persistence.resume)
        self._fingerprint = corpus.fingerprint() if needed else ""
        checkpoint = self._agreed() if self._job.persistence.resume else None
        self.resumed_from = checkpoint.manifest.step if checkpoint else None
        if checkpoint:
            for number, layer in layers.items():
                load_into(layer, optimizer, checkpoint, number, tp)
        settings = self._job.persistence.checkpoint
        self._saver: Saver | Helper | None = None
        if settings and me.pipeline == 0 and tp.leads:
            self._saver = self._new_saver(settings, emit, checkpoint)
        elif settings and self._helps():
            self._saver = Helper(settings, self._copies)

    def _helps(self) -> bool:
        """Whether this rank has a part of what another one writes."""
        if isinstance(self._optimizer, ShardedAdamW):
            return self._job.dcs_of_pipeline[0][self._me.stage] == self._me.dc
        return self._me.pipeline == 0

    @property
    def first_step(self) -> int:
        """The step to begin with, counted from 0."""
        return self.resumed_from or 0

    def after(self, step: int, *, wanted: bool = False) -> bool:
        """Copy the layers if a checkpoint is due after `step` steps, or `wanted`; returns whether it was."""
        due = self._saver is not None and self._saver.due(step, last=step == self._job.optimizer.steps)
        if self._saver is None or not (due or wanted):
            return False
        self._saver.save(step)
        return True

    def took_s(self) -> float | None:
        """What the last checkpoint took, on the rank that leads; None before the first one."""
        return self._saver.took_s if self._saver else None

    def end(self, step: int) -> None:
        """The run ends before its time after `step` steps: save them, if they are not."""
        due = self._saver is not None and not self._saver.due(step, last=step == self._job.optimizer.steps)
        if self._saver and due and step > self.first_step:
            self._saver.save(step)

    def sound(self, step: int) -> None:
        """The losses and norms of the first `step` steps are finite."""
        if self._saver:
            self._saver.sound(step)

    def close(self) -> dict[str, Any] | None:
        """Wait until all is written; returns how many were, or None where the job saves none."""
        if self._saver is None:
            return None
        self._saver.close()
        return self._saver.stats()

    def _agreed(self) -> Checkpoint | None:
        """The checkpoint that the first rank found and checked; every rank reads the same."""
        if self._leads:
            checkpoint = resumed(self._job, self._fingerprint)
            report_resumed(checkpoint, self._job, self._me.rank, self._emit)
            self._store.set(RESUMED, json.dumps(checkpoint.where if checkpoint else None))
            return checkpoint
        where = json.loads(self._store.get(RESUMED))
        return find(where) if where else None

    def _new_saver(self, settings: CheckpointSettings, emit: Emit, checkpoint: Checkpoint | None) -> Saver:
        if self._tokenizer_file and self._leads:
            self._tokenizer = Path(self._tokenizer_file).read_bytes()
        terms = Terms(
            settings=settings,
            place=open_place(settings.dir),
            leader=self._spec.first_rank,
            writers=tuple(a.rank for a in self._spec.ranks if a.pipeline == 0 and a.leads),
            manifest=self._manifest,
            tokenizer=self._tokenizer,
        )
        return Saver(
            terms,
            self._store,
            rank=self._me.rank,
            emit=emit,
            after=checkpoint.manifest.saved_at if checkpoint else 0.0,
            copies=lambda: dict(self._copies()),
        )

    def _copies(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        for number, layer in self._layers.items():
            yield number, copy_of(layer, self._optimizer, self._tp)

    def _manifest(self, step: int, saved_at: float, files: list[LayerFile]) -> Manifest:
        job = self._job
        return Manifest(
            version=__version__,
            saved_at=saved_at,
            step=step,
            dtype=job.device.dtype,
            seed=job.optimizer.seed,
            global_batch=job.cell.global_batch,
            model=job.model.model_dump(mode="json", exclude_none=True),
            data=DataPosition(fingerprint=self._fingerprint, sequences=step * job.cell.global_batch),
            rng=RandomState(key=[job.optimizer.seed, step]),
            layers=files,
            tokenizer=SavedFile.of("tokenizer.json", self._tokenizer) if self._tokenizer else None,
            job=saved_sections(job),
        )


def report_resumed(checkpoint: Checkpoint | None, job: TrainJob, rank: int, emit: Emit) -> None:
    """Log the checkpoint that is taken and what the job changes against it. Of each torn checkpoint that was
    passed over for it, log a warning and emit an event as `rank`.
    """
    if checkpoint is None:
        return
    for torn in checkpoint.passed_over:
        log.warning("Checkpoint %s. The run uses the one before it.", torn)
        emit(
            CheckpointEvent(
                rank=rank,
                step=torn.step,
                state=CheckpointState.TORN,
                where=torn.where,
                detail=torn.why,
                t=time.time(),
            )
        )
    for change in changes(job, checkpoint):
        log.info("Changed against the checkpoint: %s.", change)
