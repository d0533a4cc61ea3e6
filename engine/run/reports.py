"""Loss and gradient norm of every step: summed over the stages, clipped by, and told by the first rank."""

import threading
import time
from collections.abc import Callable

from engine.job.losses import Losses, bits_per_byte, step_event
from engine.job.recovery.history import Board
from engine.run.building import Ground
from engine.train.background import Background
from engine.train.corpus import Corpus
from engine.train.gradients import Gradients
from engine.train.log_lines import FIRST_RANK_EVERY_S, ProgressLog
from engine.train.start import Die
from engine.train.totals import Totals


class StepReports:
    """What a rank adds to each step's report; the first rank's `losses` are those of the whole run.

    Parameters
    ----------
    corpus : what is trained on.
    sound : told of how many steps the losses are known and finite.
    board : of a run that recovers, where losses outlive this process.
    first : the step with which this rank begins.
    """

    def __init__(
        self,
        ground: Ground,
        gradients: Gradients,
        corpus: Corpus,
        *,
        die: Die,
        sound: Callable[[int], None],
        board: Board | None,
        first: int,
    ) -> None:
        self._ground, self._gradients, self._corpus = ground, gradients, corpus
        self._sound, self._board = sound, board
        job, me, mesh = ground.job, ground.me, ground.mesh
        self.losses = Losses(job.optimizer.spike or None)
        self._progress = ProgressLog(job, every_s=FIRST_RANK_EVERY_S)
        # Replicas hold the same sums, so one pipeline is enough to report them; a clip needs them everywhere.
        self._totals = Totals(mesh.endpoint, above=mesh.above(), below=mesh.below()) if me.leads else None
        reports = job.optimizer.clip is None and me.pipeline == 0
        self._background = Background(self._gather, die, name="totals") if reports and self._totals else None
        self._changed = threading.Condition()
        self._reported = first  # steps that were told of

    def add(self, iteration: int, square_sum: float, loss: float) -> None:
        """This stage's sum of squares and loss of an iteration; clips the gradients where the job says so."""
        clip, tp = self._ground.job.optimizer.clip, self._ground.tp
        if clip is None:
            self.contribute(iteration, square_sum, loss)
            return
        if self._totals:
            square_sum, loss = self._totals.agree(iteration, square_sum, loss)
        square_sum, loss = tp.agreed(square_sum, loss)
        self._gradients.scale(min(1.0, clip / (square_sum**0.5 + 1e-6)))
        if self._ground.me.pipeline == 0:
            self._report(iteration, square_sum, loss)

    def contribute(self, iteration: int, square_sum: float, loss: float) -> None:
        """Pass this stage's numbers on in the background, in a run whose gradients are not clipped."""
        if self._background:
            self._background.put((iteration, square_sum, loss))

    def begin_at(self, step: int) -> None:
        """So many steps were told of before."""
        self._reported = step

    def wait_until_reported(self, steps: int) -> None:
        """On the first rank, return once so many steps have been told of."""
        if self._background and self._ground.is_first:
            with self._changed:
                self._changed.wait_for(lambda: self._reported >= steps)

    def close(self) -> None:
        """Wait until all contributions are passed on."""
        if self._background:
            self._background.close()

    def _gather(self, own: tuple[int, float, float]) -> None:
        """In the background: add this stage's numbers of an iteration to those of the others, and report."""
        assert self._totals is not None
        self._report(own[0], *self._totals.gather(*own))

    def _report(self, iteration: int, square_sum: float, loss: float) -> None:
        if not self._ground.is_first:
            return
        job, norm, now = self._ground.job, square_sum**0.5, time.time()
        bits = bits_per_byte(loss, self._corpus.tokens_per_byte(iteration, job.cell.global_batch))
        self.losses.add(iteration, loss, norm, bits)
        self._progress.add(iteration, loss, norm)
        self._sound(iteration + 1)
        if self._board is not None:
            self._board.note(iteration, (loss, norm, bits), now)
        with self._changed:
            self._reported = iteration + 1
            self._changed.notify_all()
        self._ground.events.put(step_event(job, iteration, loss, norm, now, bits_per_byte=bits))
