"""The errors and non-results that every room of the engine shares."""

import reprlib
from dataclasses import dataclass
from typing import Literal


class InputError(ValueError):
    """Bad input: names the field, the value given and what is allowed.

    Commands print it as one line on stderr and exit with 2; forms show it at the field.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        where = field if field.isprintable() else repr(field)[1:-1]  # a user's own name for a field: one line
        shown = () if value is None and where else (_shown(value),)  # None: nothing was given
        super().__init__(": ".join((*(where and (where,)), *shown, allowed)))


def reason_of(error: Exception) -> str:
    """What went wrong, in a few words, for a message that names the file or the address itself."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """A result, not an error: no answer exists, and `reason` says which limit stands against it.

    stopped_by : why a search ended without an answer; None where nothing was searched.
    """

    reason: str
    stopped_by: Literal["proven", "time", "cancelled"] | None = None


# Bounded in depth and width: YAML's aliases can make a small file a value too large to write out.
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxtuple, _REPR.maxdict = 3, 24, 24, 12
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 200


def _shown(value: object, longest: int = 80) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"
