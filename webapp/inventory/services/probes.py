"""Whether nodes reach each other: asked of their agents, answered in events, kept as rows."""

import secrets
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from engine.errors import InputError
from engine.job.events.node import PeerAnswer, Probe
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.dispatch import BrokerDown, Send, send_task
from webapp.inventory.models import DataCenter, Node, NodeProbe, WanLink
from webapp.inventory.models.node import NodeState
from webapp.inventory.services.links import record_measurement

TASK = "workers.probe_peers"
SECONDS = 6.0  # all agents listen, and ask for half of that
MOST_NODES = 48
KEPT = 20  # answers per pair


@transaction.atomic
def probe_nodes(
    actor: Any, thing: Node | DataCenter, pairs: Iterable[tuple[Node, Node]], *, send: Send | None = None
) -> list[NodeProbe]:
    """Have the agents of the first nodes of `pairs` try to reach the second ones; returns a row per pair.

    Parameters
    ----------
    thing : what the probe is about, for the audit row: a node, or one of two data centres.
    pairs : (from, to), of one team; those from a node that is not online are left out.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the team.
    InputError
        There are no such pairs, or they are of too many nodes.
    """
    team = thing.dc.team if isinstance(thing, Node) else thing.team
    require(actor, team)
    chosen = [(a, b) for a, b in pairs if a.pk != b.pk and a.state == NodeState.ONLINE and a.is_enrolled]
    nodes = {node.pk: node for pair in chosen for node in pair}
    if not chosen:
        raise InputError("nodes", str(thing), "no agent is online, or there is no other node to reach")
    if len(nodes) > MOST_NODES or {node.dc.team_id for node in nodes.values()} != {team.pk}:
        raise InputError("nodes", len(nodes), f"at most {MOST_NODES}, of team {team}")
    probe, now = secrets.token_hex(16), timezone.now()
    rows = NodeProbe.objects.bulk_create(
        NodeProbe(probe=probe, source=a, target=b, asked_at=now, asked_by=actor) for a, b in chosen
    )
    record(actor, "probe", thing, team=team, after={"nodes": len(nodes), "pairs": len(rows)})
    transaction.on_commit(lambda: _ask(probe, chosen, nodes, send))
    return rows


def _ask(probe: str, pairs: list[tuple[Node, Node]], nodes: dict[int, Node], send: Send | None) -> None:
    secret = secrets.token_hex(16)
    peers: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for a, b in pairs:
        peers[a.pk].append({"node": b.name, "host": b.host, "port": b.probe_port})
    for node in nodes.values():
        if node.state != NodeState.ONLINE or not node.is_enrolled:
            continue
        kwargs = {
            "probe": probe,
            "secret": secret,
            "port": node.probe_port,
            "peers": peers[node.pk],
            "seconds": SECONDS,
        }
        try:
            (send or send_task)(node.name, TASK, kwargs)
        except BrokerDown:
            NodeProbe.objects.filter(probe=probe, source=node, ok=None).update(
                ok=False, at=timezone.now(), error="The broker does not answer, so the agent was not asked."
            )


@transaction.atomic
def record_probe(name: str, event: Probe) -> int:
    """Keep what the agent of node `name` found out; returns how many rows it answers.

    Only what was asked of that node, and not answered yet, is taken. The round trip between data centres goes
    into the history of their link, as one way's half. No audit row: nobody decided anything.
    """
    rows = NodeProbe.objects.select_for_update(of=("self",)).select_related("source__dc", "target__dc")
    waiting = {row.target.name: row for row in rows.filter(probe=event.probe, source__name=name, ok=None)}
    answered = []
    for result in event.results:
        row = waiting.pop(result.node, None)
        if row is not None:
            _take(row, result)
            answered.append(row)
    NodeProbe.objects.bulk_update(answered, ["at", "ok", "rtt_ms", "offset_ms", "error"])
    _measure_links([row for row in answered if row.ok])
    _forget_old(answered)
    return len(answered)


def _take(row: NodeProbe, result: PeerAnswer) -> None:
    row.at = timezone.now()
    row.ok = result.ok and result.rtt_ms is not None
    row.rtt_ms, row.offset_ms = (result.rtt_ms, result.offset_ms) if row.ok else (None, None)
    row.error = "" if row.ok else (result.error or "The node gave no reason.")[:200]


def _measure_links(rows: list[NodeProbe]) -> None:
    by_pair: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        # Two nodes at one address are on one machine: between them there is no WAN to measure.
        if row.source.dc_id != row.target.dc_id and row.source.host != row.target.host and row.rtt_ms:
            a, b = sorted((row.source.dc_id, row.target.dc_id))
            by_pair[a, b].append(row.rtt_ms)
    for (a, b), trips in by_pair.items():
        link = WanLink.objects.filter(a=a, b=b).first()
        if link:
            record_measurement(
                link,
                latency_ms=statistics.median(trips) / 2,
                bandwidth_gbps=None,
                connections=None,
                source="probe",
                actor=None,
            )


def _forget_old(rows: list[NodeProbe]) -> None:
    place = models.Window(
        models.functions.RowNumber(), partition_by=["source", "target"], order_by=["-asked_at", "-id"]
    )
    pairs = models.Q()
    for row in rows:
        pairs |= models.Q(source=row.source_id, target=row.target_id)
    if rows:
        old = NodeProbe.objects.filter(pairs).annotate(place=place).filter(place__gt=KEPT).values("pk")
        NodeProbe.objects.filter(pk__in=list(old.values_list("pk", flat=True))).delete()
