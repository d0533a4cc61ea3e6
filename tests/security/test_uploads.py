"""Uploads of traces: in pieces, within a size, a time and a number, and only after a login."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings as site

from tests.site.world import World
from webapp.edge.bodies import InMemory
from webapp.edge.uploads import FORM_BYTES, OF_ONE_ADDRESS, UPLOADS, Uploads

PIECE = 50_000


class Receiver:
    """Stands for Django: takes a body to its end, and says how much it was."""

    def __init__(self) -> None:
        self.taken = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            self.taken += len(message["body"])
        self.taken += len(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})


class Request:
    """A request whose body of `size` bytes comes in pieces; after `stops_at` of them nothing comes."""

    def __init__(self, size: int, *, cookie: str = "", stops_at: int | None = None) -> None:
        headers = [(b"content-length", str(size).encode()), (b"cookie", cookie.encode())]
        self.scope = {"type": "http", "method": "POST", "path": UPLOADS[-1], "headers": headers}
        self.scope["client"] = ("10.0.0.1", 1)
        self.left, self.read, self.stops_at = size, 0, stops_at
        self.status: int | None = None

    async def receive(self) -> Mapping[str, Any]:
        if self.stops_at is not None and self.read >= self.stops_at:
            await asyncio.sleep(3600)
        piece = min(PIECE, self.left)
        self.left, self.read = self.left - piece, self.read + piece
        return {"type": "http.request", "body": b"x" * piece, "more_body": self.left > 0}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]

    async def to(self, application: Any) -> int | None:
        await application(self.scope, self.receive, self.send)
        return self.status


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks is logged in."""

    async def yes(scope: Any) -> bool:
        return True

    monkeypatch.setattr("webapp.edge.uploads._is_logged_in", yes)


def application(django: Any) -> Uploads:
    return Uploads(InMemory(django, api=django), django=django)


def answered(request: Request, django: Any) -> int | None:
    return async_to_sync(request.to)(application(django))


def test_a_trace_is_longer_than_other_bodies_and_comes_in_pieces(somebody: None) -> None:
    size = 5 * site.LARGEST_DOCUMENT_BYTES
    django = Receiver()
    assert answered(Request(size), django) == 200
    assert django.taken == size


@pytest.mark.django_db(transaction=True)
def test_who_is_not_logged_in_sends_no_more_than_to_other_pages(world: World) -> None:
    key = world.client("operator").cookies[site.SESSION_COOKIE_NAME].value
    for given, status in ((key, 200), ("forged", 413), ("", 413)):
        cookie = f"{site.SESSION_COOKIE_NAME}={given}" if given else ""
        request = Request(site.LARGEST_BODY_BYTES + 1, cookie=cookie)
        assert answered(request, Receiver()) == status
        assert bool(request.read) == (status == 200)


def test_beyond_the_cap_nothing_is_read(somebody: None) -> None:
    request = Request(site.LARGEST_TRACE_BYTES + FORM_BYTES + 1)
    assert answered(request, Receiver()) == 413
    assert request.read == 0


def test_an_upload_that_stops_is_late(somebody: None, settings: Any) -> None:
    settings.BODY_TIMEOUT_S = 0.1
    request = Request(2 * site.LARGEST_BODY_BYTES, stops_at=PIECE)
    assert answered(request, Receiver()) == 408


def test_one_address_has_so_many_bytes_of_uploads_at_the_same_time(somebody: None, settings: Any) -> None:
    settings.LARGEST_BODY_BYTES, settings.LARGEST_TRACE_BYTES = 10_000, 300_000
    size = settings.LARGEST_TRACE_BYTES + FORM_BYTES
    statuses: list[int | None] = []

    class Nested(Receiver):
        """While it answers one upload the next one comes."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            statuses.append(await Request(size).to(one))
            await super().__call__(scope, receive, send)

    one = application(Nested())
    assert async_to_sync(Request(size).to)(one) == 200
    assert statuses == [429, *[200] * (OF_ONE_ADDRESS - 1)]
