"""Login: success, failure and lock in the audit; the lock is of name and address; an admin may lift it."""

from datetime import timedelta
from typing import Any

from axes.models import AccessAttempt
from django.test import Client
from django.utils import timezone

from tests.site.house import PASSWORD, rows
from webapp.accounts.models import AuditEntry

ELSEWHERE = {"REMOTE_ADDR": "192.0.2.7"}


def attempt(name: str, password: str = "wrong", **extra: str) -> Any:
    return Client().post("/login/", {"username": name, "password": password}, **extra)


def test_logins_and_failures_are_in_the_audit(house: Any) -> None:
    house.give_password("viewer")
    assert attempt("viewer").status_code == 200
    assert attempt("viewer", PASSWORD).status_code == 302
    failed, login = rows("login-failed").get(), rows("login").get()
    assert (failed.actor, failed.object_label, failed.message) == (None, "viewer", "From 127.0.0.1.")
    assert (login.actor, login.object_label) == (house.users["viewer"], "viewer")


def test_what_was_typed_as_an_unknown_name_is_not_kept(house: Any) -> None:
    """People type passwords into the field of the name."""
    for _ in range(3):
        attempt("hunter2-secret")
    row = rows("login-failed").get()
    assert row.object_label == "an unknown name"
    assert "hunter2" not in str(list(AuditEntry.objects.values()))


def test_the_lock_is_of_name_and_address_and_says_how_long(house: Any) -> None:
    house.give_password("viewer")
    for _ in range(8):
        last = attempt("viewer")
    assert last.status_code == 429
    text = attempt("viewer", PASSWORD)
    assert text.status_code == 429
    assert "Try again in 10 min" in text.content.decode()
    assert 0 < int(text["Retry-After"]) <= 600
    assert rows("lock").count() == 1
    assert rows("login-failed").count() == 7
    assert attempt("viewer", PASSWORD, **ELSEWHERE).status_code == 302  # the same name from elsewhere
    house.give_password("operator")
    assert attempt("operator", PASSWORD).status_code == 302  # another name from here


def test_trying_the_door_does_not_lengthen_the_lock(house: Any) -> None:
    house.give_password("viewer")
    for _ in range(8):
        attempt("viewer")
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=7))
    assert "Try again in 3 min" in attempt("viewer", PASSWORD).content.decode()
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=11))
    assert attempt("viewer", PASSWORD).status_code == 302


def test_an_admin_sees_the_lock_and_lifts_it(house: Any) -> None:
    house.give_password("viewer")
    url = f"/people/{house.users['viewer'].pk}/"
    for _ in range(8):
        attempt("viewer")
    admin = house.client("admin")
    assert "Locked out" in admin.get(url).content.decode()
    locked = admin.get("/people/?state=locked").context["table"].rows
    assert [row.record.user.username for row in locked] == ["viewer"]
    admin.post(f"{url}unlock/")
    assert "Locked out" not in admin.get(url).content.decode()
    assert attempt("viewer", PASSWORD).status_code == 302
    assert rows("unlock").get().actor == house.users["admin"]


def test_an_inactive_account_cannot_log_in(house: Any) -> None:
    user = house.give_password("viewer")
    user.is_active = False
    user.save()
    assert attempt("viewer", PASSWORD).status_code == 200


def test_the_demo_names_its_logins(house: Any, settings: Any) -> None:
    settings.DEMO = True
    assert "meridian-demo" in Client().get("/login/").content.decode()
    settings.DEMO = False
    assert "meridian-demo" not in Client().get("/login/").content.decode()


def test_no_redirect_leaves_the_site(house: Any) -> None:
    house.give_password("viewer")
    form = {"username": "viewer", "password": PASSWORD, "next": "https://evil.example/"}
    assert Client().post("/login/", form)["Location"] == "/"
