"""A forgotten password: by mail where mail is configured, else the page says whom to ask."""

import re
from typing import Any

import pytest
from django.core import mail
from django.test import Client

from tests.site.house import PASSWORD, rows
from webapp.accounts.models import User


@pytest.fixture
def mailing(settings: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"


def test_without_a_mail_server_the_page_says_whom_to_ask(house: Any) -> None:
    for answer in (Client().get("/password/"), Client().post("/password/", {"email": "vi@example.org"})):
        assert "Ask an admin" in answer.content.decode()
    assert mail.outbox == []


def test_a_mailed_link_sets_a_new_password(house: Any, mailing: None) -> None:
    user = house.give_password("viewer")
    User.objects.filter(pk=user.pk).update(email="vi@example.org")
    assert Client().post("/password/", {"email": "VI@example.org"})["Location"] == "/password/sent/"
    assert rows("reset-mail").get().object_id == str(user.pk)
    link = re.search(r"http://testserver(/password/set/\S+)", mail.outbox[0].body)
    assert link
    client = Client()
    form = client.get(link[1], follow=True)
    new = {"new_password1": "another good one", "new_password2": "another good one"}
    client.post(form.request["PATH_INFO"], new)
    assert User.objects.get(pk=user.pk).check_password("another good one")
    assert rows("reset-password").get().actor == user


def test_the_answer_does_not_tell_which_addresses_are_known(house: Any, mailing: None) -> None:
    User.objects.filter(username="viewer").update(email="vi@example.org", password=PASSWORD)
    known = Client().post("/password/", {"email": "vi@example.org"}, follow=True)
    unknown = Client().post("/password/", {"email": "nobody@example.org"}, follow=True)
    assert known.content == unknown.content


def test_mail_is_not_sent_again_at_once(house: Any, mailing: None) -> None:
    house.give_password("viewer")
    User.objects.filter(username="viewer").update(email="vi@example.org")
    for _ in range(3):
        Client().post("/password/", {"email": "vi@example.org"})
    assert len(mail.outbox) == 1
