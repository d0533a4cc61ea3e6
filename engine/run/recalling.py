"""In a run that recovers, each step's state is kept in memory. The next attempt begins with it."""

import math

from engine.run.building import Ground, Trained
from engine.run.reports import StepReports
from engine.train.checkpoint.keeper import Keeper
from engine.train.recovery.memory import Header
from engine.train.recovery.resume import UNTOLD, ResumeState, Steps
from engine.train.validation import Validation


class Recalling:
    """The memory of a rank, with what it has to bring back to where the last attempt had come."""

    def __init__(
        self,
        resume_state: ResumeState,
        ground: Ground,
        trained: Trained,
        keeper: Keeper,
        reports: StepReports,
        validation: Validation | None,
    ) -> None:
        self._resume_state, self._ground, self._keeper = resume_state, ground, keeper
        self._reports, self._validation = reports, validation
        self._steps = Steps(
            resume_state, ground.me.rank, list(trained.stage.parameters()), trained.optimizer, ground.device
        )

    def begin(self) -> Header | None:
        """Put back the state with which this attempt begins; None where it is not in memory."""
        for iteration, metrics in self._resume_state.metrics:
            self._reports.losses.add(iteration, *metrics)
        if self._validation:
            self._validation.results.extend(self._resume_state.validation)
        header = self._steps.recalled(self._ground.mesh.endpoint)
        if header is None:
            if self._keeper.first_step:  # of a checkpoint: kept as the state after any step is
                self._steps.keep(self._keeper.first_step, self._keeper.resumed_from, *UNTOLD)
            return None
        retell = self._resume_state.attempt.retell and not math.isnan(header.loss)
        self._reports.begin_at(header.step - retell)
        self._keeper.sound(header.step - retell)
        if retell:
            self._reports.contribute(header.step - 1, header.square_sum, header.loss)
        return header

    def make_up(self, step: int) -> None:
        """Do what the last attempt left undone after the step with which this one begins."""
        if not self._resume_state.in_memory or not step:
            return
        if self._resume_state.attempt.saved_step < step:
            self._keeper.after(step)
        if self._validation and self._resume_state.attempt.validated_step < step:
            self._validation.after(step)

    def keep(self, step: int, resumed_from: int | None, square_sum: float, loss: float) -> None:
        """Keep the state after `step` steps; what rides with it may only be what is lost with one more."""
        self._reports.wait_until_reported(step - 1)
        self._steps.keep(step, resumed_from, square_sum, loss)
