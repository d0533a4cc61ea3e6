"""The endpoint of a rank: its address, its connections, and the thread that moves the bytes."""

import contextlib
import functools
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from engine.control.errors import TransportError
from engine.control.handshake import Greeting, Identity
from engine.control.listening import listen
from engine.control.silence import LAG_KEPT, LAG_TIMES, MOST_LATE_S, SILENT_S
from engine.errors import InputError
from engine.transport.buffers import Buffers, OnArrival
from engine.transport.greeter import Greeter, Place
from engine.transport.handles import Receive, Send
from engine.transport.inbox import Inbox
from engine.transport.link import TICK_S, Link
from engine.transport.loop import Loop
from engine.transport.outbox import Outgoing
from engine.transport.shape import Address, Peer
from engine.transport.tls import TlsContexts, TlsFiles
from engine.transport.traffic import LinkTraffic
from engine.transport.wire import check_tag

# Messages up to this size do not wait behind bulk data.
URGENT_BYTES = 16 * 1024
Buffer = Any  # whatever exports contiguous bytes: collections.abc.Buffer, from Python 3.12 on


class Endpoint:
    """Messages between this rank and its peers; the package's docstring shows its use.

    Parameters
    ----------
    rank : of this process, in the run.
    listen_host : address of the interface to listen on.
    listen_ports : first and last of the ports to listen on, the first free one from `rank` on is taken; None:
        the kernel chooses. See `address`.
    secret : shared by the run's ranks; a peer that does not know it is refused.
    run, generation : what the ranks must agree on.
    unexpected_bytes : most bytes kept, per peer, of messages that no receive is posted for.
    silence_timeout_s : a peer that shows no sign of life for so long is lost, whether it hangs or the network
        is cut; a network that comes back earlier costs time only (the beat is half a second).
    checksums : send a checksum with every chunk, so that the peer can tell one that was changed.
    tls : certificates for mutual TLS with all peers, which must have it too; None: bytes are not encrypted.
    new_buffer : gives memory, of so many bytes, for a message that has no buffer of the caller's.
    cut : asked whether the network to a rank is cut, as in a drill: nothing goes there or comes while it is.
    """

    def __init__(
        self,
        *,
        rank: int,
        listen_host: str,
        secret: bytes | str,
        run: str,
        generation: int = 0,
        listen_ports: tuple[int, int] | None = None,
        unexpected_bytes: int = 256 << 20,
        silence_timeout_s: float = SILENT_S,
        checksums: bool = True,
        tls: TlsFiles | None = None,
        new_buffer: Callable[[int], memoryview] | None = None,
        cut: Callable[[int], bool] = lambda _: False,
    ) -> None:
        key = secret.encode() if isinstance(secret, str) else secret
        if not key:
            raise InputError("secret", "", "must not be empty")
        self.rank = rank
        self.new_buffer = new_buffer or Buffers().take
        self._me = Identity(rank=rank, run=run, generation=generation, secret=key)
        self._unexpected_bytes = unexpected_bytes
        self._silent_ticks = max(2, round(silence_timeout_s / TICK_S))
        self._checksums, self._cut = checksums, cut
        contexts = TlsContexts.of(tls)
        self._links: dict[int, Link] = {}
        self._early: dict[int, list[tuple[socket.socket, Greeting]]] = {}
        self._closed = False
        self._closing = threading.Lock()
        self._listener = listen(listen_host, listen_ports, rank)
        self._listener.setblocking(False)
        self.address: Address = self._listener.getsockname()[:2]
        self._loop = Loop(f"transport-{rank}", self._crashed)
        self._greeter = Greeter(self._loop, self._me, self._listener, contexts, self._greeted)
        self._next_tick, self._lag_s = time.monotonic(), 0.0
        self._loop.call(self._greeter.open)
        self._loop.call(self._tick)

    def connect(self, peers: Iterable[Peer], timeout_s: float = 30.0) -> None:
        """Connect to `peers` and return once every connection stands; may be called again with others.

        The higher rank of a pair dials, so both must call this.

        Raises
        ------
        AuthenticationError
            A peer has another secret, run or generation.
        TransportError
            A peer cannot be reached, or did not connect, within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        links = [self._new_link(peer) for peer in peers]
        for link in links:
            if not link.complete.wait(max(0.0, deadline - time.monotonic())):
                error = TransportError(self._missing(link, timeout_s))
                self._loop.call(functools.partial(link.fail, error))
                raise error
            if link.lost is not None:
                raise link.lost

    def send(
        self,
        peer: int,
        tag: Sequence[int],
        buffer: Buffer,
        *,
        padded_to: int | None = None,
        channel: int = 0,
        not_before: float | None = None,
        due: float | None = None,
        urgent: bool | None = None,
    ) -> Send:
        """Send `buffer` as message `tag`; returns at once. Leave the buffer alone until `wait` returned.

        Parameters
        ----------
        padded_to : bytes on the wire; what `buffer` lacks is sent as filler that the receiver drops.
        channel : keeps the tags of different users of one pair apart (shared links have their own).
        not_before : earliest departure, time.monotonic(); by default now.
        due : when the peer is to have it, time.monotonic() here; for what an emulated link carries before or
            after. It is held until then; where it comes later over a real link, this is still its `due`.
        urgent : do not wait behind bulk data; by default for unpadded messages of at most 16 KiB.
        """
        data = memoryview(buffer).cast("B")
        size = len(data) if padded_to is None else padded_to
        if size < len(data):
            raise InputError("padded_to", padded_to, f"must be at least the {len(data)} bytes of the buffer")
        if urgent is None:
            urgent = padded_to is None and size <= URGENT_BYTES
        send = Send(peer, check_tag(tag), size)
        ready = time.monotonic() if not_before is None else not_before
        message = Outgoing(
            send=send,
            channel=channel,
            data=data,
            ready=ready,
            urgent=urgent,
            due=math.nan if due is None else due,
        )
        link = self._link(peer)
        self._loop.call(lambda: link.send(message))
        return send

    def post_receive(
        self, peer: int, tag: Sequence[int], into: Buffer | OnArrival | int | None = None, *, channel: int = 0
    ) -> Receive:
        """Wait for message `tag` from `peer`; best posted before it is sent.

        `into`: a writable buffer of the message's size (filler not counted), or that size, or None for
        whatever comes; without a buffer the message has memory of its own from when it begins to come.
        """
        if into is None or isinstance(into, int):
            receive = Receive(peer, check_tag(tag), into)
        else:
            place = into if isinstance(into, OnArrival) else posted(into)
            receive = Receive(peer, check_tag(tag), place.nbytes, place.make)
        link = self._link(peer)
        self._loop.call(lambda: link.post(channel, receive))
        return receive

    def traffic(self) -> list[LinkTraffic]:
        """Traffic of each node pair so far."""
        return [link.traffic() for link in self._links.values()]

    def cut(self, peer: int) -> None:
        """Break every connection to `peer`, as a WAN does that goes away for a moment; for drills."""
        self._loop.call(self._link(peer).cut)

    def slow(self, peer: int, factor: float, *, delay: float = 1.0) -> None:
        """Make an emulated link to `peer` slower by `factor`, its delay `delay` times as long; for drills.

        It changes what this rank sends.
        """
        link = self._link(peer)
        self._loop.call(lambda: link.slow(factor, delay))

    def one_way_s(self, peer: int) -> float | None:
        """Latency to `peer` in seconds, by the latest pings; None before the first answer."""
        return self._link(peer).one_way_s

    def clock_offset_s(self, peer: int) -> float:
        """The clock (time.monotonic()) of `peer`'s machine less this machine's; 0 on the same machine."""
        return self._link(peer).inbox.clock_offset_s

    def call(self, callback: Callable[[], None]) -> None:
        """Run `callback` soon on the I/O thread; it must not block."""
        self._loop.call(callback)

    def close(self, drain_s: float = 5.0) -> None:
        """Send what has been given to `send`, say goodbye, close. Idempotent; leaves no thread, no socket.

        Waits at most `drain_s` seconds for peers that do not take what is sent to them.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            deadline = time.monotonic() + drain_s
            self._loop.call(self._leave)
            for link in self._links.values():
                link.over.wait(max(0.0, deadline - time.monotonic()))
            self._loop.call(self._abandon)
            self._loop.stop()

    def _link(self, peer: int) -> Link:
        if self._closed:
            raise TransportError(f"the endpoint of rank {self.rank} is closed")
        if peer not in self._links:
            raise InputError("peer", peer, f"must be a connected rank: {sorted(self._links)}")
        return self._links[peer]

    def _new_link(self, peer: Peer) -> Link:
        if peer.rank == self.rank or peer.rank in self._links:
            raise InputError("peers", peer.rank, "must be other ranks, each once")
        link = Link(
            self._loop,
            self._greeter,
            self.rank,
            peer,
            place=_look_up(peer),
            inbox=Inbox(self._unexpected_bytes, self.new_buffer),
            silent_ticks=self._silent_ticks,
            checksums=self._checksums,
            is_cut=functools.partial(self._cut, peer.rank),
        )
        self._links[peer.rank] = link
        self._loop.call(lambda: self._adopt(link))
        return link

    def _missing(self, link: Link, timeout_s: float) -> str:
        peer = link.peer
        if self.rank > peer.rank:
            where = f"{peer.address[0]}:{peer.address[1]} over {peer.link}"
            return f"rank {self.rank} cannot reach rank {peer.rank} at {where}: {link.trouble or 'no answer'}"
        who = f"rank {self.rank}: rank {peer.rank} did not connect over {peer.link} within {timeout_s:g} s"
        return f"{who} (last refused: {self._greeter.refused})" if self._greeter.refused else who

    # On the I/O thread.

    def _adopt(self, link: Link) -> None:
        link.mend()
        for connected, greeting in self._early.pop(link.peer.rank, []):
            link.attach(connected, greeting)

    def _greeted(self, connected: socket.socket, greeting: Greeting) -> None:
        if link := self._links.get(greeting.rank):
            link.attach(connected, greeting)
        else:
            self._early.setdefault(greeting.rank, []).append((connected, greeting))

    def _tick(self) -> None:
        now = time.monotonic()
        # A machine that wakes this thread late may well do so to the peer's: it may be silent for longer.
        self._lag_s = max(now - self._next_tick, LAG_KEPT * self._lag_s)
        self._greeter.tick()
        for link in list(self._links.values()):
            link.tick(late_ticks=round(min(LAG_TIMES * self._lag_s, MOST_LATE_S) / TICK_S))
        self._next_tick = time.monotonic() + TICK_S
        self._loop.at(self._next_tick, self._tick)

    def _leave(self) -> None:
        self._greeter.shut()
        for link in self._links.values():
            link.leave()

    def _abandon(self) -> None:
        for link in self._links.values():
            link.fail(TransportError(f"the endpoint of rank {self.rank} is closed"))
        self._greeter.close()
        for early in self._early.values():
            for connected, _ in early:
                connected.close()

    def _crashed(self, error: BaseException) -> None:
        for link in self._links.values():
            with contextlib.suppress(Exception):
                link.fail(TransportError(f"the I/O thread of rank {self.rank} failed: {error!r}"))
        self._closed = True
        self._abandon()


def posted(buffer: Buffer) -> OnArrival:
    """The caller's own buffer for a message. Raises InputError where it is not writable."""
    place = memoryview(buffer).cast("B")
    if place.readonly:
        raise InputError("into", type(buffer).__name__, "must be writable")
    return OnArrival(len(place), lambda: place)


def _look_up(peer: Peer) -> Place:
    try:
        return Place.of(*peer.address)
    except OSError as error:
        where = f"{peer.address[0]}:{peer.address[1]}"
        raise TransportError(
            f"rank {peer.rank} at {where} over {peer.link}: {error.strerror or error}"
        ) from None
