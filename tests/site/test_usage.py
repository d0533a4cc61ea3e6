"""Usage events: written once, charged by the price of their time."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from tests.site.tenancies import ask, give_key, grant, use
from webapp.prefill import services
from webapp.prefill.models import Outcome, UsageEvent, charge_of


@given(tokens=st.integers(0, 10**9), price=st.integers(0, 10**9))
def test_the_charge_is_within_half_a_micro_dollar_of_the_price(tokens: int, price: int) -> None:
    assert abs(charge_of(tokens, price) * 10**6 - tokens * price) * 2 <= 10**6


def test_only_what_is_delivered_is_charged(world: Any) -> None:
    tenancy = grant(world)
    assert use(tenancy).charge == 60  # 1,000 of a million tokens at 0.06 $
    assert use(tenancy, 1, outcome=Outcome.REFUSED, reason="no_bubble", ttft_ms=None).charge == 0
    assert use(tenancy, 2, outcome=Outcome.ABORTED, reason="client_gone", ttft_ms=None).charge == 0


def test_an_event_told_twice_is_written_once(world: Any) -> None:
    tenancy = grant(world)
    assert use(tenancy).pk == use(tenancy, prompt_tokens=5_000).pk
    assert UsageEvent.objects.get().prompt_tokens == 1_000


def test_the_database_refuses_every_change(world: Any) -> None:
    event = use(grant(world))
    for change in (
        lambda: UsageEvent.objects.filter(pk=event.pk).update(charge=0),
        lambda: UsageEvent.objects.filter(pk=event.pk).update(request_id="other"),
        lambda: event.delete(),
        lambda: connection.cursor().execute("DELETE FROM prefill_usageevent"),
    ):
        with pytest.raises(IntegrityError, match="written once"), transaction.atomic():
            change()
    assert UsageEvent.objects.count() == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"charge": 61},
        {"outcome": "refused", "reason": "x"},
        {"reason": "x"},
        {"outcome": "lost"},
        {"ttft_ms": None},
    ],
)
def test_the_database_refuses_a_wrong_charge(world: Any, wrong: dict[str, Any]) -> None:
    event = use(grant(world))
    values = {f.attname: getattr(event, f.attname) for f in UsageEvent._meta.fields if f.name != "id"}
    with pytest.raises(IntegrityError), transaction.atomic():
        UsageEvent.objects.create(**{**values, "request_id": "new", **wrong})


def test_a_later_price_changes_no_event(world: Any) -> None:
    tenancy = grant(world)
    event = use(tenancy)
    services.ask_renewal(tenancy.tenant, tenancy, 30)
    renewed = grant(world, tenancy, price=90_000)
    assert use(renewed, 1).charge == 90
    event.refresh_from_db()
    assert (event.price, event.charge) == (60_000, 60)


def test_what_does_not_belong_together_is_refused(world: Any) -> None:
    key, _ = give_key(world)
    other = grant(world)
    with pytest.raises(ValidationError, match="another tenancy"):
        use(other, key=key)
    use(other)
    with pytest.raises(ValidationError, match="another tenancy's"):
        services.record_usage(
            key.tenancy,
            request_id=f"request-{other.pk}-0",
            dc=world.dcs[0],
            at=other.created_at,
            outcome=Outcome.REFUSED,
            reason="no_bubble",
            prompt_tokens=1,
        )
    with pytest.raises(ValidationError, match="never granted"):
        use(ask(world))
