"""Ends of terms. Keys stop opening the API at that moment; what is here writes it down and tells people."""

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from webapp.accounts.services import record
from webapp.prefill.models import Tenancy, TenancyStatus
from webapp.prefill.services.notices import tell

WARN_BEFORE = timedelta(days=7)


@transaction.atomic
def end_tenancies() -> int:
    """Mark the tenancies whose term is over as ended; returns how many."""
    reserved = (TenancyStatus.ACTIVE, TenancyStatus.SUSPENDED)
    over = Tenancy.objects.select_for_update(skip_locked=True).filter(
        status__in=reserved, ends_at__lte=timezone.now()
    )
    for tenancy in (ended := list(over)):
        before = {"status": str(tenancy.status)}
        tenancy.status = TenancyStatus.ENDED
        tenancy.save(update_fields=["status"])
        record(None, "end", tenancy, team=tenancy.team, before=before, after={"status": "ended"})
        tell(tenancy, f"The term of {tenancy} has ended. Requests accepted before will finish.")
    return len(ended)


@transaction.atomic
def warn_of_ends() -> int:
    """Tell both sides, once a term, that it ends within a week; returns of how many tenancies."""
    now = timezone.now()
    soon = (
        Tenancy.objects.in_force().select_for_update(skip_locked=True).filter(ends_at__lt=now + WARN_BEFORE)
    )
    warned = [tenancy for tenancy in soon if tenancy.end_told != tenancy.ends_at]
    for tenancy in warned:
        tenancy.end_told = tenancy.ends_at
        tenancy.save(update_fields=["end_told"])
        tell(tenancy, f"{tenancy} ends on {tenancy.ends_at:%Y-%m-%d at %H:%M} UTC. It can be renewed.")
    return len(warned)
