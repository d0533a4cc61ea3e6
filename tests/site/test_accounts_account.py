"""One's own account, and what a tenant sees of the site."""

from typing import Any

from django.contrib.sessions.models import Session
from django.test import Client

from tests.site.house import PASSWORD, rows
from webapp.accounts.models import LoginSession, User


def logged_in(house: Any, name: str) -> Client:
    client = Client()
    answer = client.post("/login/", {"username": name, "password": PASSWORD})
    assert answer.status_code == 302
    return client


def test_a_tenant_lands_on_prefill_and_has_an_account_that_says_what_he_may(house: Any) -> None:
    house.give_password("tenant")
    client = logged_in(house, "tenant")
    assert client.get("/", follow=True).request["PATH_INFO"] == "/prefill/"
    page = client.get("/account/")
    text = page.content.decode()
    assert "Tenant" in text
    assert "Does not see the team" in text
    menu = [item["url"] for item in page.context["site"]["nav"]]
    assert menu == ["/prefill/", "/tenancies/", "/keys/", "/usage/", "/account/"]


def test_the_menu_shows_what_one_may_open(house: Any) -> None:
    for name in ("viewer", "operator", "admin", "tenant", "root"):
        client = house.client(name)
        for item in client.get("/account/").context["site"]["nav"]:
            assert client.get(item["url"]).status_code == 200, (name, item["url"])
    assert "/audit/" not in str(house.client("operator").get("/account/").context["site"]["nav"])
    assert "/audit/" in str(house.client("admin").get("/account/").context["site"]["nav"])


def test_a_person_in_no_team_has_the_account_page_alone(house: Any) -> None:
    house.membership("viewer").delete()
    client = house.client("viewer")
    assert "in no team" in client.get("/account/").content.decode()
    assert client.get("/plans/").status_code == 404


def test_the_profile_is_changed_with_its_values_in_the_audit(house: Any) -> None:
    form = {"first_name": "Vi", "last_name": "Ewer", "email": "vi@example.org", "time_zone": "Europe/Oslo"}
    client = house.client("viewer")
    assert client.post("/account/edit/", form | {"is_superuser": "1", "username": "root2"}).status_code == 302
    user = User.objects.get(username="viewer")
    assert (user.get_full_name(), user.time_zone, user.is_superuser) == ("Vi Ewer", "Europe/Oslo", False)
    assert rows("change")[0].after == form
    bad = client.post("/account/edit/", form | {"time_zone": "Mars/Olympus", "email": "none"})
    assert bad.status_code == 422
    assert set(bad.context["form"].errors) == {"time_zone", "email"}
    assert 'data-time-zone="Europe/Oslo"' in client.get("/account/").content.decode()


def test_a_new_password_ends_every_other_session(house: Any) -> None:
    house.give_password("viewer")
    here, there = logged_in(house, "viewer"), logged_in(house, "viewer")
    assert len(here.get("/account/").context["sessions"]) == 2
    form = {
        "old_password": PASSWORD,
        "new_password1": "another good one",
        "new_password2": "another good one",
    }
    assert here.post("/account/password/", form | {"old_password": "wrong"}).status_code == 422
    assert there.get("/account/").status_code == 200
    assert here.post("/account/password/", form).status_code == 302
    assert here.get("/account/").status_code == 200
    assert there.get("/account/").status_code == 302
    page = here.get("/account/")
    assert [one.session_key for one in page.context["sessions"]] == [here.session.session_key]
    assert rows("change-password")[0].message == "1 other sessions ended."
    assert User.objects.get(username="viewer").check_password("another good one")


def test_one_logs_out_everywhere_else(house: Any) -> None:
    house.give_password("viewer")
    here, there = logged_in(house, "viewer"), logged_in(house, "viewer")
    house.give_password("operator")
    other = logged_in(house, "operator")
    here.post("/account/sessions/end/")
    assert (here.get("/account/").status_code, there.get("/account/").status_code) == (200, 302)
    assert other.get("/account/").status_code == 200
    assert LoginSession.objects.filter(user=house.users["viewer"]).count() == 1
    assert Session.objects.count() == 2
    here.post("/logout/")
    assert not LoginSession.objects.filter(user=house.users["viewer"]).exists()
