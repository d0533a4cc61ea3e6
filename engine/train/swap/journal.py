"""What the tracker has decided, as records that its replicas keep together (engine.control.consensus).

Workers know the rest themselves: the step of their weights, the mini-batches in their gradients, the sum that
they hold. So whoever leads next needs these records and the workers that are left, and no machine's memory.
"""

import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from engine.inputs import Document, Index
from engine.job.events.base import BaseEvent
from engine.job.events.training import Batch, Workers
from engine.job.job import TrainJob
from engine.job.losses import step_event


class Committed(Document):
    """All members have the sum of `epoch`: the step is taken. `units`: whose gradients are in it."""

    kind: Literal["committed"] = "committed"
    step: Index
    epoch: Index
    units: dict[str, tuple[Index, ...]]
    redone: Index
    last: bool


class Stepped(Document):
    """The loss and gradient norm of a step; `bits_per_byte` as in the step's event."""

    kind: Literal["stepped"] = "stepped"
    step: Index
    loss: float
    grad_norm: float
    bits_per_byte: float | None = None


class Changed(Document):
    """Workers came or went before `step` was taken; `workers` are there now."""

    kind: Literal["changed"] = "changed"
    step: Index
    workers: tuple[Index, ...]
    joined: tuple[Index, ...] | None = None
    left: tuple[Index, ...] | None = None
    lost: tuple[Index, ...] | None = None


class Measured(Document):
    """What a worker measured until it left or the run ended."""

    model_config = Document.model_config | {"ser_json_inf_nan": "constants"}

    kind: Literal["measured"] = "measured"
    rank: Index
    stats: dict[str, Any]


class Over(Document):
    """The run has ended, well or because of `failure`."""

    kind: Literal["over"] = "over"
    failure: str | None = None


Record = Committed | Stepped | Changed | Measured | Over
_RECORDS: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def record_from(values: dict[str, Any]) -> Record:
    """The record that `values` is. Raises ValueError."""
    return _RECORDS.validate_python(values)


class Journal:
    """The records so far, added up.

    Attributes
    ----------
    committed : of the last step that was taken. measured : by rank.
    gone : ranks that left or were lost; none of them returns.
    over : the end of the run, once it has come.
    """

    def __init__(self, job: TrainJob) -> None:
        self._job = job
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.bits: list[float | None] = []
        self.changes: list[dict[str, Any]] = []
        self.redone = 0
        self.committed: Committed | None = None
        self.stepped = -1  # the last step whose loss is known
        self.workers: tuple[int, ...] = tuple(range(job.cell.pipelines))
        self.gone: set[int] = set()
        self.measured: dict[int, dict[str, Any]] = {}
        self.over: Over | None = None

    def add(self, record: Record) -> None:
        """Add a record that counts."""
        match record:
            case Committed():
                self.committed = record
                self.redone += record.redone
            case Stepped() if record.step > self.stepped:
                self.stepped = record.step
                self.losses.append(record.loss)
                self.norms.append(record.grad_norm)
                self.bits.append(record.bits_per_byte)
            case Changed():
                self.workers = record.workers
                self.gone.update((*(record.left or ()), *(record.lost or ())))
                self.changes.append(record.model_dump(mode="json", exclude={"kind"}, exclude_none=True))
            case Measured():
                self.measured[record.rank] = record.stats
            case Over():
                self.over = record

    def events(self, record: Record) -> Iterator[BaseEvent]:
        """What whoever leads tells of a record that is to be added; a successor may tell it again."""
        match record:
            case Committed(step=step, units=units, redone=redone):
                yield Batch(iteration=step, units=units, redone=redone, t=time.time())
            case Stepped(step=step, loss=loss, grad_norm=norm, bits_per_byte=bits) if step > self.stepped:
                yield step_event(self._job, step, loss, norm, time.time(), bits_per_byte=bits)
            case Changed():
                yield Workers(**record.model_dump(exclude={"kind"}), t=time.time())
