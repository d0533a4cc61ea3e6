"""What the coordinator of a data centre and the ranks there say to each other: messages of a control channel.

Times are monotonic seconds on the coordinator's clock. A prompt's ids go to the rank of the
first stage, chunk by chunk.
"""

from typing import Literal

from engine.control.messages import Messages
from engine.inputs import Count, Document, Id, Index, NonNegative, Number
from engine.prefill.handover import DecodeReceiver, StageCache
from engine.prefill.messages import Sampling
from engine.serve.chunks import PrefillChunk


class RunChunk(PrefillChunk):
    """Run a chunk in a bubble.

    ids : of its tokens, for the first stage; the others run what the stage before hands on.
    iteration, op : the training op before which it runs.  begin_s : not earlier.  until_s : it must be done.
    sampling : how the first token is drawn, by the last stage, where these are the prompt's last tokens.
    lease_s : of the cache, from its first chunk on, and again from its last.
    keep : the cache is offered to a decode worker; otherwise the last stage frees it when the token is made,
        and the coordinator says so to the others.
    """

    kind: Literal["run"] = "run"
    ids: tuple[Id, ...] = ()
    iteration: Index
    op: Index
    begin_s: Number
    until_s: Number
    sampling: Sampling | None = None
    lease_s: NonNegative
    keep: bool = False


class Cancel(Document):
    """Chunks of a request from token `done` on that have not begun are not to be run."""

    kind: Literal["cancel"] = "cancel"
    request: str
    done: Index


class Drop(Document):
    """Nothing of the request is wanted any more: its chunks, its cache."""

    kind: Literal["drop"] = "drop"
    request: str


class PushCache(Document):
    """Send a stage's part of a complete cache to a receiver; `CachePushed` answers.

    stage, stages : which part it is.  blocks : of the cache.  token : the first, which prefill made.
    """

    kind: Literal["push"] = "push"
    request: str
    stage: Index
    stages: Count
    blocks: tuple[Index, ...]
    token: Index
    to: DecodeReceiver


class OpsChanged(Document):
    """From iteration `since` on a GPU has `ops` training ops in another order. New coordinators get it."""

    kind: Literal["ops"] = "ops"
    since: Index
    ops: Count


class IterationBegun(Document):
    """The first training op of an iteration has run; it began at `start_s`. From the first GPU alone."""

    kind: Literal["begun"] = "begun"
    iteration: Index
    start_s: Number


class IterationRan(Document):
    """When a GPU's training ops ran, in its order. The last one lasts until the next iteration.

    waited_s : that ops were due and a chunk still ran, together.
    """

    kind: Literal["iteration"] = "iteration"
    iteration: Index
    starts_s: tuple[Number, ...]
    ends_s: tuple[Number, ...]
    waited_s: NonNegative = 0.0


class ChunkRan(Document):
    """A chunk ran. Of a prompt's last one: the token drawn, and where the cache lies if it is kept."""

    kind: Literal["ran"] = "ran"
    request: str
    done: Index
    tokens: Count
    start_s: Number
    end_s: Number
    token: Index | None = None
    cache: StageCache | None = None


class ChunkLate(Document):
    """A chunk was not begun. `late`: training came first, or would have, or the stage before did not hand it
    on in time. `kv_space`: no room for its cache.
    `gone`: the rank holds nothing of what came before it."""

    kind: Literal["late"] = "late"
    request: str
    done: Index
    why: Literal["late", "kv_space", "gone"]


class CachePushed(Document):
    """A receiver has a stage's part of a cache, or `error` says why it has not. The stage has freed it."""

    kind: Literal["pushed"] = "pushed"
    request: str
    error: str = ""


FromPrefillWorker = OpsChanged | IterationBegun | IterationRan | ChunkRan | ChunkLate | CachePushed
ToPrefillWorker = RunChunk | Cancel | Drop | PushCache
FROM_PREFILL_WORKER: Messages[FromPrefillWorker] = Messages(FromPrefillWorker)
TO_PREFILL_WORKER: Messages[ToPrefillWorker] = Messages(ToPrefillWorker)
