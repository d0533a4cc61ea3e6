"""Pages of people: who sees whom, who may change what, and what nobody may (the last admin)."""

from typing import Any

import pytest
from django.contrib.auth.hashers import make_password
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.site.house import PASSWORD, rows
from webapp.accounts import services
from webapp.accounts.models import AuditEntry, Membership, Role, Team, User


def test_an_admin_lists_the_members_of_his_teams_alone(house: Any) -> None:
    text = house.client("admin").get("/people/").content.decode()
    for name in ("viewer", "operator", "admin", "tenant", "both"):
        assert f">{name}</a>" in text
    assert "stranger" not in text
    assert house.other.name not in text
    assert ">viewer</a>" not in house.client("stranger").get("/people/").content.decode()
    assert ">stranger</a>" in house.client("root").get("/people/").content.decode()


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("q=oper", {"operator"}),
        ("role=tenant", {"tenant"}),
        ("state=deactivated", {"viewer"}),
        ("state=locked", set()),
    ],
)
def test_the_list_is_filtered(house: Any, query: str, shown: set[str]) -> None:
    User.objects.filter(username="viewer").update(is_active=False)
    rows = house.client("admin").get(f"/people/?{query}").context["table"].rows
    assert {row.record.user.username for row in rows} == shown


def test_a_role_is_changed_and_audited(house: Any) -> None:
    membership = house.membership("viewer")
    answer = house.client("admin").post(f"/people/roles/{membership.pk}/", {"role": "operator"})
    assert answer["Location"] == f"/people/{house.users['viewer'].pk}/"
    assert house.membership("viewer").role == Role.OPERATOR
    row = rows("set-role")[0]
    assert (row.actor.username, row.team, row.before, row.after) == (
        "admin",
        house.team,
        {"role": "viewer"},
        {"role": "operator"},
    )


@pytest.mark.parametrize("who", ["viewer", "operator", "tenant", "stranger", "both"])
def test_nobody_raises_himself_or_touches_another_team(house: Any, who: str) -> None:
    """A crafted POST with the id of one's own membership, or of any in a team of others."""
    before = set(Membership.objects.values_list("pk", "role"))
    client = house.client(who)
    for membership in Membership.objects.filter(team=house.team):
        for url in (f"/people/roles/{membership.pk}/", f"/people/roles/{membership.pk}/remove/"):
            assert client.post(url, {"role": "admin"}).status_code == 404
    for user in User.objects.exclude(username__in=("stranger", "both")):
        for act in ("deactivate", "activate", "unlock", "password"):
            assert client.post(f"/people/{user.pk}/{act}/").status_code == 404
    assert set(Membership.objects.values_list("pk", "role")) == before
    assert not User.objects.filter(is_active=False).exists()


def test_an_unknown_role_is_refused(house: Any) -> None:
    membership = house.membership("viewer")
    house.client("admin").post(f"/people/roles/{membership.pk}/", {"role": "superuser"})
    assert house.membership("viewer").role == Role.VIEWER
    with pytest.raises(ValidationError, match="must be one of"):
        services.set_role(house.users["viewer"], house.team, "superuser")  # type: ignore[arg-type]


def test_a_team_keeps_an_active_admin(house: Any) -> None:
    client, membership = house.client("admin"), house.membership("admin")
    page = client.post(f"/people/roles/{membership.pk}/", {"role": "viewer"}, follow=True).content.decode()
    assert "is the last active admin of Research" in page
    refused = client.post(f"/people/roles/{membership.pk}/remove/")
    assert refused.status_code == 409
    assert "is the last active admin of Research" in refused.content.decode()
    assert house.membership("admin").role == Role.ADMIN
    # Another admin whose account is switched off does not count.
    services.set_role(house.users["operator"], house.team, Role.ADMIN)
    User.objects.filter(username="operator").update(is_active=False)
    assert client.post(f"/people/roles/{membership.pk}/remove/").status_code == 409
    User.objects.filter(username="operator").update(is_active=True)
    assert client.post(f"/people/roles/{membership.pk}/remove/").status_code == 302
    assert not Membership.objects.filter(pk=membership.pk).exists()
    assert house.client("admin").get("/people/").status_code == 404


def test_the_last_admin_cannot_be_deactivated_even_by_a_superuser(house: Any) -> None:
    answer = house.client("root").post(f"/people/{house.users['admin'].pk}/deactivate/")
    assert answer.status_code == 409
    assert User.objects.get(username="admin").is_active


def test_a_deactivated_person_is_out_at_once(house: Any) -> None:
    viewer = house.client("viewer")
    assert viewer.get("/plans/").status_code == 200
    url = f"/people/{house.users['viewer'].pk}"
    assert "Deactivate viewer" in house.client("admin").get(f"{url}/deactivate/").content.decode()
    assert house.client("admin").post(f"{url}/deactivate/").status_code == 302
    assert viewer.get("/plans/")["Location"].startswith("/login/")
    house.client("admin").post(f"{url}/activate/")
    assert User.objects.get(username="viewer").is_active
    assert [row.verb for row in AuditEntry.objects.filter(object_type="user")[:2]] == [
        "activate",
        "deactivate",
    ]


def test_an_account_in_two_teams_is_no_single_admins(house: Any) -> None:
    """Else an admin of one team could log in as an admin of another by a link for a new password."""
    both = house.users["both"].pk
    client = house.client("admin")
    page = client.get(f"/people/{both}/")
    assert page.status_code == 200
    assert house.other.name not in page.content.decode()
    for act in ("deactivate", "activate", "unlock", "password"):
        assert client.post(f"/people/{both}/{act}/").status_code == 403
    assert house.client("root").post(f"/people/{both}/deactivate/").status_code == 302


def test_a_superuser_is_no_admins_to_manage(house: Any) -> None:
    Membership.objects.create(user=house.users["root"], team=house.team, role=Role.VIEWER)
    answer = house.client("admin").post(f"/people/{house.users['root'].pk}/password/")
    assert answer.status_code == 403


def test_a_link_for_a_new_password_works_once(house: Any) -> None:
    User.objects.filter(username="viewer").update(password=make_password("the old passphrase"))
    page = house.client("admin").post(f"/people/{house.users['viewer'].pk}/password/", follow=True)
    assert page["Cache-Control"] == "no-store"
    path = page.context["url"].removeprefix("http://testserver")
    assert path not in str(AuditEntry.objects.values_list("message", "after"))
    client = Client()
    form = client.get(path, follow=True)
    assert path not in form.request["PATH_INFO"]  # the token is out of the address before anything is shown
    weak = client.post(form.request["PATH_INFO"], {"new_password1": "password", "new_password2": "password"})
    assert weak.context["form"].errors["new_password2"]
    new = {"new_password1": PASSWORD, "new_password2": PASSWORD}
    assert client.post(form.request["PATH_INFO"], new)["Location"] == "/password/done/"
    assert User.objects.get(username="viewer").check_password(PASSWORD)
    assert rows("reset-password").count() == 1
    assert "was used already" in Client().get(path, follow=True).content.decode()


def test_two_admins_who_remove_each_other_lock_the_team(house: Any) -> None:
    """The check of the last admin locks the team's row: it must do so before it counts."""
    with CaptureQueriesContext(connection) as captured:
        services.set_role(house.users["viewer"], house.team, Role.OPERATOR)
    statements = [query["sql"] for query in captured]
    lock = next(i for i, sql in enumerate(statements) if "accounts_team" in sql and "FOR UPDATE" in sql)
    count = next(i for i, sql in enumerate(statements) if "accounts_membership" in sql and "is_active" in sql)
    assert lock < count
    assert Team.objects.count() == 2


def test_createsuperuser_writes_a_row(db: Any) -> None:
    from django.core.management import call_command

    call_command("createsuperuser", username="root", email="", interactive=False, verbosity=0)
    entry = AuditEntry.objects.get(verb="create", object_type="user")
    assert (entry.object_label, entry.actor, entry.after) == (
        "root",
        None,
        {"username": "root", "is_superuser": True},
    )
