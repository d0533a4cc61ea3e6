"""Messages from a rank to one peer: cut into chunks, which connections take.

Work stealing: a connection takes the next chunk when the kernel has taken its last one, so that each carries
what it can and a slow one costs its own share only. A chunk is kept until the peer says that it came; those
of a connection that breaks go again over the others.
"""

import heapq
import math
import time
from collections import deque
from dataclasses import dataclass, field

from engine.control.errors import TransportError
from engine.transport.connection import Connection
from engine.transport.handles import Send
from engine.transport.loop import Loop
from engine.transport.shape import LinkShape
from engine.transport.shaper import PairShaper, chunk_bytes
from engine.transport.wire import Header, Kind, MalformedFrame, checksum, pack

# On an emulated link chunks go to the kernel this long before they are due to pass it, so that a late wake-up
# does not delay them and the loop wakes rarely. The receiver holds them until they are due.
HORIZON_S = 0.005
# Most bytes that wait in user space for the kernel; what is beyond waits uncut.
MOST_BACKLOG_BYTES = 16 << 20
# Chunks of a real link: a connection's grow while the peer has them at once and shrink while it is slow, so
# that a fast one costs little work and a slow one holds no message up. When the kernel took them says little:
# its buffers may hold seconds of a slow connection.
FIRST_CHUNK_BYTES = 256 * 1024
LEAST_CHUNK_BYTES = 64 * 1024
MOST_CHUNK_BYTES = 4 << 20
QUICK_S, SLOW_S = 0.02, 0.5
# Most bytes given out before the sockets have their turn again.
PUMP_BYTES = 16 << 20
# What a paced link could not send for so long, because this thread woke late, it may make up for; TCP still
# spreads it over a round trip.
CREDIT_S = 0.05


@dataclass(slots=True, kw_only=True, eq=False)
class Outgoing:
    """A message and how far it is. `ready`: it may not leave earlier (time.monotonic()).

    due : when it counts as there at the earliest, and over a real link at the latest; NaN: when it is there.
    outstanding : its chunks that were cut and of which the peer has not said that they came.
    """

    send: Send
    channel: int
    data: memoryview
    ready: float
    urgent: bool
    due: float = math.nan
    number: int = 0
    offset: int = 0
    cut: bool = False
    outstanding: int = 0
    start: float = math.inf
    end: float = -math.inf

    def due_after(self, slot_due: float) -> float:
        """When a chunk is due that an emulated link brings at `slot_due`."""
        return slot_due if math.isnan(self.due) else max(slot_due, self.due)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A piece of a message."""

    message: Outgoing
    offset: int
    length: int


@dataclass(slots=True, eq=False)
class _Lane:
    """A connection with the chunks that it was given and that the peer has not acknowledged."""

    connection: Connection
    chunk_bytes: int = FIRST_CHUNK_BYTES
    acknowledged: int = 0
    pending: deque[tuple[Chunk, float]] = field(default_factory=deque)  # given at, time.monotonic()
    pending_bytes: int = 0

    def give(self, chunk: Chunk, now: float) -> None:
        """Note a chunk that is on its way from now on."""
        self.pending.append((chunk, now))
        self.pending_bytes += chunk.length

    def take(self) -> tuple[Chunk, float]:
        """The chunk that the peer has now, and when it was given."""
        self.acknowledged += 1
        chunk, since = self.pending.popleft()
        self.pending_bytes -= chunk.length
        return chunk, since

    def delivered(self, seconds: float) -> None:
        """The peer had a chunk so long after it was given."""
        if seconds < QUICK_S:
            self.chunk_bytes = min(2 * self.chunk_bytes, MOST_CHUNK_BYTES)
        elif seconds > SLOW_S:
            self.chunk_bytes = max(self.chunk_bytes // 2, LEAST_CHUNK_BYTES)
        self.connection.limit_unsent(self.chunk_bytes <= FIRST_CHUNK_BYTES)


class Outbox:
    """Sends the messages for one peer in order of departure; urgent ones at once. On the I/O thread only.

    Parameters
    ----------
    shape : of an emulated link, `lanes` its connections; None for a real one.
    pace_bytes_per_s : most that a real link is given; None: as much as it takes.
    checksums : the peer can tell a chunk that was changed on its way.
    """

    def __init__(
        self,
        loop: Loop,
        shape: LinkShape | None,
        *,
        lanes: int,
        pace_bytes_per_s: float | None = None,
        checksums: bool = True,
    ) -> None:
        self.bytes_sent = 0
        self.bytes_resent = 0
        self.bytes_delivered = 0
        self.busy_s = 0.0
        self._loop = loop
        self._shaper = None if shape is None else PairShaper(shape, lanes)
        self._shaped_lanes = lanes
        self._pace_bytes_per_s = pace_bytes_per_s
        self._paced_until = -math.inf
        self._checksums = checksums
        self._lanes: dict[int, _Lane] = {}  # by number of the connection
        self._data: list[_Lane] = []
        # The earliest departure goes first: what a relay may not forward yet holds nothing up.
        self._waiting: list[tuple[float, int, Outgoing]] = []
        self._current: Outgoing | None = None
        self._again: deque[Chunk] = deque()
        self._urgent: deque[Chunk] = deque()
        self._unfinished: set[Outgoing] = set()
        self._numbers = 0
        self._failed = False
        self._pump_called = False
        self._wakes_at = math.inf
        self._busy_until = -math.inf
        self._under_way = 0
        self._under_way_since = 0.0
        self._under_way_s = 0.0

    @property
    def idle(self) -> bool:
        """The peer has every message."""
        return not self._unfinished

    @property
    def under_way_s(self) -> float:
        """Seconds in which bulk chunks were on their way."""
        since = time.monotonic() - self._under_way_since if self._under_way else 0.0
        return self._under_way_s + since

    @property
    def delay_s(self) -> float | None:
        """One-way delay of an emulated link, now; None for a real one."""
        return None if self._shaper is None else self._shaper.shape.one_way_delay_s

    def slow(self, factor: float, delay: float) -> None:
        """An emulated link becomes slower by `factor`, its delay `delay` times as long; a real one stays."""
        if self._shaper is not None:
            self._shaper.reshape(self._shaper.shape.slower(factor, delay=delay))

    def add(self, connection: Connection) -> None:
        """Use `connection` from now on."""
        self._lanes[connection.number] = _Lane(connection)
        self._sort_lanes()

    def remove(self, connection: Connection) -> None:
        """`connection` is gone: what the peer has not acknowledged goes again."""
        lane = self._lanes.pop(connection.number, None)
        if lane is None:
            return
        chunks = [chunk for chunk, _ in lane.pending]
        self._urgent.extend(chunk for chunk in chunks if chunk.message.urgent)
        bulk = [chunk for chunk in chunks if not chunk.message.urgent]
        self._note_under_way(-len(bulk))
        self._again.extend(bulk)
        self.bytes_resent += sum(chunk.length for chunk in chunks)
        self._sort_lanes()

    def retire(self, connection: Connection) -> None:
        """Give `connection` no more chunks."""
        connection.retiring = True
        self._sort_lanes()

    def pending(self, connection: Connection) -> bool:
        """The peer has not acknowledged all that `connection` was given."""
        lane = self._lanes.get(connection.number)
        return lane is not None and bool(lane.pending)

    def submit(self, message: Outgoing) -> None:
        """Take a message, and send what may go now."""
        self._numbers += 1
        message.number = self._numbers
        self._unfinished.add(message)
        if message.urgent:
            self._urgent.append(self._cut(message, message.send.message_bytes))
        else:
            heapq.heappush(self._waiting, (message.ready, message.number, message))
        self.pump()

    def pump(self) -> None:
        """Give connections as many chunks as may go now."""
        while self._urgent and self._lanes and not self._failed:
            self._emit_urgent(self._urgent.popleft())
        emit = self._emit_real if self._shaper is None else self._emit_shaped
        budget = PUMP_BYTES
        while (
            not self._failed and self._data and (sent := emit())
        ):  # a write may find out that the link is gone
            budget -= sent.length
            if budget <= 0:
                self._pump_soon()
                return

    def acknowledge(self, connection: int, count: int) -> bool:
        """The peer has `count` chunks of `connection`; whether that is news. Raises MalformedFrame."""
        lane = self._lanes.get(connection)
        if lane is None or count <= lane.acknowledged:
            return False  # it is gone, and its chunks go again; or this was overtaken by another
        if count > (given := lane.acknowledged + len(lane.pending)):
            raise MalformedFrame(f"{count} chunks acknowledged, {given} were sent")
        while lane.acknowledged < count:
            chunk, since = lane.take()
            lane.delivered(time.monotonic() - since)
            self._delivered(chunk)
        return True

    def fail(self, error: TransportError) -> None:
        """Stop sending: every unfinished send fails."""
        self._failed = True
        self._waiting.clear()
        self._again.clear()
        self._urgent.clear()
        self._current = None
        unfinished, self._unfinished = self._unfinished, set()
        for message in sorted(unfinished, key=lambda m: m.number):
            message.send.fail(error)

    # Cutting.

    def _cut(self, message: Outgoing, most_bytes: int) -> Chunk:
        total = message.send.message_bytes
        length = min(most_bytes, total - message.offset)
        chunk = Chunk(message, message.offset, length)
        message.offset += length
        message.cut = message.offset == total
        message.outstanding += 1
        self.bytes_sent += length
        return chunk

    def _front(self) -> Outgoing | None:
        """The message whose chunks are next."""
        return self._current or (self._waiting[0][-1] if self._waiting else None)

    def _next_chunk(self, message: Outgoing, most_bytes: int) -> Chunk:
        """The next chunk: one that goes again, else the next piece of `message`, which is the front."""
        if self._again:
            return self._again.popleft()
        if self._current is None:
            heapq.heappop(self._waiting)
        chunk = self._cut(message, most_bytes)
        self._current = None if message.cut else message
        return chunk

    # A real link.

    def _emit_real(self) -> Chunk | None:
        message = self._again[0].message if self._again else self._front()
        if message is None or (lane := self._free_lane()) is None:
            return None
        now = time.monotonic()
        earliest = max(message.ready, self._paced_until)
        if earliest > now:
            self._wake_at(earliest)
            return None
        left = message.send.message_bytes - message.offset
        # The last chunks are small, so that all connections end together.
        fair = max(left // (2 * len(self._data)), LEAST_CHUNK_BYTES)
        chunk = self._next_chunk(message, min(lane.chunk_bytes, fair))
        if self._pace_bytes_per_s:
            begin = max(self._paced_until, now - CREDIT_S)
            self._paced_until = begin + chunk.length / self._pace_bytes_per_s
        message.start = min(message.start, now)
        self._emit(lane, chunk, message.due, now)
        return chunk

    def _free_lane(self) -> _Lane | None:
        # A kernel takes more of a message than a window: the connection with the least on its way is given
        # the next chunk, or a short message would go over the first few of them alone.
        free = (lane for lane in self._data if lane.connection.idle)
        return min(free, key=lambda lane: lane.pending_bytes, default=None)

    # An emulated link.

    def _emit_shaped(self) -> Chunk | None:
        assert self._shaper is not None
        message = self._again[0].message if self._again else self._front()
        if message is None:
            return None
        earliest = self._shaper.next_start(message.ready)
        if earliest > time.monotonic() + HORIZON_S:
            self._wake_at(earliest - HORIZON_S)
            return None
        if sum(lane.connection.backlog_bytes for lane in self._data) > MOST_BACKLOG_BYTES:
            return None  # pumped again when a connection has drained
        chunk = self._next_chunk(message, chunk_bytes(message.send.message_bytes, self._shaped_lanes))
        slot = self._shaper.take(chunk.length, message.ready)
        message.start = min(message.start, slot.start)
        message.end = max(message.end, slot.end)
        # While one is being dialled again, another carries the bytes that the emulated one would.
        due = message.due_after(slot.due)
        self._emit(self._data[slot.connection % len(self._data)], chunk, due, time.monotonic())
        return chunk

    def _emit_urgent(self, chunk: Chunk) -> None:
        message, due, now = chunk.message, chunk.message.due, time.monotonic()
        if self._shaper is not None:
            slot = self._shaper.take_urgent(chunk.length, message.ready)
            message.start, message.end = min(message.start, slot.start), max(message.end, slot.end)
            due = message.due_after(slot.due)
        else:
            message.start = min(message.start, now)
        lane = next((lane for lane in self._lanes.values() if lane.connection.index < 0), None)
        self._emit(lane or next(iter(self._lanes.values())), chunk, due, now)

    # Both.

    def _emit(self, lane: _Lane, chunk: Chunk, due: float, now: float) -> None:
        message = chunk.message
        header = Header(
            kind=Kind.DATA if self._checksums else Kind.UNCHECKED,
            channel=message.channel,
            tag=message.send.tag,
            message=message.number,
            offset=chunk.offset,
            length=chunk.length,
            payload_bytes=len(message.data),
            message_bytes=message.send.message_bytes,
            due=due,
        )
        real = message.data[chunk.offset : chunk.offset + header.real_bytes]
        filler = chunk.length - len(real)
        if self._checksums:
            header.checksum = checksum(real)
        lane.give(chunk, now)
        if not message.urgent:
            self._note_under_way(1)
        frame = [memoryview(pack(header)), real]
        lane.connection.send(frame, filler, lambda: self._taken(message))

    def _taken(self, message: Outgoing) -> None:
        """The kernel has a chunk."""
        if self._shaper is None:
            message.end = max(message.end, time.monotonic())

    def _delivered(self, chunk: Chunk) -> None:
        message = chunk.message
        message.outstanding -= 1
        if not message.urgent:
            self.bytes_delivered += chunk.length
            self._note_under_way(-1)
        if message.outstanding or not message.cut or message not in self._unfinished:
            return
        self._unfinished.discard(message)
        self.busy_s += max(0.0, message.end - max(message.start, self._busy_until))
        self._busy_until = max(self._busy_until, message.end)
        message.send.finish(message.start, message.end)

    def _note_under_way(self, chunks: int) -> None:
        before, self._under_way = self._under_way, self._under_way + chunks
        if not before and self._under_way:
            self._under_way_since = time.monotonic()
        elif before and not self._under_way:
            self._under_way_s += time.monotonic() - self._under_way_since

    def _sort_lanes(self) -> None:
        lanes = [lane for lane in self._lanes.values() if lane.connection.index >= 0]
        in_use = (lane for lane in lanes if not lane.connection.retiring)
        self._data = sorted(in_use, key=lambda lane: lane.connection.index)

    def _pump_soon(self) -> None:
        if not self._pump_called:
            self._pump_called = True
            self._loop.call(self._pump_again)

    def _pump_again(self) -> None:
        self._pump_called = False
        self.pump()

    def _wake_at(self, when: float) -> None:
        if when < self._wakes_at:
            self._wakes_at = when
            self._loop.at(when, self._awake)

    def _awake(self) -> None:
        self._wakes_at = math.inf
        self.pump()
