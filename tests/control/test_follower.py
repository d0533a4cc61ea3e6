"""A host that follows, and leading hosts that are none, or say what makes no sense."""

import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.control.errors import AuthenticationError
from engine.control.handshake import Handshake, listen
from engine.control.identity import identity_of
from engine.control.recovery_follow import Follow
from engine.control.recovery_messages import (
    FROM_FOLLOWER,
    LISTENERS,
    FromFollower,
    Halt,
    Hello,
    Over,
    Welcome,
)
from engine.control.thread_driver import BlockingChannel
from engine.job.launch import LOCALHOST, LaunchSpec, single_machine
from engine.job.recovery.history import History
from tests.control.listeners import Loop, NoRanks
from tests.runtime.jobs import job
from tests.waiting import LIMIT_S, until


class Follower:
    """A host of rank 3 in its loop; `calls` has its connections to where the leading host should listen."""

    def __init__(self) -> None:
        self.calls = socket.create_server((LOCALHOST, 0))
        self.calls.settimeout(LIMIT_S)
        whole = single_machine(job(recovery={}), run="run", log_dir="")
        self.spec: LaunchSpec = replace(whole, local=(3,), rendezvous_port=self.calls.getsockname()[1])
        assert self.spec.job.failures.recovery is not None
        self.loop = Loop()
        self.host = Follow(
            self.spec, self.spec.job.failures.recovery, NoRanks(), self.loop.selector, history=History()
        )
        self.loop.start(self.host.tick)

    def called(self, **changes: Any) -> BlockingChannel[FromFollower]:
        """Be the leading host for the next connection; `changes` of what it knows of the run."""
        me = identity_of(replace(self.spec, **changes), 0, LISTENERS)
        connected, _ = self.calls.accept()
        connected.settimeout(LIMIT_S)
        return BlockingChannel(connected, Handshake(listen(me)), FROM_FOLLOWER, seconds=LIMIT_S)

    def close(self) -> None:
        self.loop.stop()
        self.host.close()
        self.calls.close()
        self.loop.selector.close()


@pytest.fixture
def follower() -> Iterator[Follower]:
    new = Follower()
    yield new
    new.close()


def test_a_host_finds_the_leading_one_behind_others_that_are_none(follower: Follower) -> None:
    for changes in ({"secret": "x" * 32}, {"run": "another"}, {"generation": 7}):
        with pytest.raises((AuthenticationError, ConnectionError)):
            next(follower.called(**changes).messages())
    early = follower.called()
    assert isinstance(next(early.messages()), Hello)
    early.send(Halt())
    assert not list(early.messages()), "it hangs up on one that says something before its welcome"
    leader = follower.called()
    hello = next(leader.messages())
    assert isinstance(hello, Hello)
    assert hello.ranks == (3,)
    leader.send(Welcome())
    leader.send(Over())
    until(lambda: not follower.host.awaits)
    assert follower.loop.failure is None


def test_a_leading_host_that_does_not_answer_holds_nobody_up(follower: Follower) -> None:
    """The follower's loop goes on while its handshake hangs."""
    silent, _ = follower.calls.accept()
    turned = threading.Event()
    woken, waker = socket.socketpair()
    with silent, woken, waker:
        follower.loop.selector.register(woken, selectors.EVENT_READ, turned.set)
        waker.send(b"x")
        assert turned.wait(LIMIT_S)
        follower.loop.selector.unregister(woken)
