"""`persistence` of a training job: where checkpoints go, and the one that the run starts from."""

from typing import Annotated

from pydantic import Field

from engine.inputs import Count, Document, Flag, Positive
from engine.job.sections.limits import PathName, Steps


class CheckpointSettings(Document):
    """Location and interval of checkpoints.

    dir : a folder that all nodes share, or a URL that fsspec opens.
    every : steps; the last step is saved too.
    keep : how many stay; the oldest go.
    max_gb : the oldest also go while all together are larger (10^9 bytes); the latest always stays.
    """

    dir: PathName
    every: Steps
    keep: Annotated[Count, Field(le=100_000)] = 3
    max_gb: Positive | None = None

    @property
    def most_bytes(self) -> float:
        """`max_gb` in bytes; infinite where not given."""
        return float("inf") if self.max_gb is None else self.max_gb * 1e9


class PersistenceSection(Document):
    """The checkpoints of a job.

    resume : true: go on from the latest one in `checkpoint.dir`; or the path of one.
    """

    checkpoint: CheckpointSettings | None = None
    resume: Flag | PathName | None = None
