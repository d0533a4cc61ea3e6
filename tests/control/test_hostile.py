"""Strangers at every listener that begins with the proof of the secret: the members stay unharmed."""

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from engine.control import asyncio_driver, selector_driver, thread_server
from engine.control.channel import LONGEST_LINE, MOST_UNPROVEN
from engine.control.errors import AuthenticationError
from engine.control.handshake import Handshake, Identity, dial
from engine.control.messages import line_of
from engine.control.thread_driver import greet
from tests.control.listeners import ALL, Target, until_closed
from tests.waiting import LIMIT_S

DRIVERS = (asyncio_driver, selector_driver, thread_server)


@pytest.fixture(params=ALL, ids=str)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    for driver in DRIVERS:
        monkeypatch.setattr(driver, "HANDSHAKE_S", LIMIT_S)
    with ExitStack() as keep, ALL[request.param](keep) as server:
        yield server


def _closed(target: Target, *sent: bytes) -> bytes:
    with target.connected() as connected:
        with suppress(ConnectionError):  # it may close before all was sent
            for data in sent:
                connected.sendall(data)
        return until_closed(connected)


def _closed_after_the_proof(target: Target, data: bytes) -> None:
    """The sender knows the secret, and is member 2."""
    with target.connected() as connected:
        greet(connected, Handshake(dial(target.members[2], peer=target.peer)), LIMIT_S)
        with suppress(ConnectionError):
            connected.sendall(data)
        until_closed(connected)


def _refused(target: Target, me: Identity, why: str, peer: int | None = None) -> None:
    with target.connected() as connected, pytest.raises(AuthenticationError, match=why):
        greet(connected, Handshake(dial(me, peer=target.peer if peer is None else peer)), LIMIT_S)


def no_handshake(target: Target) -> None:
    _closed(target, b'{"kind":"hello"}\n' * 100)


def no_proof(target: Target) -> None:
    hello = Handshake(dial(target.members[2], peer=target.peer)).outgoing()
    answer = _closed(target, hello, secrets.token_bytes(1000))
    assert answer[-1:] == b"\x05", "the last byte says: wrong secret"


def wrong_secret(target: Target) -> None:
    _refused(target, replace(target.members[2], secret=b"x" * 32), "does not know the secret")


def wrong_run(target: Target) -> None:
    me = target.members[2]
    _refused(target, replace(me, run="another"), "another run")
    _refused(target, replace(me, generation=me.generation + 1), "another generation")
    _refused(target, me, "another rank listens there", peer=4_000_000)


def replayed_proof(target: Target) -> None:
    """What a member said is said again, word for word."""
    sent_bytes: list[bytes] = []
    with target.connected() as connected:
        handshake = Handshake(dial(target.members[2], peer=target.peer))
        while True:
            sent_bytes.append(handshake.outgoing())
            connected.sendall(sent_bytes[-1])
            if handshake.greeting is not None:
                break
            handshake.feed(connected.recv(handshake.wants))
    answer = _closed(target, *sent_bytes)
    assert answer[-1:] == b"\x05"


def half_open(target: Target) -> None:
    """More than may be there, and none says anything: a member joins though all are still open."""
    with ExitStack() as open_:
        for _ in range(MOST_UNPROVEN + 20):
            open_.enter_context(target.connected())
        target.works(target.join(target.members[2]))


def endless_line(target: Target) -> None:
    if target.lines:
        _closed_after_the_proof(target, b"x" * (LONGEST_LINE + 1_000_000))


def malformed(target: Target) -> None:
    for data in (b"{\n", b"7\n", b'{"kind":"gift"}\n', b"[" * 100_000 + b"\n", os.urandom(5000) + b"\n"):
        _closed_after_the_proof(target, data if target.lines else data.ljust(100_000, b"\0"))


def too_early(target: Target) -> None:
    """A message that is one, before its sender has said hello."""
    if target.early is not None:
        _closed_after_the_proof(target, line_of(target.early))


ATTACKS = (
    no_handshake,
    no_proof,
    wrong_secret,
    wrong_run,
    replayed_proof,
    half_open,
    endless_line,
    malformed,
    too_early,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_strangers_do_no_harm(target: Target, attack: Callable[[Target], None]) -> None:
    member = target.join(target.members[0])
    attack(target)
    target.works(member)
    target.works(target.join(target.members[1]))
    assert target.failed() is None


def test_a_handshake_ends_in_time_however_slowly_its_bytes_come(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in DRIVERS:
        monkeypatch.setattr(driver, "HANDSHAKE_S", 0.5)
    hello = Handshake(dial(target.members[2], peer=target.peer)).outgoing()
    with target.connected() as silent, target.connected() as slow:
        with suppress(ConnectionError):
            for byte in hello * 100:  # it would take much longer than a handshake may
                slow.sendall(bytes([byte]))
                time.sleep(0.02)
        until_closed(slow)
        assert until_closed(silent) == b""
    assert target.failed() is None
