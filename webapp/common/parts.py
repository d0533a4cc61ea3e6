"""What is deleted with a thing, for the page that asks first: each app registers its own when it starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of rows that are deleted with a thing.

    of, order : the kind of thing, as its pages call it, and where the rows stand among its parts.
    one, several : the rows in words, as in "log line", "log lines".
    rows : of some things of that kind, the rows that are deleted with them.
    """

    of: str
    order: int
    one: str
    several: str
    rows: Callable[[Sequence[Any]], QuerySet[Any]]


_parts: dict[tuple[str, str], Part] = {}


def register(*parts: Part) -> None:
    """Add parts; one that is registered again takes its own place."""
    for part in parts:
        _parts[part.of, part.one] = part


def parts_of(kind: str) -> list[Part]:
    """The parts of things of one kind, in order."""
    return sorted((part for part in _parts.values() if part.of == kind), key=lambda part: part.order)


def told_parts(kind: str, things: Sequence[Any]) -> list[str]:
    """What goes with `things`, as "1 run", "3,120 log lines"; kinds of which there are none are left out."""
    counts = ((part, part.rows(things).count()) for part in parts_of(kind))
    return [f"{count:,} {part.one if count == 1 else part.several}" for part, count in counts if count]
