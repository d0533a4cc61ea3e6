"""What a swap run's tracker and workers say to each other."""

from typing import Any, Literal

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


class Hello(Document):
    """The first message: the step with which its weights begin, and where others meet it."""

    kind: Literal["hello"] = "hello"
    step: Index
    address: Address


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
    """What it measured: its last message."""

    # As json.dumps has it: a median of nothing is NaN.
    model_config = Document.model_config | {"ser_json_inf_nan": "constants"}

    kind: Literal["stats"] = "stats"
    stats: dict[str, Any]


# What the tracker says.


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


FromWorker = Hello | Ready | Done | Voted | Failed | Stats
FromTracker = Take | Sum | Admit | Abort | Admitted | Commit | Leave | End
FROM_WORKER: Messages[FromWorker] = Messages(Hello, Ready, Done, Voted, Failed, Stats)
FROM_TRACKER: Messages[FromTracker] = Messages(Take, Sum, Admit, Abort, Admitted, Commit, Leave, End)
LISTENERS = "swap"  # in identities
