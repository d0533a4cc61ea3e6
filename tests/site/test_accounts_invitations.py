"""Invitations: made by admins into their own teams, accepted once, revoked, outdated, sent by mail."""

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from django.utils import timezone

from tests.site.house import PASSWORD, rows
from webapp.accounts import services
from webapp.accounts.models import AuditEntry, Invitation, Membership, Role, User

NEW = {"username": "ada", "first_name": "Ada", "last_name": "L", "password1": PASSWORD, "password2": PASSWORD}


def invite(house: Any, role: str = "operator", **more: str) -> str:
    """Invite over the page; returns the path of the link that it shows."""
    form = {"email": "ada@example.org", "team": house.team.pk, "role": role, **more}
    page = house.client("admin").post("/invitations/new/", form, follow=True)
    assert page.status_code == 200, page.context["form"].errors
    assert page["Cache-Control"] == "no-store"
    return page.context["url"].removeprefix("http://testserver")


def test_the_link_makes_an_account_once(house: Any) -> None:
    path = invite(house)
    client = Client()
    assert "as operator" in client.get(path).content.decode()
    assert client.post(path, NEW)["Location"] == "/"
    ada = User.objects.get(username="ada")
    assert (ada.email, ada.memberships.get().role, ada.memberships.get().team) == (
        "ada@example.org",
        Role.OPERATOR,
        house.team,
    )
    assert client.get("/plans/").status_code == 200  # and is logged in
    assert [row.verb for row in AuditEntry.objects.filter(actor=ada)] == ["login", "accept", "create"]
    again = Client()
    assert again.get(path).status_code == 404
    assert again.post(path, NEW | {"username": "eve"}).status_code == 404
    assert not User.objects.filter(username="eve").exists()


def test_the_token_is_kept_nowhere(house: Any) -> None:
    token = invite(house).strip("/").rpartition("/")[2]
    database = str(list(Invitation.objects.values())) + str(list(AuditEntry.objects.values()))
    assert token not in database
    assert Invitation.objects.get().token_sha256 == services.token_hash(token)
    assert token not in house.client("admin").get("/invitations/").content.decode()


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_link_that_is_over_opens_nothing(house: Any, end: str) -> None:
    path = invite(house)
    invitation = Invitation.objects.get()
    if end == "revoked":
        assert house.client("admin").post(f"/invitations/{invitation.pk}/revoke/").status_code == 302
        assert rows("revoke").count() == 1
        assert house.client("admin").post(f"/invitations/{invitation.pk}/revoke/").status_code == 409
    else:
        assert timedelta(days=6.9) < invitation.expires_at - timezone.now() < timedelta(days=7.1)
        Invitation.objects.update(expires_at=timezone.now())
    assert Client().get(path).status_code == 404
    assert Client().post(path, NEW).status_code == 404
    assert house.client("stranger").post(path).status_code == 404
    assert not User.objects.filter(username="ada").exists()


def test_a_person_with_an_account_joins_with_it_and_loses_no_role(house: Any) -> None:
    assert house.client("stranger").post(invite(house, "viewer"))["Location"] == "/"
    assert house.membership("stranger").role == Role.VIEWER
    house.client("operator").post(invite(house, "viewer"))
    assert house.membership("operator").role == Role.OPERATOR
    house.client("viewer").post(invite(house, "operator"))
    assert house.membership("viewer").role == Role.OPERATOR


def test_one_open_invitation_an_address(house: Any) -> None:
    invite(house)
    form = {"email": "ADA@example.org", "team": house.team.pk, "role": "viewer"}
    assert "open invitation" in str(
        house.client("admin").post("/invitations/new/", form).context["form"].errors
    )


def test_nobody_invites_into_a_team_that_he_does_not_administer(house: Any) -> None:
    form = {"email": "eve@example.org", "team": house.other.pk, "role": "admin"}
    assert house.client("operator").post("/invitations/new/", form).status_code == 403
    refused = house.client("admin").post("/invitations/new/", form)
    assert refused.status_code == 422
    assert refused.context["form"].errors["team"]
    invite(house)
    assert (
        house.client("stranger").post(f"/invitations/{Invitation.objects.get().pk}/revoke/").status_code
        == 404
    )
    assert "ada@example.org" not in house.client("stranger").get("/invitations/").content.decode()
    assert Invitation.objects.open().count() == 1


def test_a_crafted_form_gives_no_other_role(house: Any) -> None:
    client = Client()
    client.post(invite(house, "viewer"), NEW | {"role": "admin", "is_superuser": "1", "is_staff": "1"})
    ada = User.objects.get(username="ada")
    assert (ada.memberships.get().role, ada.is_superuser, ada.is_staff) == (Role.VIEWER, False, False)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"username": "viewer"}, "username"),
        ({"password2": "another"}, "password2"),
        ({"password1": "12345678", "password2": "12345678"}, "password2"),
        ({"username": ""}, "username"),
    ],
)
def test_a_bad_new_account_is_refused_at_its_field(house: Any, change: dict[str, str], field: str) -> None:
    answer = Client().post(invite(house), NEW | change)
    assert answer.status_code == 422
    assert answer.context["form"].errors[field]
    assert Invitation.objects.open().count() == 1
    assert Membership.objects.filter(team=house.team).count() == 5


def test_the_link_is_sent_where_mail_is_configured(house: Any, settings: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"  # the tests' own backend keeps what would be sent
    path = invite(house)
    assert len(mail.outbox) == 1
    assert mail.outbox[0].to == ["ada@example.org"]
    assert path in mail.outbox[0].body


def test_a_mail_server_that_is_away_does_not_hide_the_link(house: Any, settings: Any) -> None:
    settings.EMAIL_HOST = "127.0.0.1"
    settings.EMAIL_PORT = 9  # nothing listens
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    assert Client().get(invite(house)).status_code == 200
