"""What tenants do: ask for a tenancy, for its renewal, and withdraw."""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.utils import timezone

from webapp.accounts.models import Team
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.models import DataCenter
from webapp.prefill.catalogue import context_tokens, models
from webapp.prefill.models import ASKERS, MOST_DAYS, Tenancy, TenancyPlace, TenancyStatus
from webapp.prefill.served import served_models
from webapp.prefill.services.notices import tell

ASKED = (
    "name",
    "purpose",
    "model",
    "asked_tokens_per_min",
    "asked_ttft_ms",
    "asked_days",
    "typical_prompt",
    "asked_longest_prompt",
)
MOST_WAITING = 20


@transaction.atomic
def request_tenancy(actor: Any, tenancy: Tenancy, datacenters: Sequence[DataCenter]) -> Tenancy:
    """Ask `tenancy.team` for prefill in `datacenters`, as `actor`.

    Raises
    ------
    PermissionDenied
        `actor` is neither tenant, operator nor admin of the team.
    ValidationError
        A field is out of range, the team has a tenancy of this name, a data centre is not the team's, or too
        many requests wait already.
    """
    require(actor, tenancy.team, ASKERS)
    # Requests of a team go one by one: two at once could take one name.
    Team.objects.select_for_update(no_key=True).get(pk=tenancy.team_id)
    tenancy.tenant, tenancy.status = actor, TenancyStatus.REQUESTED
    unasked = [field.name for field in Tenancy._meta.fields if field.name not in (*ASKED, "team")]
    tenancy.full_clean(exclude=unasked, validate_constraints=False)
    _check(tenancy, datacenters)
    waiting = Tenancy.objects.filter(tenant=actor, team=tenancy.team, status=TenancyStatus.REQUESTED)
    if waiting.count() >= MOST_WAITING:
        raise ValidationError(f"{MOST_WAITING} of your requests are waiting already. Withdraw one first.")
    tenancy.save()
    TenancyPlace.objects.bulk_create(TenancyPlace(tenancy=tenancy, dc=dc) for dc in datacenters)
    names = ", ".join(dc.name for dc in datacenters)
    after = {name: getattr(tenancy, name) for name in ASKED} | {
        "datacenters": [dc.name for dc in datacenters]
    }
    record(actor, "request", tenancy, team=tenancy.team, after=after)
    tell(
        tenancy,
        f"{actor} asks for {tenancy.asked_tokens_per_min:,} tokens/min of {tenancy.model} in {names}, "
        f"TTFT within {tenancy.asked_ttft_ms:,} ms, for {tenancy.asked_days} days.",
        tenant=False,
        by=actor,
    )
    return tenancy


def _check(tenancy: Tenancy, datacenters: Sequence[DataCenter]) -> None:
    """What fields cannot check alone."""
    if Tenancy.objects.filter(team=tenancy.team, name=tenancy.name).exists():
        raise ValidationError(
            {"name": "The team has a tenancy of this name already, perhaps an ended one. Enter another name."}
        )
    names = sorted({*models(), *served_models([tenancy.team_id])})
    if tenancy.model not in names:
        raise ValidationError({"model": f"{tenancy.model!r}: must be one of {', '.join(names)}."})
    if not datacenters:
        raise ValidationError({"datacenters": "Choose at least one data centre."})
    strange = [dc.name for dc in datacenters if dc.team_id != tenancy.team_id]
    if strange:
        raise ValidationError({"datacenters": f"Team {tenancy.team} has no {', '.join(strange)}."})
    most = context_tokens(tenancy.model)
    if tenancy.asked_longest_prompt > most:
        raise ValidationError({"asked_longest_prompt": f"{tenancy.model} takes at most {most:,} tokens."})
    if tenancy.typical_prompt > tenancy.asked_longest_prompt:
        allowed = f"Must be at most the longest prompt, {tenancy.asked_longest_prompt:,} tokens."
        raise ValidationError({"typical_prompt": allowed})
    if tenancy.asked_longest_prompt > tenancy.asked_tokens_per_min:
        allowed = f"Must be at least the longest prompt, {tenancy.asked_longest_prompt:,} tokens."
        raise ValidationError({"asked_tokens_per_min": allowed})


@transaction.atomic
def ask_renewal(actor: Any, tenancy: Tenancy, days: int) -> Tenancy:
    """Ask that a granted tenancy goes on for `days` more. It stays as it is until an admin has decided.

    The days count from its end or, where that is past, from the decision.

    Raises
    ------
    PermissionDenied
        `actor` is not its tenant.
    ValidationError
        It was never granted, or `days` is out of range.
    """
    require_tenant(actor, tenancy)
    tenancy = Tenancy.objects.select_for_update().get(pk=tenancy.pk)
    if tenancy.ends_at is None or tenancy.status not in (TenancyStatus.ACTIVE, TenancyStatus.ENDED):
        raise ValidationError(f"A tenancy that is {tenancy.state.label.lower()} cannot be renewed.")
    if not 1 <= days <= MOST_DAYS:
        raise ValidationError({"days": f"{days}: must be 1 to {MOST_DAYS} days."})
    before = {"renewal_days": tenancy.renewal_days}
    tenancy.renewal_days, tenancy.renewal_asked_at = days, timezone.now()
    tenancy.save(update_fields=["renewal_days", "renewal_asked_at"])
    record(actor, "ask-renewal", tenancy, team=tenancy.team, before=before, after={"renewal_days": days})
    tell(tenancy, f"{actor} asks to renew {tenancy} for {days} days.", tenant=False, by=actor)
    return tenancy


@transaction.atomic
def withdraw_tenancy(actor: Any, tenancy: Tenancy) -> Tenancy:
    """Take back a request, or a request for renewal, that nobody has decided; another stays as it is.

    Raises
    ------
    PermissionDenied
        `actor` is not its tenant.
    """
    require_tenant(actor, tenancy)
    tenancy = Tenancy.objects.select_for_update().get(pk=tenancy.pk)
    if tenancy.renewal_days is not None:
        before = {"renewal_days": tenancy.renewal_days}
        tenancy.renewal_days = tenancy.renewal_asked_at = None
        tenancy.save(update_fields=["renewal_days", "renewal_asked_at"])
        record(actor, "withdraw", tenancy, team=tenancy.team, before=before, after={"renewal_days": None})
    elif tenancy.status == TenancyStatus.REQUESTED:
        was = {"status": str(tenancy.status)}
        tenancy.status = TenancyStatus.WITHDRAWN
        tenancy.save(update_fields=["status"])
        record(actor, "withdraw", tenancy, team=tenancy.team, before=was, after={"status": "withdrawn"})
        tell(tenancy, f"{actor} has withdrawn the request {tenancy}.", tenant=False, by=actor)
    return tenancy


def require_tenant(actor: Any, tenancy: Tenancy, why: str = "Only the tenant may do this.") -> None:
    """Raise PermissionDenied, with `why`, unless `actor` is the tenant and may still ask."""
    if actor.pk != tenancy.tenant_id:
        raise PermissionDenied(why)
    require(actor, tenancy.team, ASKERS)
