"""One authenticated TCP connection: frames out, frames in."""

import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

import xxhash

from engine.runtime.transport.loop import Loop
from engine.runtime.transport.wire import HEADER_BYTES, ZEROS, Header, Kind, MalformedFrame, unpack

# Most bytes that one turn of the loop reads from one connection, so that others are served too.
READ_BUDGET = 4 << 20


class Owner(Protocol):
    """What a connection tells the link that owns it. All on the I/O thread."""

    def place(self, connection: "Connection", header: Header) -> memoryview | None:
        """Where the chunk's real bytes belong; None to stop reading until `resume`."""

    def came(self, connection: "Connection", header: Header) -> None:
        """The whole frame is there and its checksum matches."""

    def drained(self, connection: "Connection") -> None:
        """The kernel has taken everything that was to be sent."""

    def ended(self, connection: "Connection", reason: str | None) -> None:
        """The peer said goodbye and closed (None), or the connection is broken."""

    def corrupted(self, connection: "Connection", header: Header) -> None:
        """A chunk's checksum does not match."""


class Connection:
    """A socket with its frames. `index` −1 is the urgent connection of its pair."""

    def __init__(self, loop: Loop, owner: Owner, connected: socket.socket, index: int) -> None:
        self.index = index
        self.backlog_bytes = 0
        self.goodbye = False  # the peer has said that nothing follows
        self.open = True
        self._loop = loop
        self._owner = owner
        self._socket = connected
        self._out: deque[tuple[list[memoryview], Callable[[], None] | None]] = deque()
        self._closing = False
        self._paused = False
        self._watched = 0
        self._head = bytearray(HEADER_BYTES)
        self._real_done = False
        self._scratch = memoryview(bytearray(256 * 1024))
        self._await_header()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        """Begin to read; on the I/O thread."""
        self._watch()

    @property
    def idle(self) -> bool:
        """Nothing waits to be sent."""
        return not self._out

    def send(
        self, buffers: list[memoryview], filler_bytes: int = 0, sent: Callable[[], None] | None = None
    ) -> None:
        """Send `buffers`, then filler; `sent` is called once the kernel has all of it."""
        while filler_bytes > 0:
            buffers.append(ZEROS[:filler_bytes])
            filler_bytes -= len(ZEROS)
        self.backlog_bytes += sum(map(len, buffers))
        self._out.append((buffers, sent))
        if len(self._out) == 1:
            self._write()

    def finish(self) -> None:
        """Close this side's direction once everything is sent."""
        self._closing = True
        self._finish_if_drained()

    def close(self) -> None:
        """Close the socket at once. Idempotent."""
        if self.open:
            self.open = False
            self._loop.watch(self._socket, 0, self._ready)
            self._socket.close()
            self._out.clear()

    def resume(self) -> None:
        """Ask the owner again for a place, and read on."""
        self._paused = False
        self._place()
        if not self._paused:
            self._advance()
            self._watch()

    def _watch(self) -> None:
        if not self.open:
            return
        wanted = 0 if self._paused else selectors.EVENT_READ
        wanted |= selectors.EVENT_WRITE if self._out else 0
        if wanted != self._watched:
            self._watched = wanted
            self._loop.watch(self._socket, wanted, self._ready)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._write()
            if self.open and not self._out:
                self._owner.drained(self)
        if events & selectors.EVENT_READ and self.open and not self._paused:
            self._read()

    def _write(self) -> None:
        while self._out:
            buffers, sent = self._out[0]
            try:
                taken = self._socket.sendmsg(buffers)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._owner.ended(self, f"connection {self.index}: {error.strerror or error}")
                return
            self.backlog_bytes -= taken
            while buffers and taken >= len(buffers[0]):
                taken -= len(buffers.pop(0))
            if buffers:
                buffers[0] = buffers[0][taken:]
                continue
            self._out.popleft()
            if sent is not None:
                sent()
        self._finish_if_drained()
        self._watch()

    def _finish_if_drained(self) -> None:
        if self._closing and self.open and not self._out:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._owner.ended(self, f"connection {self.index}: {error.strerror or error}")

    # Reading: a header, then the real bytes into their place, then filler into a scratch buffer.

    def _await_header(self) -> None:
        self._header: Header | None = None
        self._target = memoryview(self._head)

    def _read(self) -> None:
        budget = READ_BUDGET
        while budget > 0 and self.open and not self._paused:
            try:
                count = self._socket.recv_into(self._target)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._owner.ended(self, f"connection {self.index}: {error.strerror or error}")
                return
            if count == 0:
                clean = self.goodbye and self._header is None and len(self._target) == HEADER_BYTES
                self._owner.ended(self, None if clean else f"connection {self.index} closed by the peer")
                return
            budget -= count
            self._target = self._target[count:]
            if not self._target:
                self._advance()

    def _advance(self) -> None:
        """The target is full (or empty from the start): go on to what comes next in the frame."""
        while not self._target and self.open and not self._paused:
            if self._header is None:
                self._begin_frame()
            elif not self._real_done:
                self._real_done = True
                self._digest = xxhash.xxh3_64(self._real)
                self._next_filler()
            elif self._filler_bytes > 0:
                self._digest.update(self._filler)
                self._filler_bytes -= len(self._filler)
                self._next_filler()
            else:
                self._end_frame(self._header)

    def _begin_frame(self) -> None:
        try:
            self._header = unpack(memoryview(self._head))
        except MalformedFrame as error:
            self._owner.ended(self, f"connection {self.index}: {error}")
            return
        self._filler_bytes = self._header.length - self._header.real_bytes
        self._place()

    def _place(self) -> None:
        assert self._header is not None
        place = (
            memoryview(b"") if self._header.kind is not Kind.DATA else self._owner.place(self, self._header)
        )
        if place is None:
            self._paused = True
            self._watch()
            return
        self._real = self._target = place
        self._real_done = False

    def _next_filler(self) -> None:
        self._filler = self._target = self._scratch[: min(self._filler_bytes, len(self._scratch))]

    def _end_frame(self, header: Header) -> None:
        self._await_header()
        if header.kind is Kind.DATA and self._digest.intdigest() != header.checksum:
            self._owner.corrupted(self, header)
        else:
            self._owner.came(self, header)
