"""Streams of a tenancy, sockets of a person, and what one address has open at once."""

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from tests.site.telemetry import placed
from tests.site.test_live import Browser
from tests.site.world import make_world
from webapp.common.at_once import AtOnce
from webapp.edge.connections import PerAddress
from webapp.live.consumers import TOO_MANY


def test_what_is_open_is_counted_and_given_back_once() -> None:
    counter = AtOnce()
    first, second = counter.open("a", 2), counter.open("a", 2)
    assert first is not None
    assert second is not None
    assert counter.open("a", 2) is None
    assert counter.open("b", 2) is not None, "others have their own"
    first()
    first()
    assert counter.open("a", 2) is not None
    assert counter.open("a", 2) is None, "the first was given back once"


def test_nothing_is_kept_of_who_has_closed_all() -> None:
    counter = AtOnce()
    closes = [counter.open(who, 3, size=2) for who in range(100)]
    assert len(counter) == 100
    for close in closes:
        assert close is not None
        close()
    assert len(counter) == 0


async def test_an_address_has_so_many_requests_open_behind_a_proxy(settings: Any) -> None:
    settings.CONNECTIONS_PER_ADDRESS = 2
    seen: list[int] = []

    async def nested(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["depth"])
        await site({**scope, "depth": scope["depth"] + 1}, receive, send)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("no body is wanted")

    site = PerAddress(nested)
    for _ in range(2):  # what was open is closed
        sent: list[Any] = []
        await site({"type": "http", "path": "/", "client": ("10.0.0.1", 1), "depth": 0}, receive, send)
        assert sent[0]["status"] == 429
        assert (b"retry-after", b"5") in sent[0]["headers"]
    assert seen == [0, 1, 0, 1]


@pytest.mark.django_db(transaction=True)
async def test_a_person_has_so_many_sockets(settings: Any) -> None:
    settings.SOCKETS_PER_PERSON = 2
    world = await sync_to_async(make_world)()
    run = await sync_to_async(placed)(world)
    viewer, operator = world.users["viewer"], world.users["operator"]
    first, second = await Browser(run, viewer).open(), await Browser(run, viewer).open()
    # Each is counted once its run was found; its first message says so.
    assert [(await one.hear())["type"] for one in (first, second)] == ["snapshot", "snapshot"]
    third = await Browser(run, viewer).open()
    assert (await third.hear())["code"] == TOO_MANY
    await third.close()
    other = await Browser(run, operator).open()
    assert (await other.hear())["type"] == "snapshot"
    await first.close()
    again = await Browser(run, viewer).open()
    assert (await again.hear())["type"] == "snapshot"
    for browser in (second, other, again):
        await browser.close()
