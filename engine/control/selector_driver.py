"""The control channel on sockets in a selector: hosts and trackers, in whose loop no call waits.

The data of a key in the selector is a function without arguments, which the loop calls when the key is ready.
"""

import contextlib
import errno
import logging
import os
import selectors
import socket
import time
from typing import Generic, Protocol

from engine.control.channel import MOST_UNREAD_BYTES, Channel, Unproven
from engine.control.handshake import HANDSHAKE_S, Handshake, Identity, dial, listen
from engine.control.messages import Beat, M, Messages, line_of
from engine.inputs import Document

log = logging.getLogger(__name__)
BEAT_S = 1.0
CONNECT_S = 1.0


class Handler(Protocol[M]):
    """What is told of connections.

    A ValueError that `handle` raises means that the message makes no sense now: the connection is closed.
    """

    def greeted(self, connection: "SelectorChannel[M]") -> None: ...
    def handle(self, connection: "SelectorChannel[M]", message: M) -> None: ...
    def lost(self, connection: "SelectorChannel[M]", why: str) -> None: ...


class SelectorChannel(Generic[M]):
    """A channel on a socket that does not block. The handler is told of it once the secret is proved.

    silent_s : for how long the other side may say nothing.
    connecting : whether the connection is still to be made.
    """

    def __init__(
        self,
        connected: socket.socket,
        selector: selectors.BaseSelector,
        channel: Channel[M],
        handler: Handler[M],
        *,
        silent_s: float,
        connecting: bool = False,
        listener: "Listener[M] | None" = None,
    ) -> None:
        self._socket, self._selector, self._channel = connected, selector, channel
        self._handler, self._listener, self._silent_s = handler, listener, silent_s
        self._connecting = connecting
        self._unsent = bytearray()
        self._broken = ""  # why it takes no more messages; the next tick ends it
        self._greeted = False
        self.open = True
        self._began = self._last_heard = self._last_beat = time.monotonic()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(
            connected, selectors.EVENT_WRITE if connecting else selectors.EVENT_READ, self._ready
        )
        if not connecting:
            self._write(channel.handshake.outgoing())

    @property
    def rank(self) -> int:
        """The other side's, once it has proved that it knows the secret."""
        assert self._channel.greeting is not None
        return self._channel.greeting.rank

    def send(self, message: Document) -> None:
        """Send a message as soon as the other side reads. Where that fails, `tick` ends the connection: no
        handler is called in the middle of what its caller does."""
        self._write(line_of(message))

    def tick(self) -> None:
        """Give a sign of life, and end a connection that broke or is silent."""
        now = time.monotonic()
        if self._broken:
            self._end(self._broken)
        elif not self._greeted:
            if now > self._began + (CONNECT_S if self._connecting else HANDSHAKE_S):
                self._end("no answer to the handshake")
        elif now > self._last_heard + self._silent_s:
            self._end(f"silent for {now - self._last_heard:.1f} s")
        elif now >= self._last_beat + BEAT_S:
            self._last_beat = now
            self.send(Beat())

    def close(self) -> None:
        """Close it, of which the handler is not told."""
        if self.open:
            self.open = False
            self._selector.unregister(self._socket)
            self._socket.close()
            if self._listener is not None:
                self._listener.forget(self)

    def _end(self, why: str) -> None:
        if self.open:
            self.close()
            if self._greeted:
                self._handler.lost(self, why)

    def _ready(self) -> None:
        if not self.open:  # another one's handler closed it after the selector had returned
            return
        try:
            if self._connecting:
                self._connect()
            self._flush()
            self._read()
        except BlockingIOError:
            return
        except (OSError, ValueError, LookupError) as error:
            if self._greeted and isinstance(error, ValueError | LookupError):
                log.warning("a message of rank %d was refused: %s", self.rank, error)
            self._flush_refusal()
            self._end(error.strerror if isinstance(error, OSError) and error.strerror else str(error))

    def _connect(self) -> None:
        if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        self._connecting = False
        self._write(self._channel.handshake.outgoing())

    def _read(self) -> None:
        data = self._socket.recv(self._channel.wants)
        if not data:
            raise ConnectionError("it ended")
        self._last_heard = time.monotonic()
        for message in self._channel.receive(data):
            if not self.open:
                return
            self._handler.handle(self, message)
        if not self._greeted:
            self._write(self._channel.handshake.outgoing())
            if self._channel.greeting is not None:
                self._greeted = True
                if self._listener is not None:
                    self._listener.proven(self)
                self._handler.greeted(self)

    def _write(self, data: bytes) -> None:
        if not self.open:
            return
        self._unsent += data
        if len(self._unsent) > MOST_UNREAD_BYTES:
            self._broken = "it does not read"
            return
        try:
            self._flush()
        except OSError as error:
            self._broken = f"it accepts no more messages ({error.strerror or error})"

    def _flush(self) -> None:
        """Send what the socket takes now; the rest when the selector says that it takes more."""
        waited = self._selector.get_key(self._socket).events
        if self._unsent and not self._connecting:
            with contextlib.suppress(BlockingIOError):
                del self._unsent[: self._socket.send(self._unsent)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if not self._connecting and wanted != waited:
            self._selector.modify(self._socket, wanted, self._ready)

    def _flush_refusal(self) -> None:
        """Tell a stranger why it is refused."""
        if not self._greeted and not self._connecting:
            self._write(self._channel.handshake.outgoing())


def call(
    address: tuple[str, int],
    selector: selectors.BaseSelector,
    me: Identity,
    peer: int,
    incoming: Messages[M],
    handler: Handler[M],
    *,
    silent_s: float,
) -> SelectorChannel[M]:
    """Connect to `peer` at an address; the handler hears of it when it has proved the secret.

    Raises OSError: the address is none, or not to be reached.
    """
    family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    calling = socket.socket(family, socket.SOCK_STREAM)
    calling.setblocking(False)
    code = calling.connect_ex(where)
    if code not in (0, errno.EINPROGRESS):
        calling.close()
        raise OSError(code, os.strerror(code))
    channel = Channel(Handshake(dial(me, peer=peer)), incoming)
    return SelectorChannel(calling, selector, channel, handler, silent_s=silent_s, connecting=True)


class Listener(Generic[M]):
    """Takes connections at a listening socket in a selector.

    Attributes
    ----------
    connections : all that are open, whether they have proved the secret or not.
    """

    def __init__(
        self,
        listening: socket.socket,
        selector: selectors.BaseSelector,
        me: Identity,
        incoming: Messages[M],
        handler: Handler[M],
        *,
        silent_s: float,
    ) -> None:
        self._socket, self._selector, self._me, self._incoming = listening, selector, me, incoming
        self._handler, self._silent_s = handler, silent_s
        self._unproven = Unproven()
        self.connections: list[SelectorChannel[M]] = []
        listening.setblocking(False)
        selector.register(listening, selectors.EVENT_READ, self._accept)

    def tick(self) -> None:
        """Let every connection do what is due."""
        for connection in list(self.connections):
            connection.tick()

    def close(self) -> None:
        """Close the port and every connection."""
        if self._socket.fileno() >= 0:
            self._selector.unregister(self._socket)
            self._socket.close()
        for connection in list(self.connections):
            connection.close()

    def proven(self, connection: SelectorChannel[M]) -> None:
        """A connection has proved the secret."""
        self._unproven.remove(connection)

    def forget(self, connection: SelectorChannel[M]) -> None:
        """A connection is closed."""
        self.connections.remove(connection)
        self._unproven.remove(connection)

    def _accept(self) -> None:
        try:
            connected, _ = self._socket.accept()
        except OSError:  # it left again
            return
        channel = Channel(Handshake(listen(self._me)), self._incoming)
        connection = SelectorChannel(
            connected, self._selector, channel, self._handler, silent_s=self._silent_s, listener=self
        )
        self.connections.append(connection)
        self._unproven.add(connection, connection.close)
