"""What all events have in common: their base classes, and the types of their fields.

An event is one JSON object on its whole path: a line from a rank to its host and from the host to its owner,
an entry of the node's stream on the broker.
"""

from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from engine.inputs import FORGETFUL

MOST = 2**31 - 1  # of a rank, an iteration or a count: a column of the site's database holds no more
LATEST = 1e11  # Unix seconds
T = TypeVar("T")


def _is_none(value: Any) -> bool:
    return value is None


def _clean(value: Any) -> Any:
    """Text that UTF-8 and PostgreSQL can hold: neither half a surrogate pair nor NUL."""
    if not isinstance(value, str):
        return value
    text = value if value.isascii() else value.encode(errors="replace").decode()
    return text.replace("\x00", "\ufffd")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


Text = Annotated[str, BeforeValidator(_clean)]
Ordinal = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Unix = Annotated[float, Field(strict=True, gt=0, lt=LATEST)]
Amount = Annotated[float, Field(strict=True, ge=0, lt=LATEST)]
# A figure that training computes; null where it is not finite, which JSON cannot say.
Figure = Annotated[Annotated[float, Field(strict=True)] | None, BeforeValidator(_finite)]
Number = Annotated[float, Field(strict=True, gt=-1e15, lt=1e15)]
Yes = Annotated[bool, Field(strict=True)]
# Of a field that is not there instead of null.
LeftOut = Annotated[T | None, Field(exclude_if=_is_none)]


class Part(BaseModel):
    """Base of events and of what is in them: frozen; a field that a newer version adds is ignored."""

    model_config = ConfigDict(
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        serialize_by_alias=True,
        defer_build=True,
        **FORGETFUL,
    )


class BaseEvent(Part):
    """Base of every event.

    vital : whether an agent keeps it whatever happens; others are dropped, and counted, past its bounds.
    key : fields that name it: an event may come more than once, and readers ignore one whose key they know.
    """

    vital: ClassVar[bool] = False
    key: ClassVar[tuple[str, ...]] = ()

    node: LeftOut[Text] = None
    """The node whose agent sent it; the agent adds it."""
    id: LeftOut[Annotated[int, Field(strict=True, ge=1, lt=2**62)]] = None
    """Number of the event on its node; the agent adds it."""

    def to_json(self) -> bytes:
        """The event as it travels: one JSON object without a line break."""
        return self.model_dump_json().encode()

    def to_dict(self) -> dict[str, Any]:
        """The same object as Python has it."""
        return self.model_dump(mode="json")

    def sent_by(self, node: str, number: int) -> Self:
        """The event as the agent of `node` sends it, as its `number`-th."""
        return self.model_copy(update={"node": node, "id": number})


class OfRun(BaseEvent):
    """Base of the events of a run."""

    run: LeftOut[Text] = None
    """Id of the run. A rank leaves it out towards its host, which adds it."""
    generation: LeftOut[Ordinal] = None
    """Generation of the run: it grows with each start of all ranks."""

    def of(self, run: str, generation: int, start: int) -> Self:
        """The event as one of a run, whose `generation` this machine has started so many times."""
        return self.model_copy(update={"run": run, "generation": generation})


class OfRank(OfRun):
    """Base of the events of one rank."""

    rank: Ordinal
    """The rank that it is about, or that reports it for all."""


Emit = Callable[[BaseEvent], None]  # takes an event on
