"""Tenancies: who asks, who decides, what is granted, when it ends, who is told."""

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from tests.site.house import rows
from tests.site.tenancies import ask, end, grant, limits, second_tenant, use
from webapp.accounts.models import Role
from webapp.accounts.services import set_role
from webapp.inventory.services import blocked_by
from webapp.prefill import services
from webapp.prefill.models import Notice, Tenancy, TenancyStatus


def told(world: Any, name: str) -> list[str]:
    return list(Notice.objects.filter(user=world.users[name]).order_by("pk").values_list("text", flat=True))


def test_a_request_reaches_the_admins_and_waits(world: Any) -> None:
    tenancy = ask(world)
    assert tenancy.waits
    assert tenancy.datacenters == world.dcs[:2]
    assert "90,000 tokens/min of llama-3-8b in east, mid" in told(world, "admin")[0]
    assert not told(world, "tenant")
    assert rows("request")[0].after["asked_ttft_ms"] == 400


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"asked_tokens_per_min": 0}, "asked_tokens_per_min"),
        ({"asked_tokens_per_min": 2_000}, "asked_tokens_per_min"),
        ({"asked_ttft_ms": 0}, "asked_ttft_ms"),
        ({"asked_days": 367}, "asked_days"),
        ({"asked_longest_prompt": 8_193}, "asked_longest_prompt"),
        ({"typical_prompt": 5_000}, "typical_prompt"),
        ({"name": ""}, "name"),
    ],
)
def test_what_cannot_be_asked_is_named(world: Any, values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ask(world, **values)
    assert list(refused.value.message_dict) == [field]
    assert not Tenancy.objects.exists()


def test_a_viewer_and_a_stranger_ask_for_nothing(world: Any) -> None:
    for name in ("viewer", "stranger"):
        with pytest.raises(PermissionDenied):
            ask(world, world.users[name])


def test_an_admin_grants_less_than_was_asked(world: Any) -> None:
    tenancy = services.approve_tenancy(
        world.users["admin"],
        ask(world),
        limits(tokens_per_min=75_000),
        world.dcs[:1],
        "Until vit-22b ends.",
        oversell=True,
    )
    tenancy.refresh_from_db()
    assert (tenancy.status, tenancy.tokens_per_min, tenancy.price) == ("active", 75_000, 60_000)
    assert tenancy.datacenters == world.dcs[:1]
    assert timedelta(days=89) < tenancy.ends_at - timezone.now() <= timedelta(days=90)
    assert "75,000 tokens/min" in told(world, "tenant")[0]
    assert told(world, "tenant")[0].endswith("Until vit-22b ends.")
    assert rows("approve")[0].after["datacenters"] == ["east"]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"tokens_per_min": 4_095}, "tokens_per_min"),
        ({"ttft_ms": 0}, "ttft_ms"),
        ({"longest_prompt": 9_000, "tokens_per_min": 10_000}, "longest_prompt"),
        ({"price": -1}, "price"),
        ({"days": 0}, "days"),
    ],
)
def test_what_cannot_be_granted_is_named(world: Any, values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        services.approve_tenancy(world.users["admin"], ask(world), limits(**values), world.dcs[:1])
    assert list(refused.value.message_dict) == [field]


def test_only_what_was_asked_for_is_granted(world: Any) -> None:
    for chosen in ([], world.dcs[1:]):
        with pytest.raises(ValidationError, match="requested data centres"):
            services.approve_tenancy(world.users["admin"], ask(world), limits(), chosen)


def test_nobody_decides_on_their_own(world: Any) -> None:
    own = ask(world, world.users["admin"])
    with pytest.raises(PermissionDenied, match="your own"):
        services.approve_tenancy(world.users["admin"], own, limits(), world.dcs[:1])
    with pytest.raises(PermissionDenied, match="your own"):
        services.refuse_tenancy(world.users["admin"], own, "No.")
    set_role(world.users["operator"], world.team, Role.ADMIN)
    granted = services.approve_tenancy(world.users["operator"], own, limits(), world.dcs[:1], oversell=True)
    assert granted.status == "active"
    with pytest.raises(IntegrityError), transaction.atomic():
        Tenancy.objects.filter(pk=own.pk).update(decided_by=own.tenant)


def test_a_refusal_says_why_and_is_final(world: Any) -> None:
    tenancy = ask(world)
    with pytest.raises(ValidationError, match="Enter a reason"):
        services.refuse_tenancy(world.users["admin"], tenancy, "  ")
    services.refuse_tenancy(world.users["admin"], tenancy, "No supply until December.")
    assert told(world, "tenant")[-1].endswith("No supply until December.")
    for decide in (
        lambda: services.approve_tenancy(world.users["admin"], tenancy, limits(), world.dcs[:1]),
        lambda: services.refuse_tenancy(world.users["admin"], tenancy, "Again."),
    ):
        with pytest.raises(ValidationError, match="needs no decision"):
            decide()


def test_suspension_and_back(world: Any) -> None:
    tenancy = grant(world)
    suspended = services.suspend_tenancy(world.users["admin"], tenancy, "Bursts.")
    assert (suspended.state, suspended.reason) == (TenancyStatus.SUSPENDED, "Bursts.")
    assert not Tenancy.objects.in_force().exists()
    with pytest.raises(ValidationError, match="cannot be suspended"):
        services.suspend_tenancy(world.users["admin"], tenancy, "Again.")
    with pytest.raises(PermissionDenied):
        services.resume_tenancy(world.users["tenant"], tenancy)
    assert services.resume_tenancy(world.users["admin"], tenancy, oversell=True).state == TenancyStatus.ACTIVE


def test_a_term_ends_by_itself_and_is_written_down_later(world: Any) -> None:
    tenancy = grant(world)
    assert services.end_tenancies() == 0
    end(tenancy)
    tenancy.refresh_from_db()
    assert (tenancy.status, tenancy.state) == ("active", TenancyStatus.ENDED)
    assert not Tenancy.objects.in_force().exists()
    assert services.end_tenancies() == 1
    assert services.end_tenancies() == 0
    tenancy.refresh_from_db()
    assert tenancy.status == "ended"
    assert "accepted before will finish" in told(world, "tenant")[-1]


def test_both_sides_are_warned_once_a_term(world: Any) -> None:
    tenancy = grant(world)
    assert services.warn_of_ends() == 0
    Tenancy.objects.filter(pk=tenancy.pk).update(ends_at=timezone.now() + timedelta(days=3))
    assert services.warn_of_ends() == 1
    assert services.warn_of_ends() == 0
    assert "can be renewed" in told(world, "tenant")[-1]
    assert "can be renewed" in told(world, "admin")[-1]


def test_a_renewal_goes_on_from_the_end_of_the_term(world: Any) -> None:
    tenancy = grant(world)
    services.ask_renewal(tenancy.tenant, tenancy, 30)
    assert Tenancy.objects.to_decide().get() == tenancy
    renewed = services.approve_tenancy(
        world.users["admin"], tenancy, limits(days=30, price=70_000), world.dcs[:2], oversell=True
    )
    assert (renewed.ends_at - tenancy.ends_at, renewed.starts_at) == (timedelta(days=30), tenancy.starts_at)
    assert (renewed.price, renewed.waits) == (70_000, False)


def test_a_renewal_after_the_end_begins_now(world: Any) -> None:
    tenancy = grant(world)
    end(tenancy, ago=timedelta(hours=5))
    services.end_tenancies()
    tenancy.refresh_from_db()
    services.ask_renewal(tenancy.tenant, tenancy, 30)
    renewed = services.approve_tenancy(
        world.users["admin"], tenancy, limits(days=30), world.dcs[:2], oversell=True
    )
    assert renewed.state == TenancyStatus.ACTIVE
    assert renewed.ends_at - timezone.now() > timedelta(days=29, hours=23)


def test_a_refused_renewal_leaves_the_term_as_it_was(world: Any) -> None:
    tenancy = grant(world)
    services.ask_renewal(tenancy.tenant, tenancy, 30)
    left = services.refuse_tenancy(world.users["admin"], tenancy, "The run ends.")
    assert (left.state, left.ends_at, left.waits) == (TenancyStatus.ACTIVE, tenancy.ends_at, False)


def test_withdrawn_requests_cannot_be_granted(world: Any) -> None:
    tenancy = ask(world)
    with pytest.raises(PermissionDenied):
        services.withdraw_tenancy(second_tenant(world), tenancy)
    services.withdraw_tenancy(tenancy.tenant, tenancy)
    with pytest.raises(ValidationError, match="withdrawn"):
        grant(world, tenancy)


def test_a_tenant_sees_its_own_alone_and_only_while_it_is_one(world: Any) -> None:
    mine, other = ask(world), ask(world, second_tenant(world), name="Halden Labs")
    tenant = world.users["tenant"]
    assert list(Tenancy.objects.visible_to(tenant)) == [mine]
    assert set(Tenancy.objects.visible_to(world.users["viewer"])) == {mine, other}
    assert not Tenancy.objects.visible_to(world.users["stranger"]).exists()
    tenant.memberships.all().delete()
    assert not Tenancy.objects.visible_to(tenant).exists()


def test_a_data_centre_with_a_tenancy_stays(world: Any) -> None:
    tenancy = ask(world)
    assert f"tenancy {tenancy}" in blocked_by(world.dcs[0])


def test_notices_are_mailed_once_where_there_is_a_server(world: Any, settings: Any) -> None:
    tenant = world.users["tenant"]
    type(tenant).objects.filter(pk=tenant.pk).update(email="fathom@example.org")
    grant(world)
    assert services.mail_notices() == 0  # no server
    settings.EMAIL_HOST = "mail.example"
    assert services.mail_notices() == 1  # the admin who has no address is not waited for
    assert services.mail_notices() == 0
    assert mail.outbox[0].to == ["fathom@example.org"]
    assert "is approved" in mail.outbox[0].body
    assert not Notice.objects.filter(mailed_at=None).exists()


def test_mail_that_is_refused_is_tried_again_a_few_times(world: Any, settings: Any, monkeypatch: Any) -> None:
    type(world.users["admin"]).objects.filter(username="admin").update(email="admin@example.org")
    ask(world)
    settings.EMAIL_HOST = "mail.example"
    monkeypatch.setattr("webapp.accounts.mail.send_mail", lambda *args: 0)
    for _ in range(7):
        services.mail_notices()
    notice = Notice.objects.get()
    assert (notice.mail_tries, notice.mailed_at) == (5, None)


def test_a_tenancy_keeps_its_history(world: Any) -> None:
    tenancy = grant(world)
    use(tenancy)
    services.suspend_tenancy(world.users["admin"], tenancy, "Bursts.")
    verbs = rows("request") | rows("approve") | rows("suspend")
    assert [row.verb for row in verbs.filter(object_id=str(tenancy.pk)).order_by("pk")] == [
        "request",
        "approve",
        "suspend",
    ]
