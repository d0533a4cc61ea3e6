"""What is known of nodes: how far their clocks are off, what runs on them, what they reached."""

from collections.abc import Iterable
from typing import Any

from webapp.inventory.models import DataCenter, Node


def clock_offset_s(node: Node) -> float:
    """Seconds by which the times that `node` reports are ahead; 0 where nothing says so.

    A difference that is smaller than half the round trip with which it was measured may be none at all and is
    not corrected: nodes of one machine keep their common clock.
    """
    return _offset_s(node.clock_offset_ms, node.clock_rtt_ms)


def clock_offsets_s(names: Iterable[str]) -> dict[str, float]:
    """As `clock_offset_s`, of several nodes by name, in one query."""
    found = Node.objects.filter(name__in=set(names))
    rows = found.values_list("name", "clock_offset_ms", "clock_rtt_ms")
    return {name: _offset_s(offset_ms, rtt_ms) for name, offset_ms, rtt_ms in rows}


def _offset_s(offset_ms: float | None, rtt_ms: float | None) -> float:
    if offset_ms is None or rtt_ms is None or abs(offset_ms) <= rtt_ms / 2:
        return 0.0
    return offset_ms / 1e3


def runs_on(thing: Node | DataCenter) -> Any:
    """The runs with living ranks on `thing`, the oldest first."""
    from webapp.jobs.models import (  # jobs know the inventory, not the other way round
        RANK_OVER,
        RankState,
        Run,
    )

    there = {"node": thing} if isinstance(thing, Node) else {"dc": thing}
    ranks = RankState.objects.filter(**there).exclude(state__in=RANK_OVER)
    return Run.objects.open().filter(pk__in=ranks.values("run")).select_related("job__team").order_by("pk")
