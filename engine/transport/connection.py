"""One authenticated TCP connection: frames out, frames in."""

import selectors
import socket
import ssl
import struct
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import xxhash

from engine.transport.loop import Loop
from engine.transport.tls import WOULD_BLOCK
from engine.transport.wire import HEADER_BYTES, ZEROS, Header, MalformedFrame, unpack

# Most bytes that one turn of the loop reads from one connection, so that others are served too.
READ_BUDGET = 4 << 20
# Bytes read at once and then checksummed, so that they are still in the processor's cache.
PIECE_BYTES = 1 << 20
# Linux throws bytes away that nobody wants without copying them.
DISCARD = socket.MSG_TRUNC if sys.platform == "linux" else 0
# What the kernel of a slow connection may hold beyond what is under way: with more, it would take chunks long
# before it can send them. A fast one needs no limit, and is faster without.
UNSENT_BYTES = 256 * 1024


class Owner(Protocol):
    """Callbacks of a connection to the link that owns it. All run on the I/O thread."""

    def place(self, connection: "Connection", header: Header) -> memoryview | None:
        """The buffer for the chunk's real bytes (empty: drop them); None: stop until `resume`."""

    def came(self, connection: "Connection", header: Header, body: memoryview) -> None:
        """The whole frame is there and its checksum matches; `body` of a frame that is no chunk."""

    def drained(self, connection: "Connection") -> None:
        """The kernel has taken everything that was to be sent."""

    def ended(self, connection: "Connection", reason: str | None) -> None:
        """The peer said goodbye and closed (None), or the connection is broken."""

    def corrupted(self, connection: "Connection", header: Header) -> None:
        """A chunk's checksum does not match."""


class Connection:
    """A socket with its frames. `index` −1 is the urgent connection of its pair.

    number : what both sides know it by. backlog_bytes : given to it, not yet taken by the kernel.
    bytes_out : taken by the kernel, headers included. chunks_in : chunks that came whole and sound.
    """

    def __init__(
        self, loop: Loop, owner: Owner, connected: socket.socket, *, index: int, number: int
    ) -> None:
        self.index = index
        self.number = number
        self.backlog_bytes = 0
        self.bytes_out = 0
        self.chunks_in = 0
        self.heard = True  # something came since the owner last looked
        self.silent_ticks = 0
        self.goodbye = False  # the peer has said that nothing follows
        self.retiring = False  # neither side gives it chunks any more
        self.open = True
        self.paused = False
        self._loop = loop
        self._owner = owner
        self._socket = connected
        self._secure = isinstance(connected, ssl.SSLSocket)
        self._out: deque[tuple[list[memoryview], Callable[[], None] | None]] = deque()
        self._closing = False
        self._finished = False
        self._refilling = False  # it is about to be given more: what to watch for is asked once after that
        self._watched = 0
        self._head = bytearray(HEADER_BYTES)
        self._scratch = memoryview(bytearray(256 * 1024))
        self._await_header()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _stays_here(connected):
            _take_pacing_off(connected)
        self._limited = False
        self.limit_unsent(True)

    def start(self) -> None:
        """Begin to read; on the I/O thread."""
        self._watch()
        if self._secure:
            self._loop.call(self._read)  # TLS may hold bytes already that no selector tells of

    @property
    def idle(self) -> bool:
        """Nothing waits to be sent."""
        return not self._out

    def limit_unsent(self, limited: bool) -> None:
        """Whether the kernel may take little, or as much as it likes, beyond what is under way."""
        if limited != self._limited and self.open:
            self._limited = limited
            with suppress(OSError, AttributeError):
                most = UNSENT_BYTES if limited else 2**32 - 1
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, struct.pack("=I", most))

    def round_trip_s(self) -> float | None:
        """The least round trip that the kernel saw on it; None where it does not tell."""
        with suppress(OSError, AttributeError):
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
            micros = int.from_bytes(info[148:152], "little")  # struct tcp_info, tcpi_min_rtt
            return micros / 1e6 if len(info) >= 152 and 0 < micros < 2**32 - 1 else None
        return None

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
            self.backlog_bytes = 0

    def give_up(self, reason: str) -> None:
        """Let the owner know that this connection is of no use any more."""
        self._owner.ended(self, reason)

    def resume(self) -> None:
        """Ask the owner again for a place, and read on."""
        self.paused = False
        if not self.open:
            return
        self._place()
        if not self.paused:
            self._advance()
            self._watch()
            if self._secure:
                self._loop.call(self._read)

    def _watch(self) -> None:
        if not self.open or self._refilling:
            return
        wanted = 0 if self.paused else selectors.EVENT_READ
        wanted |= selectors.EVENT_WRITE if self._out else 0
        if wanted != self._watched:
            self._watched = wanted
            self._loop.watch(self._socket, wanted, self._ready)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._refilling = True
            self._write()
            if self.open and not self._out:
                self._owner.drained(self)
            self._refilling = False
            self._watch()
        if events & selectors.EVENT_READ:
            self._read()

    def _write(self) -> None:
        while self._out and self.open:
            buffers, sent = self._out[0]
            try:
                taken = self._transmit(buffers)
            except WOULD_BLOCK:
                break
            except OSError as error:
                self._broken(error)
                return
            self.backlog_bytes -= taken
            self.bytes_out += taken
            while buffers and taken >= len(buffers[0]):
                taken -= len(buffers.pop(0))
            if buffers:
                buffers[0] = buffers[0][taken:]
                if self._secure:
                    continue
                break  # the kernel takes no more
            self._out.popleft()
            if sent is not None:
                sent()
        self._finish_if_drained()
        self._watch()

    def _transmit(self, buffers: list[memoryview]) -> int:
        if not self._secure:
            return self._socket.sendmsg(buffers)
        return self._socket.send(buffers[0]) if buffers[0] else 0  # TLS gathers no buffers

    def _broken(self, error: OSError) -> None:
        self._owner.ended(self, f"connection {self.index}: {error.strerror or error}")

    def _finish_if_drained(self) -> None:
        if self._closing and self.open and not self._out and not self._finished:
            self._finished = True
            try:
                # Of the plain socket also under TLS, whose own shutdown would end reading too.
                socket.socket.shutdown(self._socket, socket.SHUT_WR)
            except OSError as error:
                self._broken(error)

    # Reading: a header, then the real bytes into their place, then what is dropped into a scratch buffer.

    def _await_header(self) -> None:
        self._header: Header | None = None
        self._target = memoryview(self._head)
        self._digest: Any = None
        self._dropped_bytes = 0
        self._drops = False

    def _read(self) -> None:
        budget = READ_BUDGET
        while budget > 0 and self.open and not self.paused:
            most = budget if self._digest is None else PIECE_BYTES
            try:
                discards = DISCARD if self._drops and not self._secure else 0
                count = self._socket.recv_into(self._target[:most], 0, discards)
            except WOULD_BLOCK:
                return
            except OSError as error:
                self._broken(error)
                return
            if count == 0:
                clean = self.goodbye and self._header is None and len(self._target) == HEADER_BYTES
                self._owner.ended(self, None if clean else f"connection {self.index} closed by the peer")
                return
            self.heard = True
            budget -= count
            if self._digest is not None and not self._drops:
                self._digest.update(self._target[:count])
            self._target = self._target[count:]
            if not self._target:
                self._advance()
            elif count < most and not self._secure:
                return  # the kernel had no more
        if self._secure and self.open and not self.paused:
            self._loop.call(self._read)

    def _advance(self) -> None:
        """The target is full (or empty from the start): go on to what comes next in the frame."""
        while not self._target and self.open and not self.paused:
            if self._header is None:
                self._begin_frame()
            elif self._dropped_bytes > 0:
                self._target, self._drops = self._scratch[: self._dropped_bytes], True
                self._dropped_bytes -= len(self._target)
            else:
                self._end_frame(self._header)

    def _begin_frame(self) -> None:
        try:
            self._header = unpack(memoryview(self._head))
        except MalformedFrame as error:
            self._owner.ended(self, f"connection {self.index}: {error}")
            return
        self._place()

    def _place(self) -> None:
        header = self._header
        assert header is not None
        try:
            place = self._owner.place(self, header) if header.is_chunk else self._scratch[: header.length]
        except MalformedFrame as error:
            self._owner.ended(self, f"connection {self.index}: {error}")
            return
        if place is None:
            self.paused = True
            self._watch()
            return
        self._target = place
        self._dropped_bytes = header.length - len(place)
        # Of a chunk that is not wanted (any more) nothing is kept, so nothing is checked.
        self._digest = xxhash.xxh3_64() if header.checked and place else None

    def _end_frame(self, header: Header) -> None:
        digest = self._digest
        self._await_header()
        if digest is not None and digest.intdigest() != header.checksum:
            self._owner.corrupted(self, header)
            return
        self.chunks_in += header.is_chunk
        body = self._scratch[:0] if header.is_chunk else self._scratch[: header.length]
        try:
            self._owner.came(self, header, body)
        except MalformedFrame as error:
            self._owner.ended(self, f"connection {self.index}: {error}")


def _stays_here(connected: socket.socket) -> bool:
    """Whether the peer is on this machine: then the kernel takes its address as the way to it begins, too."""
    host = connected.getpeername()[0]
    with socket.socket(connected.family, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 9))  # of a datagram socket: nothing is sent
        return bool(probe.getsockname()[0] == host)
    return False


def _take_pacing_off(connected: socket.socket) -> None:
    """Within a machine nothing is congested, and the timers of BBR, which many systems have, cost a third."""
    with suppress(OSError, AttributeError):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
