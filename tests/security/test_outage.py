"""PostgreSQL is away: every address says so, and no log fills with tracebacks."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import httpx2 as httpx
import psycopg
import psycopg_pool
import pytest
from django.db import InterfaceError, OperationalError, connection
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.security.served_site import ServedSite, served_site
from tests.waiting import LIMIT_S
from webapp.common.database import is_away
from webapp.common.postgresql import base
from webapp.common.postgresql.base import DatabaseWrapper, Server
from webapp.prefill.services.keys import BEGINNING

SESSION = {"Cookie": "meridian_session=abcdefghijklmnopqrstuvwxyz012345"}
KEY = {"Authorization": f"Bearer {BEGINNING}0123456789abcdef"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    with served_site(tmp_path_factory.mktemp("away")) as address:
        yield address


def test_everything_says_so_without_a_traceback(site: ServedSite) -> None:
    page = {"headers": SESSION}
    prompt = {"headers": KEY, "json": {"model": "a", "prompt": "b"}}
    requests = {
        "page": ("GET", "/plans/", page),
        "models": ("GET", "/v1/models", {"headers": KEY}),
        "completions": ("POST", "/v1/completions", prompt),
        "batch": ("POST", "/v1/batches", {"headers": KEY, "content": b"{}"}),
        "join": ("POST", "/api/v1/nodes/join/", {"json": {"token": "mj-x", "version": "0.1.0", "host": "a"}}),
        "alive": ("GET", "/healthz", {}),
    }

    def ask(what: str) -> httpx.Response:
        method, path, more = requests[what]
        return httpx.request(method, site.url + path, timeout=LIMIT_S, **more)  # type: ignore[arg-type]

    with ThreadPoolExecutor(len(requests) + 1) as pool:
        socket = pool.submit(_handshake, site)
        answers = dict(zip(requests, pool.map(ask, requests), strict=True))
    assert answers.pop("alive").status_code == 200
    for what, answer in answers.items():
        assert answer.status_code == 503, (what, answer.text)
        assert int(answer.headers["Retry-After"]) > 0, what
    assert "The database is away" in answers["page"].text
    assert answers["join"].json()["reason"] == "The database is away"
    for what in ("models", "completions", "batch"):
        error = answers[what].json()["error"]
        assert (error["code"], error["type"]) == ("unavailable", "service_unavailable_error"), what
    assert socket.result() == (503, "5")
    assert "Traceback" not in site.log
    assert "the database does not answer" in site.log


def _handshake(site: ServedSite) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused:
        connect(
            f"ws://127.0.0.1:{site.port}/ws/runs/1/",
            origin=site.url,  # type: ignore[arg-type]
            additional_headers=SESSION,
            open_timeout=LIMIT_S,
        )
    response = refused.value.response
    return response.status_code, response.headers["Retry-After"]


@pytest.mark.parametrize(
    ("cause", "away"),
    [
        (psycopg.OperationalError(), True),  # nobody listens, or the pool has none in time
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CannotConnectNow(), True),
        (psycopg.errors.TooManyConnections(), True),
        (psycopg.errors.ConnectionFailure(), True),
        (psycopg.errors.QueryCanceled(), False),
        (psycopg.errors.DeadlockDetected(), False),
        (psycopg.errors.DiskFull(), False),
    ],
)
def test_only_an_outage_counts_as_one(cause: Exception, away: bool) -> None:
    error = OperationalError()
    error.__cause__ = cause
    assert is_away(error) == away
    assert is_away(InterfaceError("connection already closed"))
    assert not is_away(ValueError())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    """That of what is known of the server, which nobody has asked yet. It stands still."""
    clock = Clock()
    with patch.object(DatabaseWrapper, "server", Server(clock)):
        yield clock


def wrapper(alias: str, **settings: str) -> Any:
    return DatabaseWrapper({**connection.settings_dict, **settings}, alias)


@pytest.mark.django_db
def test_nobody_waits_for_a_pool_that_cannot_connect(clock: Clock) -> None:
    away = wrapper("away", HOST="127.0.0.1", PORT="1")
    with (
        patch.object(psycopg_pool.ConnectionPool, "getconn", side_effect=AssertionError("it waits")),
        pytest.raises(OperationalError) as error,
    ):
        away.ensure_connection()
    assert is_away(error.value)
    clock.now += base.KNOWN_S
    back = wrapper("back")
    back.ensure_connection()
    back.close()
    back.close_pool()


def test_a_server_that_is_away_is_asked_once_for_all(clock: Clock) -> None:
    timeouts = []

    def connect(**params: Any) -> None:
        timeouts.append(params["connect_timeout"])
        raise psycopg.OperationalError("no answer")

    def request(_: int) -> None:
        with pytest.raises(psycopg.OperationalError, match="no answer"):
            DatabaseWrapper.server.ask(connect, {})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(request, range(40)))
    assert timeouts == [base.CONNECT_S]
    clock.now += base.KNOWN_S
    request(0)
    assert timeouts == [base.CONNECT_S] * 2
