"""Nodes: enrolled, revoked, and what their agents say of themselves."""

import hashlib
import secrets
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.models import Node
from webapp.inventory.services.broker import drop_broker_user, node_broker_url, set_broker_user


@transaction.atomic
def enrol_node(actor: Any, node: Node) -> dict[str, str]:
    """Give `node` its own broker user; a second enrolment replaces the first one's password.

    Returns the environment of its agent (workers/config.py). The password is in it, and nowhere else:
    the database keeps a hash.

    Raises
    ------
    redis.exceptions.RedisError
        The broker does not answer; nothing has changed.
    """
    require(actor, node.dc.team)
    password = secrets.token_urlsafe(32)
    node.acl_sha256 = hashlib.sha256(password.encode()).hexdigest()
    node.enrolled_at = timezone.now()
    node.save(update_fields=["acl_sha256", "enrolled_at"])
    record(actor, "enrol", node, team=node.dc.team, after={"enrolled_at": node.enrolled_at.isoformat()})
    set_broker_user(node)
    return {
        "MERIDIAN_NODE": node.name,
        "MERIDIAN_BROKER_URL": node_broker_url(node.name, password),
        "MERIDIAN_NODE_GPUS": str(node.gpus),
        "MERIDIAN_NODE_DEVICE": node.device,
        "MERIDIAN_NODE_HOST": node.host,
    }


@transaction.atomic
def revoke_node(actor: Any, node: Node) -> None:
    """Take its broker user from `node`: from now on it can neither hear nor say anything."""
    require(actor, node.dc.team)
    before = {"enrolled_at": node.enrolled_at and node.enrolled_at.isoformat()}
    node.acl_sha256 = ""
    node.enrolled_at = None
    node.save(update_fields=["acl_sha256", "enrolled_at"])
    record(actor, "revoke", node, team=node.dc.team, before=before, after={"enrolled_at": None})
    drop_broker_user(node)


def record_heartbeat(name: str, seen: Any, *, gpus: Any, device: Any, version: Any, ranks: Any) -> None:
    """Keep what the agent of node `name` says of itself; `seen` is when the broker received it.

    A heartbeat that is older than the last one changes nothing. No audit row: nobody decided anything.
    """
    newer = models.Q(last_seen__isnull=True) | models.Q(last_seen__lt=seen)
    Node.objects.filter(newer, name=name).update(
        last_seen=seen,
        seen_gpus=gpus if isinstance(gpus, int) and 0 <= gpus <= 1024 else None,
        seen_device=str(device or "")[:10],
        version=str(version or "")[:40],
        seen_ranks=[rank for rank in ranks if isinstance(rank, dict)][:1024]
        if isinstance(ranks, list)
        else [],
    )
