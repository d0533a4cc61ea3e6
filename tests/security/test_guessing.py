"""Who guesses: many names from one address, one name from many, links, keys, and headers that lie."""

from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from tests.security.served_site import ServedSite, served_site
from tests.site.house import PASSWORD, make_house, rows
from tests.site.tenancies import give_key
from tests.site.world import make_world
from tests.waiting import LIMIT_S
from webapp.common.environment import networks
from webapp.common.throttle import of_address
from webapp.inventory.node_views import JOINS_PER_MINUTE


@pytest.fixture
def house(db: Any) -> Any:
    return make_house()


def attempt(name: str, password: str = "wrong", **extra: str) -> Any:
    return Client().post("/login/", {"username": name, "password": password}, **extra)


def test_one_address_that_tries_200_names_is_limited(house: Any, settings: Any) -> None:
    house.give_password("viewer")
    spoofed = ({"HTTP_X_FORWARDED_FOR": f"192.0.2.{number}"} for number in range(200))
    answers = [attempt(f"name-{number}", **next(spoofed)) for number in range(200)]
    tried = [answer.status_code for answer in answers].index(429)
    assert tried == settings.WRONG_PASSWORDS_PER_ADDRESS
    assert {answer.status_code for answer in answers[tried:]} == {429}
    assert 0 < int(answers[-1]["Retry-After"]) <= 600
    assert "Try again in" in answers[-1].content.decode()
    assert attempt("viewer", PASSWORD).status_code == 429, "the right password neither"
    assert attempt("viewer", PASSWORD, REMOTE_ADDR="192.0.2.7").status_code == 302
    # The audit does not fill: one row for unknown names, one for that of an account.
    assert rows("lock").count() == 2


def test_one_name_that_is_tried_from_200_addresses_is_limited(house: Any, settings: Any) -> None:
    user = house.give_password("viewer")
    assert attempt("viewer", PASSWORD, REMOTE_ADDR="198.51.100.1").status_code == 302
    answers = [attempt("viewer", REMOTE_ADDR=f"192.0.2.{number}") for number in range(200)]
    tried = [answer.status_code for answer in answers].index(429)
    assert tried == settings.WRONG_PASSWORDS_PER_NAME
    assert attempt("viewer", PASSWORD, REMOTE_ADDR="192.0.2.201").status_code == 429
    assert attempt("viewer", PASSWORD, REMOTE_ADDR="198.51.100.1").status_code == 302, (
        "where they have a session"
    )
    house.client("admin").post(f"/people/{user.pk}/unlock/")
    assert attempt("viewer", PASSWORD, REMOTE_ADDR="192.0.2.201").status_code == 302


def test_links_that_open_nothing_are_limited(house: Any, settings: Any) -> None:
    settings.WRONG_LINKS_PER_ADDRESS = 6
    paths = [f"/join/{'x' * 43}{number}/" for number in range(3)]
    paths += [f"/password/set/MQ/abcdef-{number}/" for number in range(3)]
    assert {Client().get(path).status_code for path in paths} <= {200, 404}
    for path in (paths[0], paths[3]):
        refused = Client().get(path)
        assert (refused.status_code, refused["Retry-After"]) == (429, "600")
        assert Client().get(path, REMOTE_ADDR="192.0.2.7").status_code in (200, 404)


def test_mails_for_a_new_password_are_limited(house: Any, settings: Any, mailoutbox: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"
    user = house.give_password("viewer")
    user.email = "viewer@example.org"
    user.save()

    def ask(address: str) -> int:
        form = {"email": "Viewer@example.org"}
        return Client().post("/password/", form, REMOTE_ADDR=address).status_code

    settings.RESET_MAILS_PER_ADDRESS = 4
    assert [ask("192.0.2.1") for _ in range(6)] == [302] * 4 + [429] * 2
    assert [ask(f"192.0.2.{number}") for number in range(2, 9)] == [302] * 7, "it says nothing of the account"
    assert len(mailoutbox) == 1, "an account gets one every few minutes"


@pytest.mark.django_db
def test_wrong_keys_are_limited(settings: Any) -> None:
    settings.WRONG_KEYS_PER_ADDRESS = 5
    _, secret = give_key(make_world())

    def ask(key: str, address: str = "192.0.2.1") -> Any:
        return Client(headers={"Authorization": f"Bearer {key}"}).get("/v1/models", REMOTE_ADDR=address)

    answers = [ask(f"mrd-{number}") for number in range(7)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 2
    assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(answers[-1]["Retry-After"]) <= 60
    assert ask("mrd-x", "192.0.2.2").status_code == 401
    assert ask(secret).status_code == 200


def tries(site: ServedSite, addresses: list[str]) -> list[int]:
    """What the join address answers to bodies that are no JSON, each sent with an X-Forwarded-For."""
    codes = []
    with httpx.Client(timeout=LIMIT_S) as client:
        for address in addresses:
            headers = {"X-Forwarded-For": address, "X-Forwarded-Proto": "https"}
            answer = client.post(f"{site.url}/api/v1/nodes/join/", content=b"{", headers=headers)
            codes.append(answer.status_code)
    return codes


def over_https(site: ServedSite) -> int:
    """What is answered to who says that a proxy took the request over HTTPS."""
    headers = {"X-Forwarded-Proto": "https"}
    return httpx.get(f"{site.url}/v1/models", headers=headers, timeout=LIMIT_S).status_code


OTHERS = [f"192.0.2.{number}" for number in range(JOINS_PER_MINUTE + 2)]
SAME = ["198.51.100.1"] * (JOINS_PER_MINUTE + 2)
ALL, LIMITED = [422] * (JOINS_PER_MINUTE + 2), [422] * JOINS_PER_MINUTE + [429] * 2


@pytest.mark.parametrize("named", ["", "10.0.0.1", "127.0.0.1", "10.0.0.0/8, 127.0.0.0/8"])
def test_a_named_proxy_alone_is_believed(tmp_path: Path, named: str) -> None:
    """The site is asked from 127.0.0.1, whose headers uvicorn believes if nothing is said."""
    production = {
        "MERIDIAN_ENV": "production",
        "MERIDIAN_SECRET_KEY": "k" * 60,
        "MERIDIAN_HOSTS": "127.0.0.1",
    }
    settings = {"MERIDIAN_PROXY_IPS": named, "FORWARDED_ALLOW_IPS": "*"}
    with served_site(tmp_path, **production, **settings) as site:
        if "127" in named:
            assert over_https(site) == 401, "the API has answered"
            assert tries(site, OTHERS) == ALL
            assert tries(site, SAME) == LIMITED
        else:
            assert over_https(site) == 301, "it came by HTTP, whatever it says"
    if "127" not in named:
        with served_site(tmp_path, **settings) as site:
            assert tries(site, OTHERS) == LIMITED


@pytest.mark.parametrize("address", ["nonsense", "10.0.0.1/8", "*", "10.0.0.0/33"])
def test_a_proxy_that_is_no_address_stops_the_start(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("MERIDIAN_PROXY_IPS", f"10.0.0.1,{address}")
    with pytest.raises(ImproperlyConfigured, match="MERIDIAN_PROXY_IPS"):
        networks("MERIDIAN_PROXY_IPS")


def test_an_ipv6_host_is_one_whatever_address_it_takes() -> None:
    assert of_address("2001:db8::1") == of_address("2001:db8::ffff:1") != of_address("2001:db8:0:1::1")
    assert of_address("::ffff:192.0.2.1") == of_address("192.0.2.1") == "192.0.2.1"
    assert of_address(None) == ""
