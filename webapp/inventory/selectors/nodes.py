"""What is known of nodes: how far their clocks are off, what runs on them, what they reached."""

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.db.models import Count, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

from engine import __version__
from engine.versions import remedy
from webapp.accounts.models import ADMINS
from webapp.accounts.permissions import may
from webapp.common.work import work
from webapp.inventory.models import Device, JoinToken, Node, NodeProbe, WanLink, silence


def clock_offsets_s(names: Iterable[str]) -> dict[str, float]:
    """Seconds by which the times that nodes report are ahead, by name; 0 where nothing says so.

    One query.
    """
    nodes = Node.objects.filter(name__in=set(names))
    rows = nodes.values_list("name", "clock_offset_ms", "clock_rtt_ms")
    return {name: clock_offset_s(offset_ms, rtt_ms) for name, offset_ms, rtt_ms in rows}


def clock_offset_s(offset_ms: float | None, rtt_ms: float | None) -> float:
    """Of one node, from what its agent measured.

    A difference that is smaller than half the round trip with which it was measured may be none at all and is
    not corrected: nodes of one machine keep their common clock.
    """
    if offset_ms is None or rtt_ms is None or abs(offset_ms) <= rtt_ms / 2:
        return 0.0
    return offset_ms / 1e3


def nodes_for_lists() -> Any:
    """Nodes with what lists show of them, `busy` GPUs among it."""
    work_rows = work().held().filter(node=OuterRef("pk")).order_by()
    busy = Subquery(work_rows.values("node").annotate(n=Count("pk")).values("n"))
    return (
        Node.objects.select_related("dc")
        .annotate(busy=Coalesce(busy, 0))
        .defer("seen_ranks", "seen_hardware")
    )


def open_tokens(user: Any) -> Any:
    """The join commands that still work, of the nodes that `user` operates."""
    return JoinToken.objects.visible_to(user).open().select_related("node__dc__team", "created_by")


def node_page(user: Any, node: Node) -> dict[str, Any]:
    """What the page of `node` shows."""
    may_operate = may(user, node.dc.team)
    return {
        "node": node,
        "may_operate": may_operate,
        "may_admin": may(user, node.dc.team, ADMINS),
        "hardware": node.seen_hardware,
        "devices": _devices(node),
        "mismatch": mismatch(node),
        "tokens": list(open_tokens(user).filter(node=node)) if may_operate else [],
        "site_version": __version__,
        "remedy": remedy(site=__version__, agent=node.version) if node.is_skewed else "",
        "probes": (probes := latest_probes(user, node)),
        "probing": any(row.is_waiting for row in probes),
        "silent_after_s": f"{silence().total_seconds():.0f}",
    }


def _devices(node: Node) -> list[tuple[int, str, int | None]]:
    """(how many, name, bytes) of the GPUs that the agent has seen, the same ones together."""
    seen = Counter((gpu["name"], gpu["memory_bytes"]) for gpu in node.seen_hardware.get("gpus", ()))
    return [(count, name, memory) for (name, memory), count in seen.items()]


def mismatch(node: Node) -> str:
    """Where what the agent says of its GPUs is not what was declared, as a sentence; else empty."""
    if node.seen_gpus is not None and node.seen_gpus != node.gpus:
        return f"{node.gpus} GPUs are declared here, but the agent offers {node.seen_gpus}."
    if node.seen_device and node.seen_device != node.device:
        return f"{node.get_device_display()} is declared here, but the agent offers {node.seen_device}."
    hardware = node.seen_hardware
    if node.device != Device.CUDA or not hardware:
        return ""
    if len(hardware.get("gpus", ())) < node.gpus:
        why = f": {hardware['error']}" if hardware.get("error") else ""
        return (
            f"{node.gpus} CUDA GPUs are declared, but torch sees {len(hardware.get('gpus', ()))} there{why}."
        )
    return ""


def probes_over(user: Any, link: WanLink) -> list[NodeProbe]:
    """The last try between every two nodes of the ends of `link`: first what waits, then what failed."""
    rows = NodeProbe.objects.visible_to(user).latest().select_related("source__dc", "target__dc")
    there = Q(source__dc=link.a_id, target__dc=link.b_id)
    matching = rows.filter(there | Q(source__dc=link.b_id, target__dc=link.a_id))
    return sorted(
        matching, key=lambda row: (not row.is_waiting, bool(row.ok), row.source.name, row.target.name)
    )


def told_probes(probes: list[NodeProbe]) -> str:
    """How many of the pairs that were tried are reached, and how far apart they are; empty where none was."""
    trips = [row.rtt_ms for row in probes if row.ok and row.rtt_ms is not None]
    if not probes:
        return ""
    summary = f"{sum(bool(row.ok) for row in probes):,} of {len(probes):,} tests reached the other node"
    return f"{summary}; round trip {statistics.median(trips):,.2f} ms (median)" if trips else summary


def latest_probes(user: Any, node: Node) -> list[NodeProbe]:
    """The last try to and from every other node, by the name of the other."""
    rows = NodeProbe.objects.visible_to(user).latest().select_related("source__dc", "target__dc")
    matching = rows.filter(Q(source=node) | Q(target=node))
    return sorted(
        matching,
        key=lambda row: (
            row.target.name if row.source_id == node.pk else row.source.name,
            row.target_id == node.pk,
        ),
    )


def reach_matrix(user: Any, nodes: list[Node]) -> list[dict[str, Any]]:
    """For each of `nodes` the last tries to reach the others: [{node, cells: [NodeProbe or None]}]."""
    rows = NodeProbe.objects.visible_to(user).filter(source__in=nodes, target__in=nodes).latest()
    by_pair = {(row.source_id, row.target_id): row for row in rows}
    return [{"node": a, "cells": [by_pair.get((a.pk, b.pk)) for b in nodes]} for a in nodes]
