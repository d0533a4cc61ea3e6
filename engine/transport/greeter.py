"""Incoming and outgoing handshakes of an endpoint, without blocking."""

import errno
import functools
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.control.errors import AuthenticationError, TransportError
from engine.control.handshake import HANDSHAKE_S, Dialogue, Greeting, Handshake, Identity, dial, listen
from engine.transport.loop import Loop
from engine.transport.tls import WOULD_BLOCK, TlsContexts

_MOST_GUESTS = 1024
Greeted = Callable[[socket.socket, Greeting], None]
Failed = Callable[[Exception], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer listens, as the kernel wants it."""

    family: int
    address: tuple[str, int]

    @classmethod
    def of(cls, host: str, port: int) -> "Place":
        """Look `host` up; blocks. Raises OSError."""
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return cls(family, (str(address[0]), int(address[1])))


class Exchange:
    """One handshake on one socket: the connection if it is still to come, TLS if asked for, the dialogue."""

    def __init__(
        self, connected: socket.socket, dialogue: Dialogue, tls: TlsContexts, *, deadline: float, dials: bool
    ) -> None:
        self.socket = connected
        self.deadline = deadline
        self.events = selectors.EVENT_WRITE if dials else selectors.EVENT_READ
        self._dials = dials
        self._stands = not dials
        self._tls = tls
        self._wrapped = self._secured = tls.dials is None
        self._handshake = Handshake(dialogue)

    def advance(self) -> Greeting | None:
        """The greeting once it is complete. Raises AuthenticationError, TransportError, OSError."""
        if not self._stands:
            if refused := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(refused, os.strerror(refused))
            self._stands = True
        if not self._wrapped:
            self.socket = self._tls.wrap(self.socket, listens=not self._dials)
            self._wrapped = True
        if not self._secured and not self._secure():
            return None
        self.events = selectors.EVENT_READ
        while True:
            # At most 100 bytes into an empty buffer: the kernel takes them whole.
            self.socket.sendall(self._handshake.outgoing())
            if self._handshake.greeting is not None:
                return self._handshake.greeting
            if not self._read_on():
                return None

    def _secure(self) -> bool:
        assert isinstance(self.socket, ssl.SSLSocket)
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self.events = selectors.EVENT_READ
            return False
        except ssl.SSLWantWriteError:
            self.events = selectors.EVENT_WRITE
            return False
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(f"its certificate is refused: {error.verify_message}") from None
        self._secured = True
        return True

    def _read_on(self) -> bool:
        try:
            piece = self.socket.recv(self._handshake.wants)
        except WOULD_BLOCK:
            return False
        except ssl.SSLError as error:
            raise AuthenticationError(f"TLS: {error.reason or error}") from None
        if not piece:
            raise TransportError("closed during the handshake")
        try:
            self._handshake.feed(piece)
        except AuthenticationError:
            self.socket.sendall(self._handshake.outgoing())  # it is told why it is refused
            raise
        return True


class Greeter:
    """Listens, and dials. On the I/O thread only, but for the constructor."""

    def __init__(
        self, loop: Loop, me: Identity, listener: socket.socket, tls: TlsContexts, greeted: Greeted
    ) -> None:
        self.refused = ""  # why the latest guest was sent away
        self._loop = loop
        self._me = me
        self._listener = listener
        self._tls = tls
        self._greeted = greeted
        self._exchanges: dict[Exchange, tuple[Greeted, Failed]] = {}

    def open(self) -> None:
        """Let guests in."""
        self._loop.watch(self._listener, selectors.EVENT_READ, self._accept)

    def shut(self) -> None:
        """Let nobody in any more."""
        self._loop.watch(self._listener, 0, self._accept)

    def close(self) -> None:
        """Give up every handshake, and the port."""
        self.shut()
        for exchange in list(self._exchanges):
            self._drop(exchange)
        self._listener.close()

    def dial(
        self,
        place: Place,
        *,
        peer: int,
        index: int,
        count: int,
        seconds: float,
        greeted: Greeted,
        failed: Failed,
    ) -> None:
        """Call `peer` once; one of the two callbacks follows within `seconds` or so."""
        self._call(place, dial(self._me, peer=peer, index=index, count=count), seconds, greeted, failed)

    def knock(self, place: Place, *, seconds: float, greeted: Greeted, failed: Failed) -> None:
        """Ask whether anybody listens at `place`, and say nothing."""
        self._call(place, _knock(), seconds, greeted, failed)

    def tick(self) -> None:
        """Give up handshakes that take too long."""
        now = time.monotonic()
        for exchange in [e for e in self._exchanges if e.deadline < now]:
            self._drop(exchange)[1](TransportError("no answer to the handshake"))

    def _call(
        self, place: Place, dialogue: Dialogue, seconds: float, greeted: Greeted, failed: Failed
    ) -> None:
        calling = socket.socket(place.family, socket.SOCK_STREAM)
        calling.setblocking(False)
        code = calling.connect_ex(place.address)
        if code not in (0, errno.EINPROGRESS):
            calling.close()
            self._loop.call(lambda: failed(OSError(code, os.strerror(code))))
            return
        exchange = Exchange(calling, dialogue, self._tls, deadline=time.monotonic() + seconds, dials=True)
        self._hold(exchange, greeted, failed)

    def _accept(self, _: int) -> None:
        while True:
            try:
                connected, _address = self._listener.accept()
            except OSError:  # none is waiting, or one gave up; out of descriptors: the peer's deadline tells
                return
            if len(self._exchanges) >= _MOST_GUESTS:
                connected.close()
                continue
            connected.setblocking(False)
            deadline = time.monotonic() + HANDSHAKE_S
            exchange = Exchange(connected, listen(self._me), self._tls, deadline=deadline, dials=False)
            self._hold(exchange, self._greeted, self._turn_away)

    def _turn_away(self, error: Exception) -> None:
        self.refused = str(error)

    def _hold(self, exchange: Exchange, greeted: Greeted, failed: Failed) -> None:
        self._exchanges[exchange] = (greeted, failed)
        self._loop.watch(exchange.socket, exchange.events, functools.partial(self._go_on, exchange))

    def _go_on(self, exchange: Exchange, _: int) -> None:
        events = exchange.events
        try:
            greeting = exchange.advance()
        except (TransportError, OSError, ValueError) as error:
            self._drop(exchange)[1](error)
            return
        if greeting is not None:
            self._loop.watch(exchange.socket, 0, self._accept)
            self._exchanges.pop(exchange)[0](exchange.socket, greeting)
        elif exchange.events != events:
            self._loop.watch(exchange.socket, exchange.events, functools.partial(self._go_on, exchange))

    def _drop(self, exchange: Exchange) -> tuple[Greeted, Failed]:
        self._loop.watch(exchange.socket, 0, self._accept)
        exchange.socket.close()
        return self._exchanges.pop(exchange)


def _knock() -> Dialogue:
    yield b""
    return Greeting(rank=-1, index=0, count=0, clock_offset_s=0.0, connection=0, session=b"")
