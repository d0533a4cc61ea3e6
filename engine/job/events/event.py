"""The union of all events, and how one is read.

Ranks, their hosts, prefill coordinators and node agents report; agents, ingest and the site read. A kind is a
class in the file of its group, named in that file's union; docs/events.md is made of these files
(scripts/events_docs.py).
"""

from typing import Annotated, Any, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from engine.job.events.base import BaseEvent
from engine.job.events.gpus import Gpus
from engine.job.events.incidents import IncidentEvent
from engine.job.events.node import NodeEvent
from engine.job.events.prefill import PrefillEvent
from engine.job.events.training import TrainingEvent

MOST_BYTES = 8 << 20  # of an event as JSON
Event = TrainingEvent | IncidentEvent | PrefillEvent | NodeEvent | Gpus
KINDS: dict[str, type[BaseEvent]] = {cls.model_fields["kind"].default: cls for cls in get_args(Event)}
_ADAPTER: TypeAdapter[Event] = TypeAdapter(
    Annotated[Event, Field(discriminator="kind")], config=ConfigDict(defer_build=True)
)


def build_all() -> None:
    """Build the schemas of all kinds, 40 ms of a core; otherwise each is built when it is first used."""
    _ADAPTER.rebuild()
    for cls in KINDS.values():
        cls.model_rebuild()


def from_json(text: str | bytes) -> Event:
    """The event that `text` is.

    Raises
    ------
    ValueError
        It is none, or too long; the message names the kind, the first field that is wrong and what is wrong
        with it.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        raise ValueError(_reason(error)) from None


def from_dict(document: Any) -> Event:
    """As `from_json`, of what its JSON says."""
    try:
        return _ADAPTER.validate_python(document)
    except ValidationError as error:
        raise ValueError(_reason(error)) from None


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(map(str, first["loc"]))
    return f"{path}: {first['msg']}" if path else first["msg"]
