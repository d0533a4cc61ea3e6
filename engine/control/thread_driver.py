"""The control channel on sockets that block, for threads."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Generic

from engine.control.channel import Channel
from engine.control.errors import AuthenticationError, ChannelLost
from engine.control.handshake import HANDSHAKE_S, Greeting, Handshake, Identity, dial
from engine.control.messages import M, Messages, line_of
from engine.inputs import Document

PAUSE_S = 0.05  # between two tries to connect


def greet(connected: socket.socket, handshake: Handshake, seconds: float = HANDSHAKE_S) -> Greeting:
    """Hold a handshake that ends within `seconds`, however slowly the other side's bytes come.

    Raises AuthenticationError, ChannelLost, OSError (among them TimeoutError).
    """
    deadline, patience_s = time.monotonic() + seconds, connected.gettimeout()
    connected.settimeout(seconds)
    connected.sendall(handshake.outgoing())
    while handshake.greeting is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer to the handshake")
        connected.settimeout(left_s)
        data = connected.recv(handshake.wants)
        if not data:
            raise ChannelLost("the other side left during the handshake")
        try:
            handshake.feed(data)
        except AuthenticationError:
            with contextlib.suppress(OSError):  # it is told why it is refused
                connected.sendall(handshake.outgoing())
            raise
        connected.sendall(handshake.outgoing())
    connected.settimeout(patience_s)
    return handshake.greeting


class BlockingChannel(Generic[M]):
    """A channel whose messages one thread reads; any thread may send.

    The handshake, unless it is complete already, is held at once and takes at most `seconds`. Raises
    AuthenticationError, ChannelLost, OSError.

    Attributes
    ----------
    greeting : who the other side is.
    """

    def __init__(
        self,
        connected: socket.socket,
        handshake: Handshake,
        incoming: Messages[M],
        *,
        seconds: float = HANDSHAKE_S,
    ) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._channel = connected, Channel(handshake, incoming)
        self._sending = threading.Lock()
        self.greeting = greet(connected, handshake, seconds)

    def send(self, message: Document) -> None:
        """Send a message; waits while the other side is slow. Raises OSError."""
        with self._sending:
            self._socket.sendall(line_of(message))

    def send_at_once(self, message: Document) -> None:
        """Send a message without waiting; the channel ends where the other side has not read for long.

        Raises OSError, among them ChannelLost: the message is lost, and the channel with it.
        """
        line = line_of(message)
        with self._sending:
            try:
                if self._socket.send(line, socket.MSG_DONTWAIT) == len(line):
                    return
            except OSError as error:
                self.end()
                raise ChannelLost(f"the connection was lost: {error.strerror or error}") from error
            self.end()
            raise ChannelLost("the other side does not read")

    def messages(self) -> Iterator[M]:
        """The messages as they come, until the other side closes. Raises ChannelLost, OSError."""
        while data := self._socket.recv(self._channel.wants):
            yield from self._channel.receive(data)

    def expect_within(self, seconds: float) -> None:
        """From now on `messages` raises TimeoutError where the other side says nothing for so long."""
        self._socket.settimeout(seconds)

    def end(self) -> None:
        """Let both sides' reads end; may be called from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and close the socket."""
        self.end()
        self._socket.close()


def call(
    address: tuple[str, int], me: Identity, peer: int, incoming: Messages[M], *, seconds: float
) -> BlockingChannel[M]:
    """Connect to `peer` at an address; connection and handshake may take `seconds` each.

    Raises AuthenticationError, ChannelLost, OSError (among them TimeoutError).
    """
    connected = socket.create_connection(address, timeout=seconds)
    try:
        channel = BlockingChannel(connected, Handshake(dial(me, peer=peer)), incoming, seconds=seconds)
    except OSError:
        connected.close()
        raise
    connected.settimeout(None)
    return channel


def call_when_there(
    address: tuple[str, int], me: Identity, peer: int, incoming: Messages[M], *, seconds: float
) -> BlockingChannel[M]:
    """Connect to `peer` at an address where it may not listen yet: its machine may start later than this one.

    Raises AuthenticationError at once, and what `call` raises where it is not there within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            left_s = max(PAUSE_S, deadline - time.monotonic())
            return call(address, me, peer, incoming, seconds=left_s)
        except AuthenticationError:
            raise
        except OSError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_S)
