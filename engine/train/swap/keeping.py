"""Checkpoints of a swap run: each worker holds every layer, so one of them writes them all.

Which one is the tracker's word at every step: the lowest that is there. What it writes is the same checkpoint
as a pipeline's, so a run may resume from the other strategy's.
"""

from dataclasses import replace
from typing import Any

from torch.distributed import HashStore

from engine.job.checkpoint.manifest import resumed
from engine.job.events.base import Emit
from engine.job.launch import LaunchSpec, RankAssignment
from engine.train.checkpoint.keeper import Keeper, report_resumed
from engine.train.checkpoint.layers import load_into
from engine.train.corpus import Corpus
from engine.train.swap.host_model import HostModel


class SwapKeeper:
    """Restores the `model` of worker `me`, and saves it where it is this worker's turn."""

    def __init__(
        self, spec: LaunchSpec, me: RankAssignment, corpus: Corpus, model: HostModel, *, emit: Emit
    ) -> None:
        self._spec, self._me, self._corpus, self._model, self._emit = spec, me, corpus, model, emit
        self._saves: Keeper | None = None
        # A worker that joins has its weights from one that is there, not from where the others began.
        begins = spec.job.persistence.resume and me.rank < spec.job.cell.pipelines
        checkpoint = resumed(spec.job, corpus.fingerprint()) if begins else None
        if me.rank == 0:  # the others find the same
            report_resumed(checkpoint, spec.job, me.rank, emit)
        self.resumed_from = checkpoint.manifest.step if checkpoint else None
        if checkpoint:
            for number, layer in model.layers.items():
                load_into(layer, model.optimizer, checkpoint, number)

    def after(self, step: int, *, ends: bool) -> bool:
        """Save the state after `step` steps if it is due, or the run ends here; returns whether it was."""
        if self._spec.job.persistence.checkpoint is None:
            return False
        if self._saves is None:
            self._saves = self._keeper()
        saved = self._saves.after(step)
        if ends and not saved:
            self._saves.end(step)
        self._saves.sound(step)
        return saved

    def close(self) -> dict[str, Any] | None:
        """Wait until all is written; returns how many were, or None where this worker wrote none."""
        return self._saves.close() if self._saves else None

    def _keeper(self) -> Keeper:
        """The keeper of a run of one rank, which holds all layers and has nothing to resume."""
        alone = replace(self._me, pipeline=0)
        job = self._spec.job.with_fields("persistence", resume=None)
        spec = replace(self._spec, job=job, ranks=(alone,))
        return Keeper(
            spec,
            alone,
            HashStore(),
            self._corpus,
            optimizer=self._model.optimizer,
            emit=self._emit,
            layers=self._model.layers,
        )
