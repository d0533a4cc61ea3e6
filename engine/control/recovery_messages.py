"""What the hosts of a run that recovers say to each other."""

from typing import Annotated, Literal

from pydantic import Field

from engine.control.messages import Messages
from engine.inputs import Document, Index
from engine.job.launch import RankAssignment
from engine.job.recovery.attempt import Attempt, EndedRank
from engine.job.recovery.layout import Layout
from engine.job.recovery.plan import Saved


class MachineState(Document):
    """What a machine has.

    held : by local rank, the steps after which its state is in memory.  attempt : the last that began here.
    saved : the last checkpoint that it knows of. lost_at : Unix time at which it lost the leading host, or 0.
    layout : of that attempt, where it is another than that of the launch.
    """

    held: dict[int, tuple[Index, ...]]  # JSON has the ranks as strings
    attempt: Index
    saved: Saved | None = None
    lost_at: float
    layout: Layout | None = None


# What the other hosts say to the leading one.


class Hello(MachineState):
    """The first message of a host: the ranks of its machine in order, and what it has.

    reserve : those of its GPUs that are in reserve, which the leading host may not know yet.
    """

    kind: Literal["hello"] = "hello"
    ranks: Annotated[tuple[Index, ...], Field(min_length=1)]
    reserve: tuple[RankAssignment, ...] = ()


class RanksEnded(Document):
    """Ranks of the machine ended before their time."""

    kind: Literal["ended"] = "ended"
    dead: tuple[EndedRank, ...]


class Halted(MachineState):
    """No rank runs on the machine any more. `peer_lost`: those that ended because they lost another one."""

    kind: Literal["halted"] = "halted"
    peer_lost: tuple[EndedRank, ...]


# What the leading host says.


class Welcome(Document):
    """It takes a host in."""

    kind: Literal["welcome"] = "welcome"


class Start(Document):
    """Start all ranks."""

    kind: Literal["start"] = "start"
    attempt: Attempt


class Halt(Document):
    """End all ranks, and say what is in memory."""

    kind: Literal["halt"] = "halt"


class CheckpointSaved(Document):
    """A checkpoint is complete."""

    kind: Literal["saved"] = "saved"
    saved: Saved


class Over(Document):
    """The result is there."""

    kind: Literal["over"] = "over"


class Leave(Document):
    """The run goes on without this machine."""

    kind: Literal["leave"] = "leave"
    why: str


class Fail(Document):
    """The run ends."""

    kind: Literal["fail"] = "fail"
    why: str


FromFollower = Hello | RanksEnded | Halted
FromLeader = Welcome | Start | Halt | CheckpointSaved | Over | Leave | Fail
FROM_FOLLOWER: Messages[FromFollower] = Messages(FromFollower)
FROM_LEADER: Messages[FromLeader] = Messages(FromLeader)
LISTENERS = "recovery"  # in identities
