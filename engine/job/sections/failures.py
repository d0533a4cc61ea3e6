"""`failures` of a training job: what it does when something is lost, or slower than planned."""

from typing import Annotated, Literal

from pydantic import Field

from engine.inputs import Count, Document, Flag, Number, Positive


class RecoverySettings(Document):
    """A run that goes on by itself after a failure: a rank, a machine, a link or a data centre that is lost.

    attempts : most recoveries within an hour; one more failure ends the run.
    wait_s : how long a machine that is gone is waited for.
    smaller : whether the run then goes on without it, on the nodes that are left; else it fails.
    layers_per_gpu : most layers that a GPU can hold, should there be fewer stages; left out: those of the
        largest stage, so that stages stay as they are.
    """

    attempts: Annotated[Count, Field(le=10_000)] = 3
    wait_s: Annotated[Positive, Field(le=86_400)] = 120.0
    smaller: Flag = True
    layers_per_gpu: Annotated[Count, Field(le=100_000)] | None = None


class AdaptSettings(Document):
    """A run that re-plans when ops or transfers differ from their planned times.

    deviation : share by which a time must be off before it counts (0.1: by 10 %).
    iterations : for how many iterations in a row, in the same direction.
    policy : the policy of the new plan: the job's own policy (same), or auto, which searches.
    layout : whether the run may also move to other stages, pipelines and data centres, or with `devices` to
        another placement, where that gains more over the iterations that are left than it costs. Needs
        recovery and checkpoints.
    most_gpus : most GPUs that the run holds, with those in reserve, which a move may take; left out: those
        of the cell, and a GPU that a move leaves is given back.
    forget_s : how long the last measurement of a GPU or link counts that the run does not use; after that it
        counts as in the document.
    """

    deviation: Annotated[Number, Field(ge=0.01, le=10)] = 0.1
    iterations: Annotated[Count, Field(le=1000)] = 3
    policy: Literal["same", "auto"] = "same"
    layout: Flag = False
    most_gpus: Annotated[Count, Field(le=4096)] | None = None
    forget_s: Annotated[Positive, Field(le=31_536_000)] = 3600.0


class FailuresSection(Document):
    """What a run survives: nothing, where a part is left out."""

    recovery: RecoverySettings | None = None
    adapt: AdaptSettings | None = None
