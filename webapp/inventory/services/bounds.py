"""What one node may hold of the broker that all share: bytes of its stream, and connections.

The broker has no such bounds itself. Ingest measures every 2 s. Who holds too much is refused alone, and
nothing that the broker has taken is thrown away: ingest reads it, and the node may report again.
"""

from collections.abc import Mapping
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from webapp.accounts.services import record
from webapp.inventory.models import Node
from webapp.servers import acl

log = structlog.get_logger(__name__)
MOST_CONNECTIONS = 64  # of one node; an agent has half a dozen


@transaction.atomic
def bound_reports(sizes: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Refuse reports of nodes that hold too much of the broker; take them again at half of the bound.

    The rights in the broker follow with the next `NodeUsers.reconcile`. A row of the audit tells of each.

    Parameters
    ----------
    held : bytes of the broker by node.

    Returns
    -------
    (refused now, taken again now), names of nodes.
    """
    most = settings.NODE_BROKER_BYTES
    over = [name for name, size in sizes.items() if size > most]
    under = [name for name, size in sizes.items() if size <= most / 2]
    rows = Node.objects.select_for_update(of=("self",)).select_related("dc__team").order_by("pk")
    refused = list(rows.filter(name__in=over, refused_since=None)) if over else []
    taken = list(rows.filter(name__in=under, refused_since__isnull=False)) if under else []
    for node in refused:
        message = f"It holds {sizes[node.name] / 1e6:,.1f} MB of the broker, more than {most / 1e6:,.0f} MB."
        _record(node, "refuse", timezone.now(), message)
    for node in taken:
        _record(node, "admit", None, "What it held was read.")
    return [node.name for node in refused], [node.name for node in taken]


def _record(node: Node, verb: str, since: Any, message: str) -> None:
    before = {"refused_since": node.refused_since and node.refused_since.isoformat()}
    node.refused_since = since
    node.save(update_fields=["refused_since"])
    after = {"refused_since": since and since.isoformat()}
    record(None, verb, node, team=node.dc.team, before=before, after=after, message=message)
    outcome = "are refused" if since else "are taken again"
    log.warning(f"reports of a node {outcome}", node=node.name, why=message)


def cut_crowds(client: Any) -> list[str]:
    """End all connections of nodes that have more than MOST_CONNECTIONS; returns the nodes."""
    clients = acl.connections(client)
    crowded = [
        user for user, count in clients.items() if count > MOST_CONNECTIONS and user.startswith("node-")
    ]
    names = [user.removeprefix("node-") for user in crowded]
    for name in names:
        acl.cut_connections(client, name)
        log.warning("a node had too many connections: cut", node=name, count=clients[acl.user_of(name)])
    return names
