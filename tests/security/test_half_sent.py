"""Requests that never end: half-sent heads and bodies, floods of connections, bodies without an end."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.security.served_site import ServedSite, answer_of, answers, is_closed, served_site
from tests.waiting import LIMIT_S, until
from webapp.edge.bodies import OF_ONE_ADDRESS, most_bytes
from webapp.edge.connections import BoundedProtocol
from webapp.edge.refusals import App, Receive, Scope, Send

SPOOL = "spool"
HALF_HEAD = b"POST /login/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half"
CHUNKED = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    var = tmp_path_factory.mktemp("half")
    (var / SPOOL).mkdir()
    limits = {"MERIDIAN_HEAD_TIMEOUT_S": "2", "MERIDIAN_BODY_TIMEOUT_S": "1"}
    with served_site(var, TMPDIR=str(var / SPOOL), **limits) as address:
        yield address


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    """A site that takes 10 connections of an address. Nothing is late."""
    var = tmp_path_factory.mktemp("patient")
    (var / SPOOL).mkdir()
    limits = {"MERIDIAN_HEAD_TIMEOUT_S": "600", "MERIDIAN_BODY_TIMEOUT_S": "600"}
    limits["MERIDIAN_CONNECTIONS_PER_ADDRESS"] = "10"
    with served_site(var, TMPDIR=str(var / SPOOL), **limits) as address:
        yield address


def test_half_sent_heads_are_closed_while_others_are_answered(site: ServedSite) -> None:
    silent = [site.connect() for _ in range(40)]
    half = [site.connect(HALF_HEAD) for _ in range(40)]
    used = site.connect(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer_of(used).status == 200
    used.sendall(HALF_HEAD)
    until(lambda: answers(site), every_s=0.1)
    for line in (*half, used):
        answer = answer_of(line)
        assert (answer.status, answer.headers["Connection"]) == (408, "close")
    assert all(is_closed(line) for line in (*silent, *half, used))


def test_a_head_that_trickles_is_late_too(site: ServedSite) -> None:
    line = site.connect(b"GET / HTTP/1.1\r\n")
    ended = threading.Event()

    def trickle() -> None:
        while not ended.wait(0.05):
            try:
                line.sendall(b"X: y\r\n")
            except OSError:
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        assert answer_of(line).status == 408
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("path", [b"/login/", b"/v1/completions", b"/api/v1/nodes/join/", b"/nowhere"])
def test_half_sent_bodies_are_408(site: ServedSite, path: bytes) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{" % path
    answer = answer_of(site.connect(head))
    assert (answer.status, answer.headers["Connection"]) == (408, "close")


@pytest.mark.parametrize("path", ["/login/", "/plans/new/", "/placement/new/", "/v1/batches", "/api/v1/x/"])
def test_a_body_beyond_the_cap_is_413(patient: ServedSite, path: str) -> None:
    most = most_bytes(path)
    declared = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {most + 1}\r\n\r\n"
    assert answer_of(patient.connect(declared.encode())).status == 413, "at once: nothing of it was sent"
    line = patient.connect(CHUNKED % path.encode())
    for _ in range(most // 0x10000 + 1):
        line.sendall(CHUNK)
    answer = answer_of(line)
    assert answer.status == 413
    assert f"{most:,} bytes" in answer.body.decode()  # type: ignore[attr-defined]
    with contextlib.suppress(ConnectionError):
        while True:  # a body without an end; not as fast as the machine can, for it has more to do
            line.sendall(CHUNK)
            time.sleep(0.01)
    assert is_closed(line)


def test_who_sends_all_of_a_large_body_gets_the_answer(patient: ServedSite) -> None:
    """Closed at once, the connection would be reset before the client has read why."""
    for path in ("/v1/completions", "/login/"):
        body = b"x" * (4 * most_bytes(path))
        answer = httpx.post(patient.url + path, content=body, timeout=LIMIT_S)
        assert answer.status_code == 413


def test_a_large_body_within_the_cap_is_not_spooled(patient: ServedSite) -> None:
    """Django's own handler would put it into the temporary folder as it comes."""
    seen: set[str] = set()
    folder = patient.var / SPOOL
    line = patient.connect(CHUNKED % b"/placement/new/")
    for _ in range(most_bytes("/placement/new/") // 0x10000 - 1):
        line.sendall(CHUNK)
        seen |= _open_files(folder)
    assert not seen
    assert not any(folder.iterdir())
    line.close()


def _open_files(folder: Path) -> set[str]:
    """Files under `folder` that some process has open: a spooled file has no name in it."""
    targets = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith(str(folder)):
            targets.add(target)
    return targets


def test_an_address_has_so_many_connections(patient: ServedSite) -> None:
    held = [patient.connect(HALF_HEAD) for _ in range(10)]
    get = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answer = until(lambda: (reply := answer_of(patient.connect(get))).status == 429 and reply, every_s=0.1)
    assert (answer.headers["Retry-After"], answer.headers["Connection"]) == ("5", "close")
    assert answer_of(patient.connect(get.replace(b"healthz", b"v1/models"))).status == 429
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{patient.port}/ws/runs/1/", open_timeout=LIMIT_S)
    assert refused.value.response.status_code == 429
    # Beyond twice as many nothing is answered any more.
    more = [patient.connect(HALF_HEAD) for _ in range(20)]
    assert is_closed(more[-1])
    for line in (*held, *more):
        line.close()
    until(lambda: answer_of(patient.connect(get)).status == 200, every_s=0.1)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    """A site that takes 30 connections in all. Only an answer that is not taken is late."""
    limits = {"MERIDIAN_HEAD_TIMEOUT_S": "600", "MERIDIAN_BODY_TIMEOUT_S": "600"}
    limits |= {"MERIDIAN_CONNECTIONS": "30", "MERIDIAN_SEND_TIMEOUT_S": "1"}
    with served_site(tmp_path_factory.mktemp("full"), **limits) as address:
        yield address


GET = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_the_site_has_so_many_connections_in_all(full: ServedSite) -> None:
    held = [full.connect(HALF_HEAD) for _ in range(30)]
    answer = until(lambda: (reply := answer_of(full.connect(GET))).status == 503 and reply, every_s=0.1)
    assert (answer.headers["Retry-After"], answer.headers["Connection"]) == ("5", "close")
    assert b"as many connections as it can hold" in answer.body  # type: ignore[attr-defined]
    more = [full.connect(HALF_HEAD) for _ in range(40)]
    assert is_closed(more[-1]), "beyond twice as many nothing is answered any more"
    for line in (*held, *more):
        line.close()
    until(lambda: answer_of(full.connect(GET)).status == 200, every_s=0.1)


def test_an_answer_that_nobody_takes_ends_its_connection(full: ServedSite) -> None:
    large = b"GET /static/plotly/plotly.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", full.port))
        line.sendall(large)
        assert line.recv(1 << 12).startswith(b"HTTP/1.1 200")
        mine = line.getsockname()

        def held() -> bool:
            # By the process that has it open: the kernel itself keeps on sending what it has. Connections to
            # other servers may come from the same port.
            lines = psutil.net_connections("tcp")
            return any(one.raddr == mine and one.laddr.port == full.port and one.pid for one in lines)

        assert held()
        until(lambda: not held(), every_s=0.1)


@contextlib.asynccontextmanager
async def narrow(app: App) -> AsyncIterator[tuple[socket.socket, ServerState]]:
    """A client of `app` and the state of its server, in this process; few bytes fit on the way between."""
    config, state = uvicorn.Config(app, log_level="warning", lifespan="off"), ServerState()
    with socket.socket() as listener, socket.socket() as line:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: BoundedProtocol(config, state, {}), sock=listener)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.setblocking(False)
        async with asyncio.timeout(LIMIT_S):
            await loop.sock_connect(line, listener.getsockname())
            yield line, state
        server.close()


async def test_the_last_bytes_of_an_answer_that_nobody_takes_end_its_connection_too(settings: Any) -> None:
    settings.SEND_TIMEOUT_S = 0.1

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(48 << 10)})

    async with narrow(app) as (line, state):
        await asyncio.get_running_loop().sock_sendall(line, GET)
        while not state.total_requests or state.connections:
            await asyncio.sleep(0.01)


async def test_a_socket_outlives_the_answer_before_it_on_its_connection(settings: Any) -> None:
    settings.SEND_TIMEOUT_S = 0.1
    opened = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            opened.set()
            await receive()
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(48 << 10)})

    upgrade = b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    upgrade += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    async with narrow(app) as (line, _):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(line, GET + upgrade)
        await opened.wait()
        await asyncio.sleep(3 * settings.SEND_TIMEOUT_S)
        received = b""
        while b"101 Switching Protocols" not in received:
            piece = await loop.sock_recv(line, 1 << 16)
            assert piece, "closed"
            received += piece


def test_an_address_sends_so_many_large_documents_at_once(full: ServedSite) -> None:
    most = most_bytes("/v1/completions")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {most}\r\n\r\n{{"
    held = [full.connect(head.encode()) for _ in range(OF_ONE_ADDRESS)]

    def status() -> int:
        small = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}"
        return answer_of(full.connect(small)).status

    until(lambda: status() == 429, every_s=0.1)
    answer = answer_of(full.connect(head.encode()))
    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    assert b"Your address sends too many large requests" in answer.body  # type: ignore[attr-defined]
    for line in held:
        line.close()
    until(lambda: status() != 429, every_s=0.1)
