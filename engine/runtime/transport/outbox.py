"""What a rank has to send to one peer: messages cut in chunks, chunks given to connections."""

import heapq
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.runtime.transport.connection import Connection
from engine.runtime.transport.errors import TransportError
from engine.runtime.transport.handles import Send
from engine.runtime.transport.loop import Loop
from engine.runtime.transport.shape import LinkShape
from engine.runtime.transport.shaper import PairShaper, chunk_bytes
from engine.runtime.transport.wire import Header, Kind, checksum, pack

# On an emulated link chunks go to the kernel this long before they are due to pass it, so that a late wake-up
# does not delay them and the loop wakes rarely. The receiver holds them until they are due.
HORIZON_S = 0.005
# Most bytes that wait in user space for the kernel; what is beyond waits uncut.
MOST_BACKLOG_BYTES = 16 << 20
# Chunk of a real link: each connection takes the next one when the kernel has taken its last.
REAL_CHUNK_BYTES = 256 * 1024


@dataclass(slots=True, kw_only=True, eq=False)
class Outgoing:
    """A message and how far it is. `ready`: it may not leave earlier (time.monotonic())."""

    send: Send
    channel: int
    data: memoryview
    ready: float
    urgent: bool
    number: int = 0
    chunk: int = 0
    offset: int = 0
    unwritten: int = 0
    start: float = math.inf
    end: float = -math.inf

    @property
    def dispatched(self) -> bool:
        """All of it has been given to connections."""
        return self.offset == self.send.message_bytes and self.number > 0


class Outbox:
    """Sends the messages for one peer in order of departure; urgent ones at once. On the I/O thread only."""

    def __init__(
        self, loop: Loop, shape: LinkShape | None, urgent: Connection, connections: Sequence[Connection]
    ) -> None:
        self.bytes_sent = 0
        self.busy_s = 0.0
        self._loop = loop
        self._shaper = None if shape is None else PairShaper(shape, len(connections))
        self._urgent = urgent
        self._connections = connections
        # The earliest departure goes first: what a relay may not forward yet holds nothing up.
        self._waiting: list[tuple[float, int, Outgoing]] = []
        self._current: Outgoing | None = None
        self._unfinished: set[Outgoing] = set()
        self._numbers = 0
        self._failed = False
        self._wakes_at = math.inf
        self._busy_until = -math.inf

    @property
    def idle(self) -> bool:
        """Every message has gone to the kernel."""
        return not self._unfinished

    def submit(self, message: Outgoing) -> None:
        """Take a message, and send what may go now."""
        self._numbers += 1
        message.number = self._numbers
        self._unfinished.add(message)
        total = message.send.message_bytes
        if message.urgent:
            message.chunk = max(total, 1)
            self._emit_urgent(message)
            return
        shaped = self._shaper is not None
        message.chunk = chunk_bytes(total, len(self._connections)) if shaped else REAL_CHUNK_BYTES
        heapq.heappush(self._waiting, (message.ready, message.number, message))
        self.pump()

    def pump(self) -> None:
        """Give connections as many chunks as may go now."""
        while not self._failed and (self._current is not None or self._waiting):
            message = self._current or self._waiting[0][-1]
            passed = self._emit_shaped(message) if self._shaper else self._emit_real(message)
            if not passed or self._failed:  # a write may find out that the link is gone
                return
            if self._current is None:
                heapq.heappop(self._waiting)
            self._current = None if message.offset == message.send.message_bytes else message

    def fail(self, error: TransportError) -> None:
        """Nothing goes out any more: every unfinished send fails."""
        self._failed = True
        self._waiting.clear()
        self._current = None
        unfinished, self._unfinished = self._unfinished, set()
        for message in sorted(unfinished, key=lambda m: m.number):
            message.send.fail(error)

    def _emit_shaped(self, message: Outgoing) -> bool:
        assert self._shaper is not None
        earliest = self._shaper.next_start(message.ready)
        if earliest > time.monotonic() + HORIZON_S:
            self._wake_at(earliest - HORIZON_S)
            return False
        if sum(connection.backlog_bytes for connection in self._connections) > MOST_BACKLOG_BYTES:
            return False  # pumped again when a connection has drained
        slot = self._shaper.take(_next_chunk(message), message.ready)
        message.start = min(message.start, slot.start)
        message.end = max(message.end, slot.end)
        self._emit(message, self._connections[slot.connection], slot.due)
        return True

    def _emit_real(self, message: Outgoing) -> bool:
        now = time.monotonic()
        if message.ready > now:
            self._wake_at(message.ready)
            return False
        connection = next((c for c in self._connections if c.idle), None)
        if connection is None:
            return False
        message.start = min(message.start, now)
        self._emit(message, connection, math.nan)
        return True

    def _emit_urgent(self, message: Outgoing) -> None:
        due = math.nan
        message.start = time.monotonic()
        if self._shaper is not None:
            slot = self._shaper.take_urgent(message.send.message_bytes, message.ready)
            message.start, message.end, due = slot.start, slot.end, slot.due
        self._emit(message, self._urgent, due)

    def _emit(self, message: Outgoing, connection: Connection, due: float) -> None:
        length = _next_chunk(message)
        header = Header(
            kind=Kind.DATA, channel=message.channel, tag=message.send.tag, message=message.number,
            offset=message.offset, length=length, payload_bytes=len(message.data),
            message_bytes=message.send.message_bytes, due=due,
        )  # fmt: skip
        real = message.data[message.offset : message.offset + header.real_bytes]
        filler = length - len(real)
        header.checksum = checksum(real, filler)
        message.offset += length
        message.unwritten += 1
        self.bytes_sent += length
        connection.send([memoryview(pack(header)), real], filler, lambda: self._written(message))

    def _written(self, message: Outgoing) -> None:
        message.unwritten -= 1
        if message.unwritten or not message.dispatched or message not in self._unfinished:
            return
        self._unfinished.discard(message)
        if self._shaper is None:
            message.end = time.monotonic()
        self.busy_s += max(0.0, message.end - max(message.start, self._busy_until))
        self._busy_until = max(self._busy_until, message.end)
        message.send.finish(message.start, message.end)

    def _wake_at(self, when: float) -> None:
        if when < self._wakes_at:
            self._wakes_at = when
            self._loop.at(when, self._awake)

    def _awake(self) -> None:
        self._wakes_at = math.inf
        self.pump()


def _next_chunk(message: Outgoing) -> int:
    return min(message.chunk, message.send.message_bytes - message.offset)
