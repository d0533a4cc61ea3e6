"""The rendezvous store of a run: keys and values, in the memory of one rank, for those that know the secret.

Ranks tell each other there where they listen and how far they are. torch's TCPStore asks nobody for a proof,
so whoever reached its port could write, and end the training. This one is a control channel: a member sends
one request at a time and waits for its answer. Values are bytes; they cross as base64.
"""

import base64
import binascii
import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Literal

from engine.control.errors import ChannelLost, PeerLost
from engine.control.handshake import Handshake, Identity
from engine.control.messages import Messages
from engine.control.thread_driver import BlockingChannel, call_when_there
from engine.control.thread_server import ThreadServer
from engine.inputs import Document

RENDEZVOUS_S = 120.0
LOOK_S = 1.0  # between two looks at whether a member that waits for a key is still there


class Set(Document):
    """Write a value; answered with nothing."""

    kind: Literal["set"] = "set"
    key: str
    value: str


class Add(Document):
    """Add to the number that a key has, or to 0; answered with the sum, which `Get` reads as decimal text."""

    kind: Literal["add"] = "add"
    key: str
    amount: int


class Get(Document):
    """Read values; answered once all keys are there."""

    kind: Literal["get"] = "get"
    keys: tuple[str, ...]


class Check(Document):
    """Ask how many of the keys are there."""

    kind: Literal["check"] = "check"
    keys: tuple[str, ...]


class Delete(Document):
    """Forget a key; answered with 1, or 0 where there was none."""

    kind: Literal["delete"] = "delete"
    key: str


class Answer(Document):
    """What a request is answered with."""

    kind: Literal["answer"] = "answer"
    values: tuple[str, ...] = ()
    number: int = 0


Request = Set | Add | Get | Check | Delete
FROM_MEMBER: Messages[Request] = Messages(Request)
FROM_STORE: Messages[Answer] = Messages(Answer)


class StoreServer:
    """Holds the values and answers members at a listening socket, until `close` or the end of the process."""

    def __init__(self, listening: socket.socket, me: Identity) -> None:
        self._values: dict[str, bytes] = {}
        self._awaited: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._server = ThreadServer(listening, me, self._attend, name="store")
        self.port = self._server.address[1]

    def close(self) -> None:
        """End all conversations."""
        self._server.close()

    def _attend(self, connected: socket.socket, handshake: Handshake) -> None:
        channel = BlockingChannel(connected, handshake, FROM_MEMBER)
        connected.settimeout(None)
        for request in channel.messages():
            channel.send(self._answer(request, connected))

    def _answer(self, request: Request, connected: socket.socket) -> Answer:
        match request:
            case Set(key=key, value=value):
                self._set(key, _bytes(value))
                return Answer()
            case Add(key=key, amount=amount):
                return Answer(number=self._add(key, amount))
            case Get(keys=keys):
                for key in keys:
                    self._await(key, connected)
                with self._lock:
                    return Answer(values=tuple(_text(self._values.get(key, b"")) for key in keys))
            case Check(keys=keys):
                with self._lock:
                    return Answer(number=sum(key in self._values for key in keys))
            case Delete(key=key):
                with self._lock:
                    return Answer(number=int(self._values.pop(key, None) is not None))

    def _set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._put(key, value)

    def _add(self, key: str, amount: int) -> int:
        with self._lock:
            try:
                total = int(self._values.get(key, b"0")) + amount
            except ValueError:
                raise ChannelLost(f"{key} is no number to add to") from None
            self._put(key, str(total).encode())
        return total

    def _put(self, key: str, value: bytes) -> None:
        """Under the lock: a value is there, and those that await it go on."""
        self._values[key] = value
        if arrived := self._awaited.pop(key, None):
            arrived.set()

    def _await(self, key: str, connected: socket.socket) -> None:
        """Return once a key is there. Raises ChannelLost where the member that waits is gone."""
        with self._lock:
            if key in self._values:
                return
            arrived = self._awaited.setdefault(key, threading.Event())
        while not arrived.wait(LOOK_S):
            with contextlib.suppress(BlockingIOError):
                if not connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    raise ChannelLost("it left while it waited")


class StoreClient:
    """A member's connection to the store at an address, held by rank `peer`. One request at a time.

    Where an answer does not come in time the connection is given up, and every later request fails.

    Raises
    ------
    PeerLost
        There is no store there within RENDEZVOUS_S, or it refuses this member. Requests raise it, too: the
        store is gone, or the answer did not come in time.
    """

    def __init__(self, address: tuple[str, int], me: Identity, *, peer: int) -> None:
        self._where = f"{address[0]}:{address[1]}"
        self._lock = threading.Lock()
        self._channel = self._connected(address, me, peer)
        self._answers = self._channel.messages()

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        self._ask(Set(key=key, value=_text(value)))

    def add(self, key: str, amount: int) -> int:
        """Add to the number that a key has, or to 0; the sum."""
        return self._ask(Add(key=key, amount=amount)).number

    def get(self, keys: Sequence[str], within_s: float = RENDEZVOUS_S) -> list[bytes]:
        """The values of keys, once all of them are there."""
        return [_bytes(value) for value in self._ask(Get(keys=tuple(keys)), within_s).values]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return self._ask(Check(keys=tuple(keys))).number == len(keys)

    def delete(self, key: str) -> bool:
        """Forget a key; whether it was there."""
        return bool(self._ask(Delete(key=key)).number)

    def close(self) -> None:
        """Leave."""
        self._channel.close()

    def _ask(self, request: Request, within_s: float = RENDEZVOUS_S) -> Answer:
        with self._lock:
            try:
                self._channel.expect_within(within_s)
                self._channel.send(request)
                return next(self._answers)
            except TimeoutError:
                self._channel.end()
                what = ", ".join(request.keys) if isinstance(request, Get) else request.kind
                raise PeerLost(f"rendezvous: no answer within {within_s:g} s ({what})") from None
            except (OSError, StopIteration) as error:
                raise PeerLost(f"lost the rendezvous at {self._where}: {str(error) or 'it ended'}") from None

    def _connected(self, address: tuple[str, int], me: Identity, peer: int) -> BlockingChannel[Answer]:
        try:
            return call_when_there(address, me, peer, FROM_STORE, seconds=RENDEZVOUS_S)
        except OSError as error:
            raise PeerLost(f"no rendezvous at {self._where}: {error.strerror or error}") from None


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ChannelLost("a value that is no base64") from None
