"""The kinds of long work: each app registers the function that does its own when it starts.

A kind is a generator: it yields its answer as it grows, with how much of it is done.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from webapp.computations.wires import Wires


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of computations.

    name : of `ComputationKind`.
    work : (question, wires) → the answer as it grows.
    gives_way : nobody waits for it: it goes back into the queue when something else is asked for.
    """

    name: str
    work: Callable[[dict[str, Any], Wires], Iterator[dict[str, Any]]]
    gives_way: bool = False


KINDS: dict[str, Kind] = {}


def register(*kinds: Kind) -> None:
    """Add kinds; one that is registered again takes its own place."""
    for kind in kinds:
        KINDS[kind.name] = kind


def giving_way() -> list[str]:
    """The names of the kinds that give way to others."""
    return [kind.name for kind in KINDS.values() if kind.gives_way]
