"""Messages from one peer: chunks in any order over any connection, assembled in the posted buffers.

A chunk may come twice: when a connection breaks, the sender cannot know which of its last chunks were read,
and sends all that were not acknowledged over the others. Each counts once.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.control.errors import MessageSizeError, TransportError
from engine.transport.connection import Connection
from engine.transport.handles import Receive
from engine.transport.wire import Header, MalformedFrame, Tag

Key = tuple[int, Tag]  # channel, tag


@dataclass(slots=True, kw_only=True, eq=False)
class _Assembly:
    """A message of which something has come."""

    key: Key
    receive: Receive | None
    buffer: memoryview
    message_bytes: int
    missing: int
    expected: bool
    due: float = -math.inf
    here: set[int] = field(default_factory=set)  # offsets of the chunks that are in their place
    coming: dict[int, Connection] = field(default_factory=dict)  # offsets of those that are being read

    def take(self, connection: Connection, offset: int) -> bool:
        """Whether `connection` is to bring the chunk at `offset`; any other that was at it is given up.

        The sender sends a chunk again only when it has given up the connection that had it. That one must not
        write into the buffer any more: the receiver may have changed it by then.
        """
        if offset in self.here:
            return False
        other = self.coming.get(offset)
        if other is not None and other is not connection:
            other.give_up(f"connection {other.index} was given up by the peer")
        self.coming[offset] = connection
        return True

    @property
    def complete(self) -> bool:
        return self.missing <= 0 and bool(self.here)


class _Seen:
    """The numbers of messages that came whole; they begin at 1 and hardly ever leave gaps."""

    def __init__(self) -> None:
        self._below = 1
        self._beyond: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number < self._below or number in self._beyond

    def add(self, number: int) -> None:
        self._beyond.add(number)
        while self._below in self._beyond:
            self._beyond.remove(self._below)
            self._below += 1


class Inbox:
    """Matches messages of one peer with posted receives. On the I/O thread only.

    A message that nobody has posted yet is kept in a buffer of its own; past `most_unexpected_bytes` of those
    the connection that brings the next one is not read until a receive is posted, and TCP holds the sender
    back.

    new_buffer : gives memory, of so many bytes, for a message that has no posted buffer.
    """

    def __init__(self, most_unexpected_bytes: int, new_buffer: Callable[[int], memoryview]) -> None:
        self.clock_offset_s = 0.0  # the peer's clock less ours
        self.bytes_received = 0
        self.doubled_chunks = 0
        self.most_late_s = 0.0
        self.paused: list[Connection] = []
        self._new_buffer = new_buffer
        self._most_unexpected_bytes = most_unexpected_bytes
        self._unexpected_bytes = 0
        self._posted: dict[Key, Receive] = {}
        self._assemblies: dict[int, _Assembly] = {}
        self._seen = _Seen()
        self._unexpected: dict[Key, deque[_Assembly]] = {}

    def post(self, channel: int, receive: Receive) -> None:
        """Wait for a message; it may be here already, whole or in part."""
        key = (channel, receive.tag)
        if waiting := self._unexpected.get(key):
            assembly = waiting.popleft()
            if not waiting:
                del self._unexpected[key]
            self._match(assembly, receive)
            if assembly.complete:
                self._deliver(assembly)
        elif key in self._posted:
            receive.fail(TransportError(f"{receive} is already posted"))
        else:
            self._posted[key] = receive
        self._resume()

    def place(self, connection: Connection, header: Header) -> memoryview | None:
        """The buffer for a chunk's real bytes; None if the connection must wait for a posted receive.

        Empty for a chunk that is here already. Raises MalformedFrame.
        """
        if header.message in self._seen:
            return memoryview(b"")
        assembly = self._assemblies.get(header.message) or self._begin(header, bounded=connection.index >= 0)
        if assembly is None:
            self.paused.append(connection)
            return None
        if (len(assembly.buffer), assembly.message_bytes) != (header.payload_bytes, header.message_bytes):
            raise MalformedFrame(f"chunks of message {header.message} disagree about its size")
        if not assembly.take(connection, header.offset):
            return memoryview(b"")
        return assembly.buffer[header.offset : header.offset + header.real_bytes]

    def came(self, header: Header) -> bool:
        """A chunk is sound, and in its place unless it was there before; whether its message is whole."""
        assembly = self._assemblies.get(header.message)
        if assembly is None or header.offset in assembly.here:
            self.doubled_chunks += 1
            return True
        assembly.here.add(header.offset)
        assembly.coming.pop(header.offset, None)
        assembly.missing -= header.length
        assembly.due = max(
            assembly.due, time.monotonic() if math.isnan(header.due) else self.local(header.due)
        )
        self.bytes_received += header.length
        if assembly.complete:
            del self._assemblies[header.message]
            self._seen.add(header.message)
            self._deliver(assembly)
        return assembly.complete

    def forget(self, connection: Connection) -> None:
        """`connection` is gone: what it was bringing will come over another."""
        for assembly in self._assemblies.values():
            for offset in [o for o, c in assembly.coming.items() if c is connection]:
                del assembly.coming[offset]
        if connection in self.paused:
            self.paused.remove(connection)

    def fail(self, error: TransportError) -> None:
        """No more data will arrive; complete messages can still be received."""
        posted, self._posted = self._posted, {}
        started, self._assemblies = self._assemblies, {}
        for assembly in started.values():
            if assembly.key in self._unexpected and assembly in self._unexpected[assembly.key]:
                self._unexpected[assembly.key].remove(assembly)
        receives = [*posted.values(), *(a.receive for a in started.values() if a.receive is not None)]
        for receive in receives:
            receive.fail(error)

    def _begin(self, header: Header, *, bounded: bool) -> _Assembly | None:
        key = (header.channel, header.tag)
        receive = self._posted.get(key)
        if receive is None and bounded and not self._room_for(header.payload_bytes):
            return None
        assembly = _Assembly(
            key=key,
            receive=None,
            buffer=memoryview(b""),
            message_bytes=header.message_bytes,
            missing=header.message_bytes,
            expected=receive is not None,
        )
        if receive is not None and receive.into is not None and receive.nbytes == header.payload_bytes:
            assembly.buffer = receive.into()
        else:
            assembly.buffer = self._memory_for(header)
        self._posted.pop(key, None)
        if receive is not None:
            self._match(assembly, receive)
        else:
            self._unexpected_bytes += header.payload_bytes
            self._unexpected.setdefault(key, deque()).append(assembly)
        self._assemblies[header.message] = assembly
        return assembly

    def _memory_for(self, header: Header) -> memoryview:
        try:
            return self._new_buffer(header.payload_bytes)
        except MemoryError:
            raise MalformedFrame(f"no memory for a message of {header.payload_bytes:,} bytes") from None

    def _room_for(self, payload_bytes: int) -> bool:
        # One message alone may be larger than the bound, else it could never come.
        together = self._unexpected_bytes + payload_bytes
        return self._unexpected_bytes == 0 or together <= self._most_unexpected_bytes

    def _match(self, assembly: _Assembly, receive: Receive) -> None:
        """Give the message to `receive`, unless it does not fit: then its bytes are read and dropped."""
        size = len(assembly.buffer)
        if receive.nbytes not in (None, size):
            problem = f"{receive}: a message of {size} bytes came for a buffer of {receive.nbytes}"
            receive.fail(MessageSizeError(problem))
        assembly.receive = receive

    def _deliver(self, assembly: _Assembly) -> None:
        receive = assembly.receive
        if receive is None:
            return  # it waits in self._unexpected
        if not assembly.expected:
            self._unexpected_bytes -= len(assembly.buffer)
        if receive.settled:
            return
        buffer = assembly.buffer
        if receive.into is not None and not assembly.expected:
            place = receive.into()
            place[:] = buffer
            buffer = place
        now = time.monotonic()
        receive.finish(buffer=buffer, message_bytes=assembly.message_bytes, due=assembly.due, now=now)
        self.most_late_s = max(self.most_late_s, receive.late_s)
        self._resume()

    def local(self, due: float) -> float:
        """A time of the peer's clock as one of ours; NaN stays NaN."""
        return due - self.clock_offset_s

    def _resume(self) -> None:
        paused, self.paused = self.paused, []
        for connection in paused:
            connection.resume()
