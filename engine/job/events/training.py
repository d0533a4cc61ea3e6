"""What ranks report of training."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field

from engine.job.events.base import MOST, Amount, Figure, LeftOut, OfRank, OfRun, Ordinal, Text, Unix, Yes
from engine.simulate.spans import Span


def _is_false(value: Any) -> bool:
    return not value


class RankState(StrEnum):
    """Where a rank stands. It goes forward only, but from and to `reserve`; the last four are ends."""

    RESERVE = "reserve"  # its GPU is held by a run that does not use it now (adapt.most_gpus)
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    LEFT = "left"  # out of a run that continues, of strategy swap or on fewer nodes

    @property
    def is_end(self) -> bool:
        """Whether nothing comes after it."""
        return self in (RankState.FINISHED, RankState.FAILED, RankState.STOPPED, RankState.LEFT)


class CheckpointState(StrEnum):
    """How the saving of a checkpoint ended, or what was found of one by a run that resumes."""

    SAVED = "saved"
    FAILED = "failed"
    TORN = "torn"  # not as it was written: a run that resumes passed it over


class Rank(OfRank):
    """The state of a rank changed."""

    vital = True
    key = ("run", "generation", "rank", "state")
    kind: Literal["rank"] = "rank"
    state: RankState
    """reserve (held, not used), starting, ready, running, finished, failed, stopped, or left: out of a run
    that continues."""
    detail: Text = ""
    """Why it ended: the last line of its output if it failed."""
    exit_code: Annotated[int, Field(strict=True, ge=-MOST, le=MOST)] | None = None
    """Status of its process; below 0: the signal that killed it."""
    pid: Ordinal | None = None
    """Id of its process."""
    gone: Annotated[Yes, Field(exclude_if=_is_false)] = False
    """Its host or agent ended too, so the site starts it again if the job recovers. Left out where false."""
    start: LeftOut[Annotated[int, Field(strict=True, ge=1, le=MOST)]] = None
    """Which start of the generation on this machine it belongs to; left out for the first."""
    t: Unix
    """When."""

    def of(self, run: str, generation: int, start: int) -> Self:
        """As in the base; a later start of the machine is named, so that what an earlier one says is late."""
        origin = {"run": run, "generation": generation, **({"start": start} if start > 1 else {})}
        return self.model_copy(update=origin)


class Spans(OfRank):
    """What a rank did in an iteration. With `tp` only the first rank of each stage sends it."""

    key = ("run", "generation", "rank", "iteration")
    kind: Literal["spans"] = "spans"
    iteration: Ordinal
    """The iteration."""
    start: Unix
    """Begin of the first op, Unix seconds."""
    end: Unix
    """End of the last op, Unix seconds."""
    spans: tuple[Span, ...]
    """Ops and transfers, times in Unix seconds, `bytes` on transfers; the sender reports a transfer."""
    attempt: LeftOut[Ordinal] = None
    """Number of the attempt, from 1, in a run that recovers."""

    def to_json(self) -> bytes:
        """As in the base; spans leave out the fields that do not apply to them."""
        return self.model_dump_json(exclude_none=True).encode()

    def to_dict(self) -> dict[str, Any]:
        """The same object as Python has it."""
        return self.model_dump(mode="json", exclude_none=True)


class Step(OfRun):
    """An iteration ended; one rank reports it for all."""

    vital = True
    key = ("run", "generation", "iteration")
    kind: Literal["step"] = "step"
    iteration: Ordinal
    """The iteration."""
    loss: Figure
    """Mean loss over the global batch, nats per token."""
    bits_per_byte: LeftOut[Figure] = None
    """The same in bits per byte of the text. Left out where the tokens do not say their text."""
    grad_norm: Figure
    """Norm of all gradients before clipping."""
    learning_rate: Figure
    """The learning rate of the iteration."""
    tokens: Ordinal
    """Tokens of the global batch."""
    t: Unix
    """End of the iteration."""


class Validation(OfRank):
    """The loss on held-out text was taken."""

    vital = True
    key = ("run", "generation", "step")
    kind: Literal["validation"] = "validation"
    step: Annotated[Ordinal, Field(ge=1)]
    """Steps done."""
    loss: Figure
    """Mean loss over the held-out sequences, nats per token."""
    bits_per_byte: LeftOut[Figure] = None
    """The same in bits per byte of the text. Left out where the tokens do not say their text."""
    t: Unix
    """When."""


class Boundary(OfRank):
    """The run was asked to end after a whole iteration, and this is the one."""

    vital = True
    key = ("run", "generation")
    kind: Literal["boundary"] = "boundary"
    iteration: Ordinal
    """The last iteration."""
    t: Unix
    """When."""


class Checkpoint(OfRank):
    """A checkpoint was saved, or could not be; or one was found torn."""

    vital = True
    key = ("run", "generation", "where", "state")
    kind: Literal["checkpoint"] = "checkpoint"
    step: Ordinal
    """Steps done."""
    state: CheckpointState
    """saved, failed, or torn: files are not as they were written, so a run that resumes passed it over."""
    where: Text
    """Folder or URL of the checkpoint."""
    bytes: LeftOut[Annotated[int, Field(strict=True, ge=0, lt=2**62)]] = None
    """Size of a saved checkpoint."""
    seconds: LeftOut[Amount] = None
    """Time to write the last part of a saved checkpoint, in the background."""
    detail: Text = ""
    """Why it failed or what is torn; of a saved one, why older ones could not be removed."""
    removed: Annotated[tuple[Text, ...], Field(exclude_if=_is_false)] = ()
    """Folders or URLs of older checkpoints that were removed after this save. Left out where empty."""
    t: Unix
    """When."""


class Log(OfRank):
    """A line that a rank wrote to standard output or standard error."""

    key = ("run", "rank", "id")
    kind: Literal["log"] = "log"
    line: Text
    """The line without its end."""
    t: Unix
    """When."""


class Result(OfRun):
    """The outcome of a run: the `Out:` of `meridian train` as far as that rank knows it. The last event."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=True)
    vital = True
    key = ("run", "generation")
    kind: Literal["result"] = "result"

    @property
    def outcome(self) -> dict[str, Any]:
        """The fields of the result itself."""
        return dict(self.model_extra or {})


class Batch(OfRun):
    """Strategy swap: whose units of a batch the gradients are of."""

    key = ("run", "generation", "iteration")
    kind: Literal["batch"] = "batch"
    iteration: Ordinal
    """The iteration."""
    units: dict[Text, tuple[Ordinal, ...]]
    """Units of the batch by the rank that computed them."""
    redone: Ordinal
    """Units that were computed again because a worker was lost."""
    t: Unix
    """When."""


class Workers(OfRun):
    """Strategy swap: the workers changed."""

    key = ("run", "generation", "step")
    kind: Literal["workers"] = "workers"
    step: Ordinal
    """Steps done before."""
    workers: tuple[Ordinal, ...]
    """Ranks that work now."""
    joined: LeftOut[tuple[Ordinal, ...]] = None
    """Ranks that joined."""
    left: LeftOut[tuple[Ordinal, ...]] = None
    """Ranks that left as the job says."""
    lost: LeftOut[tuple[Ordinal, ...]] = None
    """Ranks that ended before their time."""
    t: Unix
    """When."""


TrainingEvent = Rank | Spans | Step | Validation | Boundary | Checkpoint | Log | Result | Batch | Workers
