"""The learning rate of each step: a linear warm-up, then constant or down to a share along a cosine."""

import math
from typing import Annotated, Literal

from pydantic import Field

from engine.inputs import Count, Document, Index, Number


class LearningRateSchedule(Document):
    """The learning rate over the steps of a run.

    warmup_steps : steps in which it rises from lr / warmup_steps to lr.
    decay : constant, or cosine: half a period, from lr after the warm-up to `final` × lr at the last step.
    decay_steps : the step at which the decay ends; the rate stays there. None: the last step of the run.
    on_resume : of a run that resumes: rebuild follows lr and this schedule over all steps of the run; keep
        goes on with the lr and the schedule of the checkpoint.
    """

    warmup_steps: Annotated[Index, Field(le=1_000_000_000)] = 0
    decay: Literal["constant", "cosine"] = "constant"
    final: Annotated[Number, Field(ge=0, le=1)] = 0.1
    decay_steps: Annotated[Count, Field(le=1_000_000_000)] | None = None
    on_resume: Literal["rebuild", "keep"] = "rebuild"

    def rate(self, lr: float, step: int, steps: int) -> float:
        """The learning rate of `step`, counted from 0, in a run of `steps`."""
        if step < self.warmup_steps:
            return lr * (step + 1) / self.warmup_steps
        if self.decay == "constant":
            return lr
        left = max(1, (self.decay_steps or steps) - 1 - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / left)
        return lr * (self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2)
