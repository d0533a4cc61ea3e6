"""One pair of nodes: its connections, what goes out, what comes in, and whether the peer is alive."""

import socket
import threading
from dataclasses import dataclass

from engine.runtime.transport.connection import Connection
from engine.runtime.transport.errors import ChecksumError, LinkLost, TransportError
from engine.runtime.transport.handles import Receive
from engine.runtime.transport.handshake import Greeting
from engine.runtime.transport.inbox import Inbox
from engine.runtime.transport.loop import Loop
from engine.runtime.transport.outbox import Outbox, Outgoing
from engine.runtime.transport.shape import Peer
from engine.runtime.transport.wire import Header, Kind, pack

_BEAT = pack(Header(kind=Kind.BEAT))
_BYE = pack(Header(kind=Kind.BYE))
URGENT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """What one pair has carried so far, as this rank sees it.

    bytes_sent, bytes_received : of messages, filler included, headers not.
    busy_s : seconds in which at least one bulk or urgent message of this rank was passing the link.
    most_late_s : how much later than the emulated link had it a message was received, at most.
    """

    peer: int
    link: str
    connections: int
    bytes_sent: int
    bytes_received: int
    busy_s: float
    most_late_s: float


class Link:
    """Owns the connections to one peer. On the I/O thread, but for `complete`, `over` and `lost`."""

    def __init__(
        self, loop: Loop, rank: int, peer: Peer, *, unexpected_bytes: int, silent_ticks: int
    ) -> None:
        self.peer = peer
        self.complete = threading.Event()  # every connection stands, or the link is lost
        self.over = threading.Event()  # no connection is left
        self.lost: TransportError | None = None
        self.inbox = Inbox(unexpected_bytes)
        self._loop = loop
        self._rank = rank
        self._most_silent_ticks = silent_ticks
        self._silent_ticks = 0
        self._paused_ticks = 0
        self._connections: dict[int, Connection] = {}
        self._outbox: Outbox | None = None
        self._closing = False
        self._said_goodbye = False

    def attach(self, connected: socket.socket, greeting: Greeting) -> None:
        """Take a connection that has been greeted; the last one completes the link."""
        index = greeting.index - 1
        needed = self.peer.connection_count
        if self.lost is not None or index in self._connections or greeting.index >= greeting.count:
            connected.close()
            return
        if greeting.count - 1 < needed:
            connected.close()
            self.fail(self._lost(f"the peer opened {greeting.count - 1} connections, {needed} are needed"))
            return
        if index == URGENT:
            self.inbox.clock_offset_s = greeting.clock_offset_s
        self._connections[index] = Connection(self._loop, self, connected, index)
        if len(self._connections) == greeting.count:
            data = [self._connections[i] for i in range(needed)]
            self._outbox = Outbox(self._loop, self.peer.shape, self._connections[URGENT], data)
            for connection in list(self._connections.values()):
                connection.start()
            self.complete.set()

    def send(self, message: Outgoing) -> None:
        """Take a message; it fails at once where the link is gone."""
        if self.lost is not None or self._outbox is None:
            message.send.fail(self.lost or self._lost("not connected"))
            return
        message.send.on_settled(lambda _: self._leave_if_drained())
        self._outbox.submit(message)

    def post(self, channel: int, receive: Receive) -> None:
        """Wait for a message; what is complete can be received even after the link is lost."""
        self.inbox.post(channel, receive)
        if self.lost is not None:
            self.inbox.fail(self.lost)

    def tick(self) -> None:
        """Once a second: send a sign of life, and look for the peer's."""
        if self.lost is not None or self._outbox is None:
            return
        self._silent_ticks += 1
        self._paused_ticks = self._paused_ticks + 1 if self.inbox.paused else 0
        # Ticks are counted, not seconds: a process that was itself stopped for a minute sees one tick of
        # silence.
        if self._silent_ticks > self._most_silent_ticks:
            self.fail(self._lost(f"silent for {self._silent_ticks} s"))
        elif self._paused_ticks > self._most_silent_ticks:
            self.fail(self._lost("it sends messages that no receive is posted for, more than may be kept"))
        elif not self._said_goodbye:
            self._connections[URGENT].send([memoryview(_BEAT)])

    def leave(self) -> None:
        """Say goodbye once everything is sent."""
        self._closing = True
        if self._outbox is None or not self._connections:
            self.fail(self._lost("closed"))
        self._leave_if_drained()

    def fail(self, error: TransportError) -> None:
        """Close every connection; all that is pending fails with `error`. Idempotent."""
        self.lost = self.lost or error
        for connection in self._connections.values():
            connection.close()
        if self._outbox is not None:
            self._outbox.fail(self.lost)
        self.inbox.fail(self.lost)
        self.complete.set()
        self.over.set()

    def traffic(self) -> LinkTraffic:
        """Figures so far."""
        sent, busy = (0, 0.0) if self._outbox is None else (self._outbox.bytes_sent, self._outbox.busy_s)
        return LinkTraffic(
            peer=self.peer.rank, link=self.peer.link, connections=self.peer.connection_count, bytes_sent=sent,
            bytes_received=self.inbox.bytes_received, busy_s=busy, most_late_s=self.inbox.most_late_s,
        )  # fmt: skip

    # What the connections report (connection.Owner).

    def place(self, connection: Connection, header: Header) -> memoryview | None:
        return self.inbox.place(connection, header)

    def came(self, connection: Connection, header: Header) -> None:
        self._silent_ticks = 0
        if header.kind is Kind.DATA:
            self.inbox.came(header)
        elif header.kind is Kind.BYE:
            connection.goodbye = True

    def drained(self, connection: Connection) -> None:
        if self._outbox is not None and connection.index >= 0:
            self._outbox.pump()

    def corrupted(self, connection: Connection, header: Header) -> None:
        reason = (
            f"connection {connection.index}: the checksum of a chunk of message {header.tag} does not match"
        )
        self.fail(ChecksumError(rank=self._rank, peer=self.peer.rank, link=self.peer.link, reason=reason))

    def ended(self, connection: Connection, reason: str | None) -> None:
        if reason is not None and not self._closing:
            self.fail(self._lost(reason))
            return
        connection.close()
        gone = self._lost("closed by this rank" if self._closing else "closed by the peer")
        if not self._closing and self._outbox is not None:
            # What has been sent may still come on the other connections; ours cannot go any more.
            self.lost = self.lost or gone
            self._outbox.fail(self.lost)
        if not any(c.open for c in self._connections.values()):
            self.fail(gone)

    def _leave_if_drained(self) -> None:
        if not self._closing or self._said_goodbye or self.lost is not None:
            return
        if self._outbox is not None and self._outbox.idle:
            self._said_goodbye = True
            for connection in list(self._connections.values()):
                if connection.open:
                    connection.send([memoryview(_BYE)])
                    connection.finish()

    def _lost(self, reason: str) -> LinkLost:
        return LinkLost(rank=self._rank, peer=self.peer.rank, link=self.peer.link, reason=reason)
