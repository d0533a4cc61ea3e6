"""What runs on the nodes of the inventory: the app that runs it says so when it starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

# Gbit/s by team and the names of two data centres.
Flows = Mapping[tuple[int, frozenset[str]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one app runs on nodes.

    held : rows with `node`, `dc` and `gpu`, one for each GPU that is taken now.
    on : of a node or data centre, what runs there, the oldest first.
    end : (actor, node or data centre, again) ends what runs there after a whole iteration; with `again` it
        starts elsewhere. Returns how many were asked to end.
    """

    held: Callable[[], QuerySet[Any]]
    on: Callable[[Any], QuerySet[Any]]
    end: Callable[[Any, Any, bool], int]


_work: list[Work] = []
_flows: list[Callable[[Any], Flows]] = []


def register_work(work: Work) -> None:
    """Say what runs on nodes; the last who says so is asked."""
    _work[:] = [work]


def work() -> Work:
    """What runs on nodes."""
    return _work[0]


def register_flows(flows: Callable[[Any], Flows]) -> None:
    """Say what goes over links now, of what a user may see; the last who says so is asked."""
    _flows[:] = [flows]


def flows_now(user: Any) -> Flows:
    """What goes over the links that `user` sees now."""
    return _flows[0](user)
