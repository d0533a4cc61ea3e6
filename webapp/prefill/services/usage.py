"""Usage: what is open, and one event a request, written once."""

from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction

from webapp.inventory.models import DataCenter
from webapp.prefill.models import ApiKey, OpenRequest, Outcome, Tenancy, UsageEvent, charge_of


def open_request(
    key: ApiKey, *, request_id: str, dc: DataCenter, at: datetime, in_batch: bool = False
) -> OpenRequest:
    """Write down that a request is admitted, before anything of it can be delivered.

    dc : one of those where it may run.
    """
    return OpenRequest.objects.create(
        request_id=request_id, tenancy=key.tenancy, key=key, dc=dc, at=at, in_batch=in_batch
    )


def drop_request(request_id: str) -> None:
    """Take an open request away of which nothing was delivered and no event is to be written."""
    OpenRequest.objects.filter(request_id=request_id).delete()


@transaction.atomic
def record_usage(
    tenancy: Tenancy,
    *,
    request_id: str,
    dc: DataCenter,
    at: datetime,
    outcome: Outcome,
    prompt_tokens: int,
    key: ApiKey | None = None,
    reason: str = "",
    ttft_ms: float | None = None,
    in_batch: bool = False,
) -> UsageEvent:
    """Write down what came of a request that arrived at `at`; told twice, it is written once. It is closed.

    Only a delivered prefill is charged, at the tenancy's price. One that was accepted before the tenancy was
    suspended or ended is written, and charged, like any other. One in a batch has no objective.

    Raises
    ------
    ValidationError
        The tenancy was never granted, the key is another's, or the request id was used for another tenancy.
    """
    if tenancy.price is None or tenancy.ttft_ms is None:
        raise ValidationError(f"{tenancy} has no price: it was never granted.")
    if key is not None and key.tenancy_id != tenancy.pk:
        raise ValidationError("The key is of another tenancy.")
    delivered = outcome == Outcome.DELIVERED
    event, _ = UsageEvent.objects.get_or_create(
        request_id=request_id,
        defaults={
            "tenancy": tenancy,
            "key": key,
            "dc": dc,
            "at": at,
            "outcome": outcome,
            "reason": reason,
            "prompt_tokens": prompt_tokens,
            "ttft_ms": ttft_ms,
            "ttft_objective_ms": None if in_batch else tenancy.ttft_ms,
            "price": tenancy.price,
            "charge": charge_of(prompt_tokens, tenancy.price) if delivered else 0,
        },
    )
    if event.tenancy_id != tenancy.pk:
        raise ValidationError("The request id is another tenancy's.")
    OpenRequest.objects.filter(request_id=request_id).delete()
    return event
