"""Whom to tell of a hole: RFC 9116."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from webapp.common.environment import contacts

ADDRESS = "/.well-known/security.txt"


@pytest.mark.django_db
def test_it_names_the_contacts_and_an_end(settings: Any) -> None:
    assert Client().get(ADDRESS).status_code == 404
    settings.SECURITY_CONTACT = ["mailto:security@example.org", "https://example.org/report"]
    answer = Client().get(ADDRESS)
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    *named, expires = answer.content.decode().splitlines()
    assert named == ["Contact: mailto:security@example.org", "Contact: https://example.org/report"]
    until = datetime.fromisoformat(expires.removeprefix("Expires: "))
    assert timedelta(0) < until - datetime.now(UTC) < timedelta(days=365), (
        "less than a year, as the RFC wants"
    )


@pytest.mark.parametrize("wrong", ["security@example.org", "http://example.org", "mailto:a\nExpires: 2020"])
def test_a_contact_that_is_none_stops_the_start(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("MERIDIAN_SECURITY_CONTACT", wrong)
    with pytest.raises(ImproperlyConfigured, match="MERIDIAN_SECURITY_CONTACT"):
        contacts("MERIDIAN_SECURITY_CONTACT")
