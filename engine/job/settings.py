"""Parts of a training job's document: checkpoints, validation text, and loss spikes."""

from typing import Annotated, Literal

from pydantic import Field

from engine.inputs import Count, Document, Flag, Number, Positive

Steps = Annotated[Count, Field(le=1_000_000_000)]


class CheckpointSettings(Document):
    """Location and interval of checkpoints.

    dir : a folder that all nodes share, or a URL that fsspec opens.
    every : steps; the last step is saved too.
    keep : how many stay; the oldest go.
    max_gb : the oldest also go while all together are larger (10^9 bytes); the latest always stays.
    """

    dir: Annotated[str, Field(min_length=1)]
    every: Steps
    keep: Annotated[Count, Field(le=100_000)] = 3
    max_gb: Positive | None = None

    @property
    def most_bytes(self) -> float:
        """`max_gb` in bytes; infinite where not given."""
        return float("inf") if self.max_gb is None else self.max_gb * 1e9


class ValidationSettings(Document):
    """Text that is never trained on, and how often its loss is taken.

    every : steps; the last step is followed by one too.
    share : of every file, at its end.
    sequences : the same ones each time.
    """

    every: Steps
    share: Annotated[Number, Field(gt=0, le=0.5)] = 0.05
    sequences: Annotated[Count, Field(le=1_000_000)] = 64


class SpikeSettings(Document):
    """A loss over `factor` times the median of the last `window` ends the run; a window must be full."""

    factor: Annotated[Number, Field(gt=1, le=1e6)] = 3.0
    window: Annotated[Count, Field(ge=2, le=100_000)] = 50


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


class TlsSettings(Document):
    """PEM files on every node, by the same paths: its own certificate and key, and the authority of all."""

    certificate: Annotated[str, Field(min_length=1)]
    key: Annotated[str, Field(min_length=1)]
    authority: Annotated[str, Field(min_length=1)]


class AdaptSettings(Document):
    """A run that re-plans when ops or transfers differ from their planned times.

    deviation : share by which a time must be off before it counts (0.1: by 10 %).
    iterations : for how many iterations in a row, in the same direction.
    policy : the policy of the new plan: the job's own policy (same), or auto, which searches.
    """

    deviation: Annotated[Number, Field(ge=0.01, le=10)] = 0.1
    iterations: Annotated[Count, Field(le=1000)] = 3
    policy: Literal["same", "auto"] = "same"
