"""Joining: a token made for a node is exchanged, once, for the node's own credentials."""

import hashlib
import ipaddress
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from pydantic import Field

from engine import __version__
from engine.errors import InputError
from engine.inputs import Count, Document, parse
from engine.versions import remedy, series
from webapp.accounts.models import ADMINS, OPERATORS
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.models import JoinToken, Node, free_ports
from webapp.inventory.services.nodes import checked_hardware, give_credentials, lock_node, void_tokens

LASTS = timedelta(hours=1)
PREFIX = "mj-"  # tells a token from other secrets, in logs and in scanners for them


class JoinRequest(Document):
    """What an agent says when it joins (workers/cli.py)."""

    token: Annotated[str, Field(min_length=1, max_length=200)]
    version: Annotated[str, Field(pattern=r"^\d{1,5}\.\d{1,5}[A-Za-z0-9.+-]{0,30}$")]
    host: Annotated[str, Field(min_length=1, max_length=253)]
    ports: Annotated[str | None, Field(pattern=r"^\d{1,5}-\d{1,5}$")] = None
    gpus: Annotated[Count, Field(le=1024)] | None = None
    device: Literal["cpu", "emulated", "cuda"] | None = None
    hardware: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class JoinRefused(Exception):
    """Why an agent may not join, and what to do; `status` is the HTTP status."""

    status: int
    field: str
    reason: str
    remedy: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


@transaction.atomic
def offer_join(actor: Any, node: Node) -> str:
    """Make a token with which a machine can join as `node`, once, within the hour; older ones are void.

    Where the node has credentials already, joining replaces them: that is an admin's right.

    Raises
    ------
    PermissionDenied
        `actor` may not.
    """
    node = lock_node(node.pk)
    require(actor, node.dc.team, ADMINS if node.is_enrolled else OPERATORS)
    void_tokens(node)
    token = PREFIX + secrets.token_urlsafe(32)
    token_row = JoinToken.objects.create(
        node=node, token_sha256=_hash(token), created_by=actor, expires_at=timezone.now() + LASTS
    )
    record(
        actor,
        "offer-join",
        node,
        team=node.dc.team,
        after={"token_expires_at": token_row.expires_at.isoformat()},
    )
    return token


@transaction.atomic
def revoke_join(actor: Any, token: JoinToken) -> bool:
    """Make an unused token worthless; False where it was used or replaced meanwhile.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the node's team.
    """
    node = token.node
    require(actor, node.dc.team)
    lock_node(node.pk)
    deleted, _ = JoinToken.objects.unused().filter(pk=token.pk).delete()
    if deleted:
        expires = {"token_expires_at": token.expires_at.isoformat()}
        none = {"token_expires_at": None}
        record(actor, "revoke-join", node, team=node.dc.team, before=expires, after=none)
    return bool(deleted)


@transaction.atomic
def join_node(data: Any, *, address: str | None) -> dict[str, Any]:
    """Let the machine at `address` join as the node of its token; returns {node, version, environment}.

    Parameters
    ----------
    data : JSON of a JoinRequest.

    Raises
    ------
    JoinRefused
        The token is void (403), the version does not go with ours (409), a value is wrong (422) or taken
        (409); nothing has changed then, and the token is as good as before.
    redis.exceptions.RedisError
        The broker does not answer; nothing has changed.
    """
    try:
        join_request = parse(JoinRequest, data)
    except InputError as error:
        raise JoinRefused(
            status=422, field=error.field or "body", reason=error.allowed, value=_shown(error.value)
        ) from None
    token = _good_token(join_request.token)
    if series(join_request.version) != series():
        raise JoinRefused(
            status=409,
            field="version",
            value=join_request.version,
            reason=f"the site is {__version__}",
            remedy=remedy(site=__version__, agent=join_request.version),
        )
    node = token.node
    before = _told(node)
    _take_over(node, join_request)
    after = _told(node)
    token.used_at, token.used_from = timezone.now(), _ip(address)
    token.save(update_fields=["used_at", "used_from"])
    changed = [name for name in after if after[name] != before[name]]
    message = (
        f"Joined from {address or 'an unknown address'}; {token.created_by or 'Meridian'} made the token."
    )
    record(
        token.created_by,
        "join",
        node,
        team=node.dc.team,
        before={name: before[name] for name in changed},
        after={name: after[name] for name in changed},
        message=message,
    )
    environment = give_credentials(token.created_by, node, message=message)
    return {"node": node.name, "version": __version__, "environment": environment}


def _good_token(text: str) -> JoinToken:
    """The open token that `text` is, locked with its node. Raises JoinRefused."""
    for node in JoinToken.objects.filter(token_sha256=_hash(text)).values_list("node", flat=True):
        lock_node(node)
    row = (
        JoinToken.objects.select_for_update(of=("self",))
        .select_related("node__dc__team", "node__pool", "created_by")
        .filter(token_sha256=_hash(text))
        .first()
    )
    again, shown = "make a new one on the node's page", f"{text[:7]}…"
    if row is None:
        reason = "is not known: it was mistyped, revoked, or replaced by newer credentials or a newer one"
        raise JoinRefused(status=403, field="token", value=shown, reason=reason, remedy=again)
    if row.used_at:
        when = row.used_at.strftime("%H:%M:%S UTC")
        reason = f"was used at {when} from {row.used_from or 'an unknown address'}, and works only once"
        raise JoinRefused(status=403, field="token", value=shown, reason=reason, remedy=again)
    if row.expires_at < timezone.now():
        when = row.expires_at.strftime("%Y-%m-%d %H:%M UTC")
        raise JoinRefused(status=403, field="token", value=shown, reason=f"expired at {when}", remedy=again)
    if not JoinToken.objects.open().filter(pk=row.pk).exists():
        reason = f"is void: {row.created_by}, who made it, may not let a machine join as this node any more"
        raise JoinRefused(status=403, field="token", value=shown, reason=reason, remedy=again)
    return row


def _take_over(node: Node, join_request: JoinRequest) -> None:
    """What the machine says of itself becomes what the node is."""
    hardware = checked_hardware(join_request.hardware)
    node.device = join_request.device or node.device
    if hardware and node.device != "cuda":
        hardware["error"] = ""  # it looked for CUDA devices before it knew that none were meant
    cuda = len(hardware.get("gpus", ())) if node.device == "cuda" else 0
    node.gpus = join_request.gpus or cuda or node.gpus
    node.host = join_request.host
    try:
        if join_request.ports:
            node.port_from, node.port_to = map(int, join_request.ports.split("-"))
        elif node.needs_other_ports():
            node.port_from, node.port_to = free_ports(node.host, node.gpus, but=node.pk)
        node.version, node.seen_hardware = join_request.version, hardware
        node.full_clean()
    except ValidationError as error:
        field, reasons = next(iter(error.message_dict.items()))
        name = {"port_from": "ports", "port_to": "ports"}.get(field, field)
        shown = join_request.ports if name == "ports" else getattr(join_request, name, "")
        raise JoinRefused(status=409, field=name, value=_shown(shown), reason=" ".join(reasons)) from None
    node.save()


def _told(node: Node) -> dict[str, Any]:
    names = ("host", "port_from", "port_to", "gpus", "device", "version")
    return {name: getattr(node, name) for name in names}


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _ip(address: str | None) -> str | None:
    try:
        return str(ipaddress.ip_address(address or ""))
    except ValueError:
        return None


def _shown(value: Any) -> str:
    return str(value)[:100]
