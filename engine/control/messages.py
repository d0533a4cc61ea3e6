"""Messages of a control channel: documents that are told apart by their `kind`, one JSON object a line."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from engine.control.errors import ChannelLost
from engine.documents import read_json
from engine.inputs import FORGETFUL, Document


class Beat(Document):
    """A sign of life. Either side of any channel may send it, and nobody but the channel sees it."""

    kind: Literal["beat"] = "beat"


M = TypeVar("M", bound=Document)


class Messages(Generic[M]):
    """What one side of a channel may say: `union` of documents that each have a literal field `kind`."""

    def __init__(self, union: Any) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(
            Annotated[Beat | union, Field(discriminator="kind")], config=FORGETFUL
        )

    def read(self, line: bytes) -> M | Beat:
        """Return the message in a line.

        Raises
        ------
        ChannelLost
            There is no such message. The text does not quote the line: prompts are in some.
        """
        try:
            message: M | Beat = self._adapter.validate_python(read_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ChannelLost(f"an invalid message ({first['type']} at {where or 'its top'})") from None
        except ValueError:
            raise ChannelLost("an invalid message (no JSON)") from None
        return message


def line_of(message: Document) -> bytes:
    """The message as one JSON line."""
    return message.model_dump_json(exclude_none=True).encode() + b"\n"
