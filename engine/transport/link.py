"""One pair of nodes: its connections, outgoing and incoming messages, and whether the peer is alive."""

import functools
import logging
import socket
import threading
import time
from collections.abc import Callable

from engine.control.errors import AuthenticationError, ChecksumError, LinkLost, TransportError
from engine.control.handshake import Greeting
from engine.errors import reason_of
from engine.transport.acknowledging import Acknowledging
from engine.transport.connection import Connection
from engine.transport.greeter import Greeter, Place
from engine.transport.handles import Receive
from engine.transport.inbox import Inbox
from engine.transport.loop import Loop
from engine.transport.outbox import Outbox, Outgoing
from engine.transport.pinging import Pinging, answer
from engine.transport.shape import Peer
from engine.transport.sizing import Size
from engine.transport.traffic import LinkTraffic
from engine.transport.wire import Header, Kind, pack, unpack_acknowledgement

log = logging.getLogger(__name__)
_BEAT = pack(Header(kind=Kind.BEAT))
_BYE = pack(Header(kind=Kind.BYE))
_RETIRE = pack(Header(kind=Kind.RETIRE))
URGENT = -1
TICK_S = 0.5
# A connection that brings nothing for so long is replaced; the link itself may be silent for longer.
_SUSPECT_S = 2.5
# One attempt to dial; a lost SYN would otherwise keep it for seconds.
_ATTEMPT_S = 1.5
_FIRST_ATTEMPT_S = 10.0
_PAUSE_S = 0.1
# For so long a peer may send what nobody receives.
_MOST_PAUSED_S = 60.0
# So many refusals in a row mean that nobody listens there any more.
_MOST_REFUSALS = 3
# So many breaks of every connection without progress mean that nothing gets through.
_MOST_BREAKS = 5
# So many chunks with a wrong checksum mean that the link is not to be trusted.
_MOST_CORRUPT = 3


class Link:
    """Owns the connections to one peer. On the I/O thread, but for `complete`, `over` and `lost`.

    A connection that breaks is replaced, and what it had not delivered goes again. The link is lost once
    nothing was heard from the peer for the time that it may be silent, or where the peer says goodbye, is no
    longer the one that it was, or listens no more.
    """

    def __init__(
        self,
        loop: Loop,
        greeter: Greeter,
        rank: int,
        peer: Peer,
        *,
        place: Place,
        inbox: Inbox,
        silent_ticks: int,
        checksums: bool,
        is_cut: Callable[[], bool] = lambda: False,
    ) -> None:
        self.peer = peer
        self.complete = threading.Event()  # every connection stands, or the link is lost
        self.over = threading.Event()  # no connection is left
        self.lost: TransportError | None = None
        self.trouble = ""  # what went wrong last
        self.inbox = inbox
        self._loop = loop
        self._greeter = greeter
        self._rank = rank
        self._is_cut = is_cut
        self._place = place
        self._dials = rank > peer.rank
        self._dialling: set[int] = set()
        self._refusals = 0
        self._most_silent_ticks = silent_ticks
        self._suspect_ticks = max(1, min(round(_SUSPECT_S / TICK_S), round(0.6 * silent_ticks)))
        self._silent_ticks = 0
        self._paused_ticks = 0
        self._connections: dict[int, Connection] = {}
        self._outbox = Outbox(
            loop,
            peer.shape,
            lanes=peer.connection_count,
            pace_bytes_per_s=peer.pace_bytes_per_s,
            checksums=checksums,
        )
        self._session = b""
        self._closing = False
        self._peer_leaves = False
        self._said_goodbye = False
        self._acknowledging = Acknowledging(loop, lambda: None if self._said_goodbye else self._control())
        self._corrupt = 0
        self._reconnects = 0
        self._broken_at: float | None = None  # since when connections are missing that stood before
        self._breaks = 0  # since a chunk came or was acknowledged
        self._gone_bytes = 0  # sent over connections that are gone
        self._size = Size(peer)
        self._pinging = Pinging()

    def mend(self) -> None:
        """Dial what is missing; the side that does not dial only asks whether the peer is still there."""
        if self.lost is not None or self._closing or self._peer_leaves:
            return
        if self._is_cut():
            if not self.complete.is_set():  # else the next tick asks again
                self._loop.at(time.monotonic() + TICK_S, self.mend)
            return
        if not self._dials:
            if self.complete.is_set() and not self._connections and not self._dialling:
                self._dialling.add(URGENT)
                self._greeter.knock(
                    self._place,
                    seconds=_ATTEMPT_S,
                    greeted=self._answered,
                    failed=functools.partial(self._undialled, URGENT),
                )
            return
        for index in range(URGENT, self._size.most):
            if index not in self._connections and index not in self._dialling:
                self._dial(index)

    def attach(self, connected: socket.socket, greeting: Greeting) -> None:
        """Take a connection that has been greeted; the last one completes the link."""
        index = greeting.index - 1
        if self._is_cut():
            connected.close()
            self.mend()
            return
        if self.lost is not None or self._closing or (self._session and self._session != greeting.session):
            connected.close()
            if self.lost is None and not self._closing:
                self.fail(self._lost("the peer was started again"))
            return
        if not self._dials and 0 < greeting.count - 1 < self._size.wanted and not self.peer.auto:
            connected.close()
            opened, needed = greeting.count - 1, self._size.wanted
            self.fail(self._lost(f"the peer opened {opened} connections, {needed} are needed"))
            return
        if index in self._connections:
            self.ended(self._connections[index], f"connection {index} was dialled again by the peer")
        self._session = greeting.session
        if index == URGENT and not self.complete.is_set():
            self.inbox.clock_offset_s = greeting.clock_offset_s
        self._silent_ticks = self._refusals = 0
        connection = Connection(self._loop, self, connected, index=index, number=greeting.connection)
        self._connections[index] = connection
        self._outbox.add(connection)
        connection.start()
        if index == URGENT and self._dials and self.peer.auto and not self.complete.is_set():
            # The kernel's figure has no waiting for a busy processor in it.
            self._size.begin(connection.round_trip_s() or greeting.round_trip_s)
            self._loop.call(self.mend)
        needed = self._size.wanted if self._dials else max(1, greeting.count - 1)
        if all(i in self._connections for i in range(URGENT, needed)):
            self.complete.set()
            self._ping()
        self._log_if_restored()
        self._outbox.pump()

    def send(self, message: Outgoing) -> None:
        """Take a message; it fails at once where the link is gone."""
        if self.lost is not None or not self.complete.is_set():
            message.send.fail(self.lost or self._lost("not connected"))
            return
        message.send.on_settled(lambda _: self._leave_if_drained())
        self._outbox.submit(message)

    def post(self, channel: int, receive: Receive) -> None:
        """Wait for a message; what is complete can be received even after the link is lost."""
        self.inbox.post(channel, receive)
        if self.lost is not None:
            self.inbox.fail(self.lost)

    def tick(self, late_ticks: int = 0) -> None:
        """Twice a second: send signs of life, look for the peer's, and for connections that are stuck.

        The peer may be silent for `late_ticks` more than agreed.
        """
        if self.lost is not None or not self.complete.is_set():
            return
        if self._is_cut():
            self.cut()
        answered = False
        for connection in list(self._connections.values()):
            answered = answered or connection.heard
            connection.silent_ticks = (
                0 if connection.heard or connection.paused else connection.silent_ticks + 1
            )
            connection.heard = False
        # Ticks are counted, not seconds: a process that was itself stopped for a minute sees one tick of
        # silence.
        self._silent_ticks = 0 if answered else self._silent_ticks + 1
        self._paused_ticks = self._paused_ticks + 1 if self.inbox.paused else 0
        if self._silent_ticks >= self._most_silent_ticks + late_ticks:
            what = f" ({self.trouble})" if self.trouble and not self._connections else ""
            self.fail(self._lost(f"silent for {self._silent_ticks * TICK_S:g} s{what}"))
        elif self._paused_ticks * TICK_S >= _MOST_PAUSED_S:
            self.fail(self._lost("it sends more messages without a posted receive than can be kept"))
        else:
            self._replace_stuck()
            self._beat()
            self._ping()
            self._tune()
            self.mend()

    def leave(self) -> None:
        """Say goodbye once everything is there."""
        self._closing = True
        self._acknowledging.pay()
        if not self._connections:
            self.fail(self._lost("closed"))
        self._leave_if_drained()

    def fail(self, error: TransportError) -> None:
        """Close every connection; all that is pending fails with `error`. Idempotent."""
        self.lost = self.lost or error
        for connection in self._connections.values():
            connection.close()
        self._outbox.fail(self.lost)
        self.inbox.fail(self.lost)
        self.complete.set()
        self.over.set()

    def cut(self) -> None:
        """Break every connection, as a WAN would that goes away for a moment."""
        for connection in list(self._connections.values()):
            self.ended(connection, f"connection {connection.index} was cut")

    def slow(self, factor: float, delay: float) -> None:
        """Make what is sent from now on slower, and its delay longer, where the link is emulated."""
        self._outbox.slow(factor, delay)

    @property
    def one_way_s(self) -> float | None:
        """Latency by the latest pings, in seconds; None before the first answer."""
        return self._pinging.one_way_s

    def traffic(self) -> LinkTraffic:
        """Figures so far."""
        connections = list(self._connections.values())
        urgent = self._connections.get(URGENT)
        return LinkTraffic(
            peer=self.peer.rank,
            link=self.peer.link,
            connections=self._carrying() if self.peer.auto else self.peer.connection_count,
            bytes_sent=self._outbox.bytes_sent,
            bytes_received=self.inbox.bytes_received,
            busy_s=self._outbox.busy_s,
            most_late_s=self.inbox.most_late_s,
            egress_bytes=self._gone_bytes + sum(c.bytes_out for c in connections),
            resent_bytes=self._outbox.bytes_resent,
            reconnects=self._reconnects,
            round_trip_s=urgent.round_trip_s() if urgent is not None and urgent.open else None,
            one_way_s=self.one_way_s,
        )

    # What the connections report (connection.Owner).

    def place(self, connection: Connection, header: Header) -> memoryview | None:
        return self.inbox.place(connection, header)

    def came(self, connection: Connection, header: Header, body: memoryview) -> None:
        if header.is_chunk:
            self._breaks = 0
            self._acknowledging.came(connection, whole=self.inbox.came(header))
        elif header.kind is Kind.ACK:
            for number, count in unpack_acknowledgement(body).items():
                if self._outbox.acknowledge(number, count):
                    self._breaks = 0
            self._retire_drained()
        elif header.kind is Kind.BYE:
            connection.goodbye = self._peer_leaves = True
            self.lost = self.lost or (None if self._closing else self._lost("closed by the peer"))
        elif header.kind is Kind.WISH:
            self._size.wish(header.message)
            self._resize()
        elif header.kind is Kind.PING:
            due = self.inbox.local(header.due)
            self._say(connection, answer(header, time.monotonic(), due, self._outbox.delay_s))
        elif header.kind is Kind.PONG:
            self._pinging.answered(header.message, time.monotonic(), self.inbox.local(header.due))
        elif header.kind is Kind.RETIRE:
            connection.goodbye = True
            self._outbox.retire(connection)
            self._retire_drained()

    def drained(self, connection: Connection) -> None:
        if connection.index >= 0:
            self._outbox.pump()

    def corrupted(self, connection: Connection, header: Header) -> None:
        reason = (
            f"connection {connection.index}: the checksum of a chunk of message {header.tag} does not match"
        )
        self._corrupt += 1
        if self._corrupt < _MOST_CORRUPT:
            self.ended(connection, reason)  # it will come again
            return
        self.fail(ChecksumError(rank=self._rank, peer=self.peer.rank, link=self.peer.link, reason=reason))

    def ended(self, connection: Connection, reason: str | None) -> None:
        if self._connections.get(connection.index) is not connection:
            return
        connection.close()
        del self._connections[connection.index]
        self._gone_bytes += connection.bytes_out
        self._acknowledging.forget(connection)
        self.inbox.forget(connection)
        self._outbox.remove(connection)
        if self._closing or self._peer_leaves:
            self._ended_in_peace(connection)
            return
        if reason is not None and not connection.retiring:
            self.trouble = reason
            self._reconnects += 1
            self._breaks += 1
        if not self.complete.is_set():
            self.fail(self._lost(reason or "closed by the peer"))
            return
        if reason is not None and not connection.retiring and self._broken_at is None:
            self._broken_at = time.monotonic()
            log.warning("Link to rank %d (%s): %s; reconnecting.", self.peer.rank, self.peer.link, reason)
        if self._breaks > _MOST_BREAKS * (self._size.wanted + 1):
            self.fail(self._lost(f"connections break before any data arrives: {self.trouble}"))
            return
        self._acknowledging.again(self._connections.values())
        self._loop.call(self.mend)
        self._loop.call(self._outbox.pump)

    # Connections.

    def _log_if_restored(self) -> None:
        if self._broken_at is None or len(self._connections) < self._size.wanted + 1:
            return
        took_s, self._broken_at = time.monotonic() - self._broken_at, None
        log.info("Link to rank %d (%s): restored after %.1f s.", self.peer.rank, self.peer.link, took_s)

    def _ended_in_peace(self, connection: Connection) -> None:
        gone = self._lost("closed by this rank" if self._closing else "closed by the peer")
        if connection.index == URGENT and not self._closing:
            # Nothing can be acknowledged any more. What has been sent may still come over the others.
            self.lost = self.lost or gone
            self._outbox.fail(self.lost)
        if not self._connections:
            self.fail(gone)

    def _dial(self, index: int) -> None:
        self._dialling.add(index)
        first = not self.complete.is_set()
        count = 0 if self.peer.auto else self.peer.connection_count + 1
        self._greeter.dial(
            self._place,
            peer=self.peer.rank,
            index=index + 1,
            count=count,
            seconds=_FIRST_ATTEMPT_S if first else _ATTEMPT_S,
            greeted=functools.partial(self._dialled, index),
            failed=functools.partial(self._undialled, index),
        )

    def _dialled(self, index: int, connected: socket.socket, greeting: Greeting) -> None:
        self._dialling.discard(index)
        self.attach(connected, greeting)

    def _answered(self, connected: socket.socket, _: Greeting) -> None:
        """Somebody listens there, so it is for the peer to dial."""
        connected.close()
        self._dialling.discard(URGENT)
        self._refusals = 0

    def _undialled(self, index: int, error: Exception) -> None:
        self._dialling.discard(index)
        self.trouble = reason_of(error)
        if self.lost is not None:
            return
        first = not self.complete.is_set()
        if isinstance(error, AuthenticationError):
            self.fail(error if first else self._lost(str(error)))
            return
        if isinstance(error, ConnectionRefusedError) and not self._connections and not first:
            self._refusals += 1
            if self._refusals >= _MOST_REFUSALS:
                where = f"{self.peer.address[0]}:{self.peer.address[1]}"
                self.fail(self._lost(f"the connections broke, and no process listens at {where} any more"))
                return
        self._loop.at(time.monotonic() + _PAUSE_S, self.mend)

    def _replace_stuck(self) -> None:
        for connection in list(self._connections.values()):
            if connection.silent_ticks >= self._suspect_ticks:
                silent_s = connection.silent_ticks * TICK_S
                self.ended(connection, f"connection {connection.index} was silent for {silent_s:g} s")

    def _beat(self) -> None:
        for connection in list(self._connections.values()):
            if connection.idle and not self._said_goodbye:
                connection.send([memoryview(_BEAT)])

    def _ping(self) -> None:
        """Ask for a round trip on the connection that no bulk data waits on."""
        if (urgent := self._connections.get(URGENT)) is not None:
            self._say(urgent, self._pinging.ping(time.monotonic(), self._outbox.delay_s))

    def _say(self, connection: Connection, header: Header) -> None:
        if not self._said_goodbye:
            connection.send([memoryview(pack(header))])

    def _control(self) -> Connection | None:
        """The connection for what the two sides tell each other."""
        return self._connections.get(URGENT) or next(iter(self._connections.values()), None)

    # The number of connections.

    def _tune(self) -> None:
        """Want more or fewer connections where what was carried says so."""
        self._want(self._size.sample(self._outbox, self._carrying()))

    def _carrying(self) -> int:
        """Connections that carry data and are to stay."""
        return sum(c.index >= 0 and not c.retiring for c in list(self._connections.values()))

    def _want(self, count: int) -> None:
        """The side that dials makes it so, the other asks for it."""
        if count == self._size.wanted:
            return
        self._size.wanted = count
        if self._dials:
            self._resize()
        elif (control := self._control()) is not None:
            control.send([memoryview(pack(Header(kind=Kind.WISH, message=count)))])

    def _resize(self) -> None:
        """Open or retire connections until there are as many as the side that wants more has asked for."""
        for index, connection in self._connections.items():
            if index >= self._size.most:
                self._outbox.retire(connection)
        self._retire_drained()
        self.mend()

    def _retire_drained(self) -> None:
        for connection in list(self._connections.values()):
            if connection.retiring and connection.idle and not self._outbox.pending(connection):
                if not self._dials:
                    self.ended(connection, None)
                elif not connection.goodbye:
                    connection.goodbye = True  # the peer answers by closing it
                    connection.send([memoryview(_RETIRE)])

    # The end.

    def _leave_if_drained(self) -> None:
        if not self._closing or self._said_goodbye or self.lost is not None:
            return
        if self._outbox.idle:
            self._said_goodbye = True
            for connection in list(self._connections.values()):
                connection.send([memoryview(_BYE)])
                connection.finish()

    def _lost(self, reason: str) -> LinkLost:
        return LinkLost(rank=self._rank, peer=self.peer.rank, link=self.peer.link, reason=reason)
