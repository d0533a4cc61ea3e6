"""The learning rate of each step: a linear warm-up, then constant or down to a share of it."""

import math
from typing import Annotated, Literal

from pydantic import Field

from engine.inputs import Count, Document, Index, Number


class LearningRateSchedule(Document):
    """The learning rate over the steps of a run.

    warmup_steps : steps in which it rises from lr / warmup_steps to lr.
    decay : how it goes on: constant; cosine (half a period) or linear, from lr after the warm-up to
        `final` × lr at the last step; or wsd (warm-up, stable, decay; Hu et al., MiniCPM, 2024), constant and
        down in the last `cooldown_steps` alone.
    decay_steps : the step at which the decay ends; the rate stays there. None: the last step of the run.
    cooldown_steps, cooldown : of wsd, how many steps the decay takes, and its shape; 1-sqrt is 1 − √progress
        (Hägele et al. 2024).
    on_resume : of a run that resumes: rebuild follows lr and this schedule over all steps of the run; keep
        goes on with the lr and the schedule of the checkpoint.
    """

    warmup_steps: Annotated[Index, Field(le=1_000_000_000)] = 0
    decay: Literal["constant", "cosine", "linear", "wsd"] = "constant"
    final: Annotated[Number, Field(ge=0, le=1)] = 0.1
    decay_steps: Annotated[Count, Field(le=1_000_000_000)] | None = None
    cooldown_steps: Annotated[Count, Field(le=1_000_000_000)] | None = None
    cooldown: Literal["linear", "cosine", "1-sqrt"] = "linear"
    on_resume: Literal["rebuild", "keep"] = "rebuild"

    def rate(self, lr: float, step: int, steps: int) -> float:
        """The learning rate of `step`, counted from 0, in a run of `steps`."""
        if step < self.warmup_steps:
            return lr * (step + 1) / self.warmup_steps
        if self.decay == "constant":
            return lr
        last = (self.decay_steps or steps) - 1
        begin = last - self.cooldown_steps if self.cooldown_steps else self.warmup_steps
        progress = min(1.0, max(0, step - begin) / max(1, last - begin))
        return lr * (self.final + (1 - self.final) * self._left(progress))

    def _left(self, progress: float) -> float:
        """The share of the way from lr to final × lr that is left, by the share of the decay's steps done."""
        match self.cooldown if self.decay == "wsd" else self.decay:
            case "linear":
                return 1 - progress
            case "1-sqrt":
                return 1 - math.sqrt(progress)
        return (1 + math.cos(math.pi * progress)) / 2
