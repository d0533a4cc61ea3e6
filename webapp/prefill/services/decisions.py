"""What admins decide: approve with limits, refuse, suspend, resume. Nobody decides on their own tenancy."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.utils import timezone

from webapp.accounts.models import ADMINS, Team
from webapp.accounts.permissions import may, require
from webapp.accounts.services import record
from webapp.common.money import exact_dollars
from webapp.inventory.models import DataCenter
from webapp.prefill.catalogue import context_tokens
from webapp.prefill.models import (
    MOST_DAYS,
    MOST_PRICE,
    MOST_TOKENS_PER_MIN,
    MOST_TTFT_MS,
    Tenancy,
    TenancyStatus,
)
from webapp.prefill.offers import oversold
from webapp.prefill.services.notices import tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is granted.

    longest_prompt : tokens.  price : micro-dollars per million prompt tokens.  days : of the term, or by how
    many a renewal makes it longer.
    """

    tokens_per_min: int
    ttft_ms: int
    longest_prompt: int
    price: int
    days: int


def may_decide(actor: Any, tenancy: Tenancy) -> bool:
    """Whether `actor` is an admin of the team that sells, and not the one who buys."""
    return actor.pk != tenancy.tenant_id and may(actor, tenancy.team, ADMINS)


def require_decider(actor: Any, tenancy: Tenancy) -> None:
    """Raise PermissionDenied unless `actor` may decide on the tenancy."""
    require(actor, tenancy.team, ADMINS)
    if actor.pk == tenancy.tenant_id:
        raise PermissionDenied("You cannot decide on your own tenancy. Ask another admin of the team.")


@transaction.atomic
def approve_tenancy(
    actor: Any,
    tenancy: Tenancy,
    limits: Limits,
    datacenters: Sequence[DataCenter],
    reason: str = "",
    *,
    oversell: bool = False,
) -> Tenancy:
    """Grant a request, or a renewal, with `limits` in some of the `datacenters` that were asked for.

    A renewal goes on from the end of the present term, or from now where that is past; its limits and price
    hold from now.

    Parameters
    ----------
    oversell : grant it even if, with what other tenancies hold, it is more than runs supply now.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of the team, or is the tenant.
    ValidationError
        Nothing waits for a decision, or a limit is out of range. At `oversell`, with the figures: it is more
        than is there.
    """
    require_decider(actor, tenancy)
    _one_by_one(tenancy)
    tenancy = _waiting(tenancy)
    _check(tenancy, limits, datacenters)
    if not oversell:
        _require_supply(tenancy, datacenters, limits.tokens_per_min)
    now = timezone.now()
    renews = tenancy.renewal_days is not None
    before = _values(tenancy)
    going_on = renews and tenancy.ends_at is not None and tenancy.ends_at > now
    start = tenancy.ends_at if going_on and tenancy.ends_at else now
    if not going_on:
        tenancy.starts_at = now
    tenancy.ends_at = start + timedelta(days=limits.days)
    for name, value in asdict(limits).items():
        if name != "days":
            setattr(tenancy, name, value)
    _decide(tenancy, actor, TenancyStatus.ACTIVE, reason)
    dcs = [dc.pk for dc in datacenters]
    tenancy.places.update(is_granted=False)
    tenancy.places.filter(dc__in=dcs).update(is_granted=True)
    record(
        actor,
        "renew" if renews else "approve",
        tenancy,
        team=tenancy.team,
        before=before,
        after=_values(tenancy) | {"datacenters": [dc.name for dc in datacenters]},
        message=reason,
    )
    tell(tenancy, _granted(tenancy, datacenters, renews), by=actor)
    return tenancy


@transaction.atomic
def refuse_tenancy(actor: Any, tenancy: Tenancy, reason: str) -> Tenancy:
    """Refuse a request, or a renewal (what was granted before then runs out), with the reason that the tenant
    reads.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of the team, or is the tenant.
    ValidationError
        Nothing waits for a decision, or there is no reason.
    """
    require_decider(actor, tenancy)
    tenancy = _waiting(tenancy)
    reason = _given(reason)
    renews, before = tenancy.renewal_days is not None, _values(tenancy)
    _decide(tenancy, actor, tenancy.status if renews else TenancyStatus.REFUSED, reason)
    verb = "refuse-renewal" if renews else "refuse"
    record(actor, verb, tenancy, team=tenancy.team, before=before, after=_values(tenancy), message=reason)
    what = f"The renewal of {tenancy}" if renews else f"The request {tenancy}"
    tell(tenancy, f"{what} was refused: {reason}", by=actor)
    return tenancy


@transaction.atomic
def suspend_tenancy(actor: Any, tenancy: Tenancy, reason: str) -> Tenancy:
    """Stop selling to an active tenancy at once: its keys open nothing, its term runs on.

    Requests that were accepted before are finished and charged.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of the team, or is the tenant.
    ValidationError
        It is not active, or there is no reason.
    """
    require_decider(actor, tenancy)
    tenancy = Tenancy.objects.select_for_update().get(pk=tenancy.pk)
    if tenancy.state != TenancyStatus.ACTIVE:
        raise ValidationError(f"A tenancy that is {tenancy.state.label.lower()} cannot be suspended.")
    reason, before = _given(reason), _values(tenancy)
    tenancy.status, tenancy.reason = TenancyStatus.SUSPENDED, reason
    tenancy.save(update_fields=["status", "reason"])
    record(
        actor, "suspend", tenancy, team=tenancy.team, before=before, after=_values(tenancy), message=reason
    )
    tell(tenancy, f"{tenancy} is suspended: {reason} Requests accepted before will finish.", by=actor)
    return tenancy


@transaction.atomic
def resume_tenancy(actor: Any, tenancy: Tenancy, *, oversell: bool = False) -> Tenancy:
    """Sell to a suspended tenancy again, until its end; another stays as it is.

    Parameters
    ----------
    oversell : as of `approve_tenancy`: while it was suspended, others may have got its share.

    Raises
    ------
    PermissionDenied
        `actor` is no admin of the team, or is the tenant.
    ValidationError
        At `oversell`, with the figures: it is more than is there.
    """
    require_decider(actor, tenancy)
    _one_by_one(tenancy)
    tenancy = Tenancy.objects.select_for_update().get(pk=tenancy.pk)
    if tenancy.state == TenancyStatus.SUSPENDED:
        if not oversell:
            _require_supply(tenancy, tenancy.datacenters, tenancy.tokens_per_min or 0)
        before = _values(tenancy)
        tenancy.status, tenancy.reason = TenancyStatus.ACTIVE, ""
        tenancy.save(update_fields=["status", "reason"])
        record(actor, "resume", tenancy, team=tenancy.team, before=before, after=_values(tenancy))
        tell(tenancy, f"{tenancy} is active again.", by=actor)
    return tenancy


def _one_by_one(tenancy: Tenancy) -> None:
    """Decisions of a team wait for each other: two at once would count the same supply."""
    Team.objects.select_for_update(no_key=True).get(pk=tenancy.team_id)


def _require_supply(tenancy: Tenancy, datacenters: Sequence[DataCenter], tokens_per_min: int) -> None:
    """Raise ValidationError at `oversell` where granting so much would sell more than is there."""
    too_much = oversold(tenancy, datacenters, tokens_per_min)
    if too_much is not None:
        raise ValidationError({"oversell": too_much.text})


def _waiting(tenancy: Tenancy) -> Tenancy:
    """The row, locked, with something to decide."""
    tenancy = Tenancy.objects.select_for_update().get(pk=tenancy.pk)
    if not tenancy.waits:
        raise ValidationError(f"{tenancy} needs no decision: it is {tenancy.state.label.lower()}.")
    return tenancy


def _given(reason: str) -> str:
    reason = reason.strip()
    if not reason or len(reason) > 400:
        raise ValidationError({"reason": "Enter a reason of at most 400 characters. The tenant reads it."})
    return reason


def _decide(tenancy: Tenancy, actor: Any, status: str, reason: str) -> None:
    tenancy.status, tenancy.reason = status, reason.strip()
    tenancy.decided_by, tenancy.decided_at = actor, timezone.now()
    tenancy.renewal_days = tenancy.renewal_asked_at = None
    tenancy.save()


def _check(tenancy: Tenancy, limits: Limits, datacenters: Sequence[DataCenter]) -> None:
    context = context_tokens(tenancy.model)
    ranges = {
        "tokens_per_min": (limits.longest_prompt, MOST_TOKENS_PER_MIN, "it must hold the longest prompt"),
        "ttft_ms": (1, MOST_TTFT_MS, ""),
        "longest_prompt": (1, context, f"the context of {tenancy.model}"),
        "price": (0, MOST_PRICE, "micro-dollars per million tokens"),
        "days": (1, MOST_DAYS, ""),
    }
    wrong = {}
    for name, (least, most, why) in ranges.items():
        value = getattr(limits, name)
        if not least <= value <= most:
            wrong[name] = f"{value:,}: must be {least:,} to {most:,}{f' ({why})' if why else ''}."
    requested = set(tenancy.places.values_list("dc", flat=True))
    if not datacenters or not {dc.pk for dc in datacenters} <= requested:
        wrong["datacenters"] = "Choose at least one of the requested data centres."
    if wrong:
        raise ValidationError(wrong)


def _values(tenancy: Tenancy) -> dict[str, Any]:
    """What decisions change, as JSON."""
    names = ("status", "reason", "tokens_per_min", "ttft_ms", "longest_prompt", "price", "renewal_days")
    times: dict[str, datetime | None] = {"starts_at": tenancy.starts_at, "ends_at": tenancy.ends_at}
    return {name: getattr(tenancy, name) for name in names} | {
        name: value.isoformat() if value else None for name, value in times.items()
    }


def _granted(tenancy: Tenancy, datacenters: Sequence[DataCenter], renews: bool) -> str:
    names = ", ".join(dc.name for dc in datacenters)
    text = (
        f"{tenancy} is {'renewed' if renews else 'approved'}: {tenancy.tokens_per_min:,} tokens/min of "
        f"{tenancy.model} in {names}, TTFT within {tenancy.ttft_ms:,} ms, "
        f"{exact_dollars(tenancy.price)} $/M tokens, until {tenancy.ends_at:%Y-%m-%d %H:%M} UTC."
    )
    return f"{text} {tenancy.reason}".strip()
