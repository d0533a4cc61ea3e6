"""What a swap run's tracker and workers, and the replicas of the tracker, say to each other."""

from typing import Any, Literal

from engine.control.consensus import Append, Appended, RequestVote, Vote
from engine.control.messages import Messages
from engine.inputs import Document, Index


class Address(Document):
    """Where a worker meets others: the port of its rendezvous store, and host and port of its transport."""

    store: Index
    endpoint: tuple[str, int] | None = None


class Member(Address):
    """A worker that takes part in a sum."""

    rank: Index


# What workers say.


class Seek(Document):
    """It looks for the tracker: a replica that does not lead closes the connection."""

    kind: Literal["seek"] = "seek"


class Hello(Document):
    """What it has, and where others meet it; said once it is ready, and again to a new tracker.

    step : with which its weights begin; None where it joins and has none.
    units : of that step, in its gradients. epoch : the last that it heard of. holds : whether it has its sum.
    loss, grad_norm : of the step before. going : it was told to leave.
    """

    kind: Literal["hello"] = "hello"
    step: Index | None = None
    address: Address
    units: tuple[Index, ...] = ()
    epoch: Index = 0
    holds: bool = False
    loss: float | None = None
    grad_norm: float | None = None
    going: bool = False


class Ready(Document):
    """It has taken a step, whose loss and norm these are, or taken over the weights of one that is there."""

    kind: Literal["ready"] = "ready"
    loss: float | None = None
    grad_norm: float | None = None


class Done(Document):
    """These mini-batches are in its gradients."""

    kind: Literal["done"] = "done"
    units: tuple[Index, ...]


class Voted(Document):
    """It has the sum of an epoch."""

    kind: Literal["voted"] = "voted"
    epoch: Index


class Failed(Document):
    """The sum of an epoch failed here."""

    kind: Literal["failed"] = "failed"
    epoch: Index
    why: str


class Stats(Document):
    """What it measured: its last message, answered with Bye."""

    # As json.dumps has it: a median of nothing is NaN.
    model_config = Document.model_config | {"ser_json_inf_nan": "constants"}

    kind: Literal["stats"] = "stats"
    stats: dict[str, Any]


# What the tracker says.


class TrackerAddress(Document):
    """Where a replica of the tracker listens; `rank` is the lowest of its machine."""

    rank: Index
    address: tuple[str, int]


class Welcome(Document):
    """Here is the tracker. `trackers`: where to look for it when it is lost, once that is known."""

    kind: Literal["welcome"] = "welcome"
    trackers: tuple[TrackerAddress, ...] = ()


class Take(Document):
    """Compute these mini-batches of a step."""

    kind: Literal["take"] = "take"
    step: Index
    units: tuple[Index, ...]


class Sum(Document):
    """Sum the gradients of a step with the other members."""

    kind: Literal["sum"] = "sum"
    step: Index
    epoch: Index
    members: tuple[Member, ...]


class Admit(Document):
    """Take over the weights with which a step begins from member `source`, or give them."""

    kind: Literal["admit"] = "admit"
    step: Index
    epoch: Index
    members: tuple[Member, ...]
    source: Index


class Abort(Document):
    """The sum at hand is void."""

    kind: Literal["abort"] = "abort"


class Admitted(Document):
    """All members have the weights with which a step begins."""

    kind: Literal["admitted"] = "admitted"
    step: Index


class Commit(Document):
    """All members have the sum: take the step. `saver` writes checkpoints; `last`: the run ends with it."""

    kind: Literal["commit"] = "commit"
    step: Index
    saver: Index
    last: bool


class Leave(Document):
    """The run goes on without this worker."""

    kind: Literal["leave"] = "leave"


class End(Document):
    """The run is over."""

    kind: Literal["end"] = "end"


class Bye(Document):
    """What it measured is kept: it may go."""

    kind: Literal["bye"] = "bye"


class Abandon(Document):
    """The run has failed."""

    kind: Literal["abandon"] = "abandon"
    why: str


# What replicas say to each other, next to the messages of their consensus.


class Join(Document):
    """Here is a replica, to the first one."""

    kind: Literal["join"] = "join"
    tracker: TrackerAddress


class Roster(Document):
    """Where all replicas are, the first one first: from now on they keep the log together."""

    kind: Literal["roster"] = "roster"
    trackers: tuple[TrackerAddress, ...]


class EndAsked(Document):
    """The run is to end after the step at hand, as the sender's machine was told."""

    kind: Literal["end-asked"] = "end-asked"


FromWorker = Seek | Hello | Ready | Done | Voted | Failed | Stats
FromTracker = Welcome | Take | Sum | Admit | Abort | Admitted | Commit | Leave | End | Bye | Abandon
FromReplica = Join | Roster | RequestVote | Vote | Append | Appended | EndAsked | Abandon
ToReplica = FromWorker | FromReplica
FROM_TRACKER: Messages[FromTracker] = Messages(FromTracker)
FROM_REPLICA: Messages[FromReplica] = Messages(FromReplica)
TO_REPLICA: Messages[ToReplica] = Messages(ToReplica)
LISTENERS = "swap"  # in identities
