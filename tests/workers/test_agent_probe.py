"""Nodes probe each other over real sockets."""

import contextlib
import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from engine.errors import InputError
from engine.job.events.node import Probe
from tests.ports import free_port
from tests.waiting import LIMIT_S
from workers import probe
from workers.probe import ASKED, LONGEST_LISTEN_S, Listener, PeerAddress, Prober, ask

SECRET = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def _no_node_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "CONNECT_S", LIMIT_S)


@pytest.fixture
def listener() -> Iterator[Listener]:
    new = Listener("127.0.0.1", 0, SECRET.encode(), LONGEST_LISTEN_S)
    yield new
    new.close()


def peer(port: int, host: str = "127.0.0.1") -> PeerAddress:
    return PeerAddress(node="b", host=host, port=port)


def test_a_listening_node_is_measured(listener: Listener) -> None:
    result = ask(peer(listener.port), SECRET.encode(), 1.0)
    assert result.ok, result
    assert result.rtt_ms is not None
    assert result.offset_ms is not None
    assert result.rtt_ms > 0
    # One clock on both sides: the estimate is off by at most its round trip.
    assert abs(result.offset_ms) <= result.rtt_ms * ASKED


def test_who_does_not_know_the_secret_learns_nothing(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=LIMIT_S) as stranger:
        stranger.sendall(b"x" * 200)
        with contextlib.suppress(ConnectionResetError):  # closed with our question unread: as good
            assert stranger.recv(8) == b""
    result = ask(peer(listener.port), b"y" * 32, 0.3)
    assert not result.ok
    assert "another program listens there" in result.error


def test_nobody_listening_is_said_and_waited_for_only_so_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    result = ask(peer(port), SECRET.encode(), 0.3)
    assert (result.ok, result.rtt_ms) == (False, None)
    assert result.error == f"127.0.0.1:{port}: refused: no process listens there"
    assert not ask(peer(port, "no-such-host.invalid"), SECRET.encode(), 0.3).ok


def test_agents_that_are_asked_one_after_the_other_find_each_other() -> None:
    events: queue.Queue[Probe] = queue.Queue()
    ports = {"a": free_port(), "b": free_port()}
    probers = {name: Prober(host="127.0.0.1", publish=events.put) for name in ports}
    for name, other in (("a", "b"), ("b", "a")):
        peers = [{"node": other, "host": "127.0.0.1", "port": ports[other]}]
        probers[name].start("p1", SECRET, ports[name], peers, LONGEST_LISTEN_S)
    results = [events.get(timeout=LIMIT_S) for _ in range(2)]
    assert {event.probe for event in results} == {"p1"}
    assert {event.results[0].node for event in results} == {"a", "b"}
    assert all(event.results[0].ok for event in results), results
    assert probers["a"].start("p1", SECRET, ports["a"], [], 1.0) == "known already"


def test_a_port_in_use_keeps_a_node_from_listening_not_from_asking(listener: Listener) -> None:
    events: queue.Queue[Probe] = queue.Queue()
    prober = Prober(host="127.0.0.1", publish=events.put)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        peers = [{"node": "b", "host": "127.0.0.1", "port": listener.port}]
        message = prober.start("p2", SECRET, taken.getsockname()[1], peers, 1.0)
    assert "cannot listen" in message
    assert events.get(timeout=LIMIT_S).results[0].ok


@pytest.mark.parametrize(
    ("field", "secret", "peers"),
    [
        ("secret", "short", []),
        ("peers", SECRET, [{}]),
        ("peers", SECRET, [{"node": "a", "host": "h", "port": "x"}]),
        ("peers", SECRET, [{"node": "a", "host": "h", "port": 1}] * 300),
    ],
)
def test_wrong_orders_are_refused(field: str, secret: str, peers: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError) as caught:
        Prober(host="127.0.0.1", publish=print).start("p", secret, 1, peers, 1.0)
    assert caught.value.field == field
