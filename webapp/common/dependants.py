"""What refers to a thing of the inventory and would lose it: each app registers its own when it starts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependants:
    """One kind of rows that may refer to a data centre, GPU pool, node or link.

    order : kinds are named by it.
    kind : one of them in words, as in "run".
    rows : of a thing, those that refer to it; None where such a thing is not referred to.
    """

    order: int
    kind: str
    rows: Callable[[Any], QuerySet[Any] | None]


_kinds: dict[str, Dependants] = {}


def register(*kinds: Dependants) -> None:
    """Add kinds; one that is registered again takes its own place."""
    for kind in kinds:
        _kinds[kind.kind] = kind


def dependants_of(thing: Any) -> list[tuple[str, QuerySet[Any]]]:
    """(kind, rows) of each kind that may refer to `thing`, in order."""
    by_kind = ((kind.kind, kind.rows(thing)) for kind in sorted(_kinds.values(), key=lambda kind: kind.order))
    return [(name, rows) for name, rows in by_kind if rows is not None]
