"""Nodes: their credentials, and what their agents say of themselves."""

import hashlib
import json
import secrets
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from engine.job.events.node import Heartbeat
from webapp.accounts.models import ADMINS
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.models import Node
from webapp.inventory.services.broker import drop_broker_user, node_broker_url, set_broker_user

LARGEST_HARDWARE = 64 * 1024  # characters of JSON


@transaction.atomic
def enrol_node(actor: Any, node: Node) -> dict[str, str]:
    """Give `node` new credentials; those it had are void at once, and its connections end.

    Tokens with which a machine could join as the node are void too.

    Returns the environment of its agent (workers/config.py). The password is in it, and nowhere else:
    the database keeps a hash.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of its team.
    redis.exceptions.RedisError
        The broker does not answer; nothing has changed.
    """
    require(actor, node.dc.team, ADMINS)
    lock_node(node.pk)
    return give_credentials(actor, node)


def lock_node(pk: int) -> Node:
    """The node as it is now, locked until the transaction ends: of two who change its credentials or its
    tokens, the second sees what the first did."""
    rows = Node.objects.select_for_update(of=("self",)).select_related("dc__team", "pool")
    return rows.get(pk=pk)


def void_tokens(node: Node) -> int:
    """Make the unused tokens of `node` worthless; part of services that lock it. Returns how many."""
    voided, _ = node.join_tokens.unused().delete()
    return voided


def give_credentials(actor: Any, node: Node, message: str = "") -> dict[str, str]:
    """As `enrol_node`, for whoever has made sure of the right and locked the node; inside a transaction."""
    if void_tokens(node):
        message = f"{message} An unused join command no longer works.".strip()
    password = secrets.token_urlsafe(32)
    before = {"enrolled_at": node.enrolled_at and node.enrolled_at.isoformat()}
    node.acl_sha256 = hashlib.sha256(password.encode()).hexdigest()
    node.enrolled_at = timezone.now()
    node.save(update_fields=["acl_sha256", "enrolled_at"])
    after = {"enrolled_at": node.enrolled_at.isoformat()}
    record(actor, "enrol", node, team=node.dc.team, before=before, after=after, message=message)
    set_broker_user(node)
    return {
        "MERIDIAN_NODE": node.name,
        "MERIDIAN_BROKER_URL": node_broker_url(node.name, password),
        "MERIDIAN_NODE_GPUS": str(node.gpus),
        "MERIDIAN_NODE_DEVICE": node.device,
        "MERIDIAN_NODE_HOST": node.host,
        "MERIDIAN_NODE_PORTS": f"{node.port_from}-{node.port_to}",
    }


@transaction.atomic
def revoke_node(actor: Any, node: Node) -> None:
    """Take its credentials from `node`: from now on it can neither hear nor say anything.

    Tokens with which it could join again are void too. The reconciler ends its runs once it is silent.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of its team.
    redis.exceptions.RedisError
        The broker does not answer; nothing has changed.
    """
    require(actor, node.dc.team, ADMINS)
    lock_node(node.pk)
    void_tokens(node)
    before = {"enrolled_at": node.enrolled_at and node.enrolled_at.isoformat()}
    node.acl_sha256 = ""
    node.enrolled_at = None
    node.save(update_fields=["acl_sha256", "enrolled_at"])
    record(actor, "revoke", node, team=node.dc.team, before=before, after={"enrolled_at": None})
    drop_broker_user(node)


def record_heartbeat(name: str, seen: Any, beat: Heartbeat) -> None:
    """Keep what the agent of node `name` says of itself; `seen` is when the broker received it.

    A heartbeat that is older than the last one, or of a node whose credentials were revoked, changes nothing.
    A clock that was set back makes no node deaf: what is kept is never later than our own clock, and what it
    once was gives way. No audit row: nobody decided anything.
    """
    now = timezone.now()
    seen = min(seen, now)
    ahead = models.Q(last_seen__gt=now)  # of before our clock was set back
    newer = models.Q(last_seen__isnull=True) | models.Q(last_seen__lt=seen) | ahead
    values: dict[str, Any] = {
        "last_seen": seen,
        "seen_gpus": beat.gpus,
        "seen_device": beat.device[:10],
        "version": beat.version[:40],
        "clock_offset_ms": beat.clock.offset_ms if beat.clock else None,
        "clock_rtt_ms": beat.clock.rtt_ms if beat.clock else None,
        "seen_ranks": [rank.model_dump(mode="json") for rank in beat.ranks],
    }
    if checked := checked_hardware(beat.hardware):
        values["seen_hardware"] = checked
    Node.objects.filter(newer, name=name).exclude(acl_sha256="").update(**values)


def checked_hardware(report: Any) -> dict[str, Any]:
    """What an agent says of its machine (workers/hardware.py), as far as it has the shape; {} where not."""
    if not isinstance(report, dict) or len(json.dumps(report)) > LARGEST_HARDWARE:
        return {}
    listed = report.get("gpus")
    devices = listed if isinstance(listed, list) else []
    return {
        "gpus": [
            {"name": str(gpu.get("name"))[:80], "memory_bytes": _whole(gpu.get("memory_bytes"))}
            for gpu in devices[:1024]
            if isinstance(gpu, dict)
        ],
        **_files(report.get("files")),
        "cores": _whole(report.get("cores")),
        "memory_bytes": _whole(report.get("memory_bytes")),
        **{name: str(report.get(name) or "")[:120] for name in ("python", "platform", "torch", "error")},
    }


def _files(report: Any) -> dict[str, Any]:
    """`files`: the folders and the schemes of URLs that the agent opens to runs; {} where it tells none."""
    if not isinstance(report, dict):
        return {}
    roots, schemes = report.get("roots"), report.get("schemes")
    if not isinstance(roots, list) or not isinstance(schemes, list):
        return {}
    return {"files": {"roots": _texts(roots), "schemes": _texts(schemes)}}


def _texts(values: list[Any]) -> list[str]:
    return [str(text)[:500] for text in values[:50]]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**60 else None
