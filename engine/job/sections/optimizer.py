"""`optimizer` of a training job: how long it trains, how fast, and when a loss is taken for a failure."""

from typing import Annotated, Literal

from pydantic import Field

from engine.inputs import Count, Document, Index, NonNegative, Number, Positive
from engine.job.learning_rate import LearningRateSchedule
from engine.job.sections.limits import Steps

Beta = Annotated[Number, Field(ge=0, lt=1)]


class SpikeSettings(Document):
    """A loss over `factor` times the median of the last `window` ends the run; a window must be full."""

    factor: Annotated[Number, Field(gt=1, le=1e6)] = 3.0
    window: Annotated[Count, Field(ge=2, le=100_000)] = 50


class OptimizerSection(Document):
    """The steps of AdamW.

    steps : iterations of the run.  lr : learning rate.  clip : largest norm of all gradients; None: any.
    betas, eps : AdamW's, by default torch's.
    weight_decay_on : what `weight_decay` applies to: all parameters; matrices, which are all but norms and
        biases; or these without the embedding.
    seed : of the weights at first and of the order of the text.
    spike : the rule by which a loss ends the run; false: none.
    """

    steps: Steps
    lr: Annotated[Positive, Field(le=1e3)] = 1e-3
    lr_schedule: LearningRateSchedule = LearningRateSchedule()
    weight_decay: Annotated[NonNegative, Field(le=1)] = 0.01
    weight_decay_on: Literal["all", "matrices", "matrices_without_embedding"] = "all"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Annotated[Positive, Field(le=1)] = 1e-8
    seed: Annotated[Index, Field(le=2**31 - 1)] = 0
    clip: Annotated[Number, Field(gt=0, le=1e15)] | None = None
    spike: SpikeSettings | Literal[False] = SpikeSettings()
