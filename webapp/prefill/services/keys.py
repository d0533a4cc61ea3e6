"""API keys: shown once, kept as a hash, replaced with overlap, revoked at once."""

import secrets
from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from webapp.accounts.models import ADMINS
from webapp.accounts.permissions import may
from webapp.accounts.services import record, token_hash
from webapp.prefill.models import ApiKey, KeyState, Tenancy, TenancyStatus
from webapp.prefill.services.notices import tell
from webapp.prefill.services.requests import require_tenant

BEGINNING = "mrd-"
SHOWN = 10  # characters of a key by which people tell it from others
MOST_LIVE = 2  # one in use, and the one that replaces it
MOST_OVERLAP_H = 168
USE_NOTED_EVERY = timedelta(minutes=1)


@transaction.atomic
def make_key(actor: Any, tenancy: Tenancy, name: str) -> tuple[ApiKey, str]:
    """Make a key of an active tenancy; returns it and its text, which is shown once and kept nowhere.

    Raises
    ------
    PermissionDenied
        `actor` is not the tenant.
    ValidationError
        The tenancy is not active, has MOST_LIVE keys already, or the name is empty or too long.
    """
    require_tenant(actor, tenancy, "Only the tenant can make keys.")
    tenancy = Tenancy.objects.select_for_update().get(pk=tenancy.pk)
    _require_room(tenancy)
    return _make(actor, tenancy, name)


def _require_room(tenancy: Tenancy) -> None:
    if tenancy.state != TenancyStatus.ACTIVE:
        raise ValidationError(f"A tenancy that is {tenancy.state.label.lower()} cannot have keys.")
    if tenancy.keys.live().count() >= MOST_LIVE:
        raise ValidationError(f"{tenancy} has {MOST_LIVE} valid keys. Revoke one first.")


def _make(actor: Any, tenancy: Tenancy, name: str) -> tuple[ApiKey, str]:
    text = BEGINNING + secrets.token_urlsafe(32)
    key = ApiKey(
        tenancy=tenancy, name=name.strip(), prefix=text[:SHOWN], sha256=token_hash(text), created_by=actor
    )
    key.full_clean(exclude=["expires_at", "revoked_at", "used_at", "created_by"])
    key.save()
    record(actor, "create", key, team=tenancy.team, after={"name": key.name, "prefix": key.prefix})
    return key, text


@transaction.atomic
def rotate_key(actor: Any, key: ApiKey, overlap_h: float) -> tuple[ApiKey, str]:
    """Replace a key: the new one works at once, the old one for `overlap_h` hours more.

    Raises
    ------
    PermissionDenied
        `actor` is not the tenant.
    ValidationError
        It was replaced or revoked already, the tenancy is not active, two keys work already, or the overlap
        is out of range.
    """
    require_tenant(actor, key.tenancy, "Only the tenant can make keys.")
    if not 0 <= overlap_h <= MOST_OVERLAP_H:
        raise ValidationError({"overlap_h": f"{overlap_h:g}: must be 0 to {MOST_OVERLAP_H} hours."})
    tenancy = Tenancy.objects.select_for_update().get(pk=key.tenancy_id)
    key = ApiKey.objects.select_for_update().get(pk=key.pk)
    if key.state != KeyState.LIVE:
        raise ValidationError(f"{key} is {key.state.label.lower()} already.")
    _require_room(tenancy)
    key.expires_at = timezone.now() + timedelta(hours=overlap_h)
    key.save(update_fields=["expires_at"])
    after = {"expires_at": key.expires_at.isoformat()}
    record(actor, "rotate", key, team=tenancy.team, before={"expires_at": None}, after=after)
    return _make(actor, tenancy, key.name)


@transaction.atomic
def revoke_key(actor: Any, key: ApiKey) -> ApiKey:
    """Make a key worthless from the next request on; the tenant may, and admins of the team.

    Raises
    ------
    PermissionDenied
        `actor` is neither.
    """
    if actor.pk != key.tenancy.tenant_id and not may(actor, key.tenancy.team, ADMINS):
        raise PermissionDenied("Only the tenant or an admin of the team may revoke a key.")
    key = ApiKey.objects.select_for_update().get(pk=key.pk)
    if key.revoked_at is None:
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        after = {"revoked_at": key.revoked_at.isoformat()}
        record(actor, "revoke", key, team=key.tenancy.team, before={"revoked_at": None}, after=after)
        tell(key.tenancy, f"The key {key} of {key.tenancy} was revoked by {actor}.", by=actor)
    return key


def note_key_use(key: ApiKey) -> None:
    """Note that a key was used, at most once a minute."""
    now = timezone.now()
    stale = Q(used_at=None) | Q(used_at__lt=now - USE_NOTED_EVERY)
    if key.used_at is None or key.used_at < now - USE_NOTED_EVERY:
        ApiKey.objects.filter(stale, pk=key.pk).update(used_at=now)
