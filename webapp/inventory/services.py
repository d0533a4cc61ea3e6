"""Every change of the inventory: permission, change and audit row in one transaction."""

import hashlib
import secrets
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from django.conf import settings
from django.db import models, transaction
from django.db.models import ProtectedError
from django.utils import timezone

from webapp.accounts.models import Team
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.models import DataCenter, Node, WanLink
from webapp.servers import acl


class Blocked(Exception):
    """A deletion that would take history with it; the message names what stands against it."""


def team_of(thing: DataCenter | Node | WanLink) -> Team:
    """The team that owns `thing`."""
    if isinstance(thing, DataCenter):
        return thing.team
    return thing.dc.team if isinstance(thing, Node) else thing.a.team


@transaction.atomic
def save(actor: Any, thing: DataCenter | Node | WanLink) -> DataCenter | Node | WanLink:
    """Create or change a data centre, node or link.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of its team.
    ValidationError
        A field or constraint is broken.
    """
    require(actor, team_of(thing))
    if isinstance(thing, WanLink) and thing.a_id > thing.b_id:
        thing.a, thing.b = thing.b, thing.a  # one pair, one row: the lower id first
    thing.full_clean()
    verb = "create" if thing._state.adding else "change"
    thing.save()
    record(actor, verb, thing, team=team_of(thing), values=_values(thing))
    return thing


@transaction.atomic
def delete(actor: Any, thing: DataCenter | Node | WanLink) -> None:
    """Delete a data centre, node or link that nothing refers to.

    Raises
    ------
    Blocked
        Runs, nodes or links refer to it; the message says which.
    """
    require(actor, team_of(thing))
    reason = blocked_by(thing)
    if reason:
        raise Blocked(reason)
    record(actor, "delete", thing, team=team_of(thing), values=_values(thing))
    if isinstance(thing, Node) and thing.acl_sha256:
        acl.drop_node_user(_broker(), thing.name)
    try:
        thing.delete()
    except ProtectedError as error:
        names = ", ".join(sorted(str(other) for other in error.protected_objects))
        raise Blocked(f"{thing} is still used by {names}.") from None


def blocked_by(thing: DataCenter | Node | WanLink) -> str:
    """Why `thing` cannot be deleted, as a sentence; empty where it can."""
    from webapp.jobs.models import Run  # jobs know the inventory, not the other way round

    if isinstance(thing, WanLink):
        return ""
    ranks = {"ranks__dc": thing} if isinstance(thing, DataCenter) else {"ranks__node": thing}
    runs = Run.objects.filter(**ranks).distinct().select_related("job")
    parts = [_some("run", "runs", [str(run) for run in runs[:4]], runs.count())]
    if isinstance(thing, DataCenter):
        nodes = thing.nodes.all()
        links = WanLink.objects.filter(models.Q(a=thing) | models.Q(b=thing)).select_related("a", "b")
        parts.append(_some("node", "nodes", [node.name for node in nodes[:4]], len(nodes)))
        parts.append(_some("link", "links", [str(link) for link in links[:4]], len(links)))
    used = ", ".join(part for part in parts if part)
    return f"{thing} cannot be deleted: {used} would lose it." if used else ""


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
    record(actor, "enrol", node, team=node.dc.team)
    acl.set_node_user(_broker(), node.name, node.acl_sha256)
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
    node.acl_sha256 = ""
    node.enrolled_at = None
    node.save(update_fields=["acl_sha256", "enrolled_at"])
    record(actor, "revoke", node, team=node.dc.team)
    acl.drop_node_user(_broker(), node.name)


def sync_acl(client: Any) -> int:
    """Give the broker every enrolled node's user again (it may have lost them); returns how many."""
    nodes = Node.objects.exclude(acl_sha256="").values_list("name", "acl_sha256")
    for name, password_sha256 in nodes:
        acl.set_node_user(client, name, password_sha256)
    return len(nodes)


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


def node_broker_url(name: str, password: str) -> str:
    """The broker's URL as node `name` is to use it (MERIDIAN_NODE_VALKEY_URL)."""
    parts = urlsplit(settings.NODE_VALKEY_URL)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"node-{name}:{quote(password, safe='')}@{address}"))


def _broker() -> Any:
    from webapp.broker import client

    return client()


def _values(thing: models.Model) -> dict[str, Any]:
    """The editable fields of `thing` as JSON values, for the audit row."""
    fields = [field for field in thing._meta.concrete_fields if field.editable and not field.primary_key]
    return {field.name: _plain(field.value_from_object(thing)) for field in fields}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _some(one: str, many: str, names: list[str], total: int) -> str:
    if not total:
        return ""
    more = f" and {total - len(names)} more" if total > len(names) else ""
    return f"{one if total == 1 else many} {', '.join(names)}{more}"
