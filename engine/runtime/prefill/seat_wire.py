"""What the desk of a data centre and the ranks there say to each other: JSON lines after the handshake.

Times are monotonic seconds on the desk's clock. A prompt's ids go to the rank chunk by chunk.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from engine.inputs import Count, Document, Index, NonNegative, Number
from engine.prefill.desk import Sampling
from engine.prefill.handover import StageCache

MOST_LINE_BYTES = 8 * 1024 * 1024


class Row(Document):
    """A chunk to run: `ids` behind `done` tokens of a prompt of `total`.

    iteration, op : the training op before which it runs.  begin_s : not earlier.  until_s : it must be done.
    sampling : how the first token is drawn, where these are the prompt's last ids.
    lease_s : of the cache, from its first chunk on, and again from its last.
    keep : the cache is offered to a decode worker; otherwise it is freed when the token is made.
    """

    kind: Literal["row"] = "row"
    request: str
    done: Index
    ids: tuple[Index, ...]
    total: Count
    iteration: Index
    op: Index
    begin_s: Number
    until_s: Number
    sampling: Sampling | None = None
    lease_s: NonNegative
    keep: bool = False

    @property
    def final(self) -> bool:
        return self.done + len(self.ids) == self.total


class Cancel(Document):
    """Chunks of a request from token `done` on that have not begun are not to be run."""

    kind: Literal["cancel"] = "cancel"
    request: str
    done: Index


class Drop(Document):
    """Nothing of the request is wanted any more: its chunks, its cache."""

    kind: Literal["drop"] = "drop"
    request: str


class OpEnded(Document):
    """A training op ran: its place in the order of the GPU. The last one lasts until the next iteration.

    waited_s : that it was due and a chunk still ran.
    """

    kind: Literal["op"] = "op"
    iteration: Index
    op: Index
    start_s: Number
    end_s: Number
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
    """A chunk was not begun. `late`: training came first, or would have. `kv_space`: no room for its cache.
    `gone`: the rank holds nothing of what came before it."""

    kind: Literal["late"] = "late"
    request: str
    done: Index
    why: Literal["late", "kv_space", "gone"]


_TO_SEAT: TypeAdapter[Any] = TypeAdapter(Annotated[Row | Cancel | Drop, Field(discriminator="kind")])
_FROM_SEAT: TypeAdapter[Any] = TypeAdapter(
    Annotated[OpEnded | ChunkRan | ChunkLate, Field(discriminator="kind")]
)


def line_of(message: Document) -> bytes:
    """The message as one JSON line."""
    return message.model_dump_json(exclude_none=True).encode() + b"\n"


def to_seat(line: bytes) -> Row | Cancel | Drop:
    """Raises ValueError: no such message."""
    message: Row | Cancel | Drop = _TO_SEAT.validate_python(_object(line))
    return message


def from_seat(line: bytes) -> OpEnded | ChunkRan | ChunkLate:
    """Raises ValueError: no such message."""
    message: OpEnded | ChunkRan | ChunkLate = _FROM_SEAT.validate_python(_object(line))
    return message


def _object(line: bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
