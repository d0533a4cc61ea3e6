"""Temporal bandwidth sharing: a cell's n pipelines send one message at a time over a hop's n node pairs.

Atlas §4.3 and §4.4. The sender cuts its message in n parts, keeps its own and scatters the others to its
cell peers in the same DC; each forwards its part over its own WAN pair to its counterpart, and these gather
the parts at the destination. The order of messages is static and known to all, so nobody asks for a turn:
each rank sends the parts of one message after those of the one before. All of that runs on the I/O thread.
"""

import functools
import math
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from engine.control.errors import TransportError
from engine.errors import InputError
from engine.transport.buffers import OnArrival
from engine.transport.endpoint import Buffer, Endpoint, posted
from engine.transport.handles import Handle, Receive, Send
from engine.transport.wire import Tag, check_tag

H = TypeVar("H", bound=Handle)
Order = Sequence[tuple[int, Sequence[int]]]
_REPORT = struct.Struct("<dd")
_MOST_LINKS = 1 << 24


class _Leg(IntEnum):
    """What a message of a shared link is for; each has a channel of its own."""

    SCATTER = 1
    WAN = 2
    GATHER = 3
    REPORT = 4


class SharedSend(Handle):
    """A message on all pairs. `start`, `end`: first and last byte of all its parts, time.monotonic()."""

    def __init__(self, tag: Tag, message_bytes: int, parts: int) -> None:
        super().__init__()
        self.tag = tag
        self.message_bytes = message_bytes
        self.start = math.inf
        self.end = -math.inf
        self._missing = parts

    def part_left(self, start: float, end: float) -> None:
        """One part has left its rank."""
        self.start, self.end = min(self.start, start), max(self.end, end)
        self._missing -= 1
        if self._missing == 0:
            self.due = self.end
            self._settle()

    def __repr__(self) -> str:
        return f"shared send of {self.message_bytes} bytes, tag {self.tag}"


class SharedReceive(Handle):
    """A message over all pairs. `buffer`: its bytes; `arrived`: all parts are there, time.monotonic()."""

    def __init__(self, tag: Tag, into: OnArrival, parts: int) -> None:
        super().__init__()
        self.tag = tag
        self.nbytes = into.nbytes
        self._make = into.make
        self.arrived = -math.inf
        self._missing = parts

    @functools.cached_property
    def buffer(self) -> memoryview:
        """The buffer in which its parts are assembled; exists once the first part begins to arrive."""
        return self._make()

    def part_arrived(self, part: Receive) -> None:
        """One part has arrived."""
        self.due = max(self.due, part.due)
        self.arrived = max(self.arrived, part.arrived)
        self._missing -= 1
        if self._missing == 0:
            self._settle()

    def __repr__(self) -> str:
        return f"shared receive, tag {self.tag}"


@dataclass(slots=True, kw_only=True, eq=False)
class _Turn:
    """One message's turn on this rank's own pair; `data` is None until its part is here."""

    name: Tag  # iteration, position in the order
    data: memoryview | None = None
    part_bytes: int = 0
    ready: float = 0.0
    left: Callable[[Send], None] | None = None


class _SharedEnd(ABC):
    """What both ends of a shared link have in common."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        link: int,
        pipeline: int,
        near: Sequence[int],
        far: Sequence[int],
        order: Order,
    ) -> None:
        if not 0 <= link < _MOST_LINKS:
            raise InputError("link", link, f"must be 0 to {_MOST_LINKS - 1}")
        if len(near) != len(far):
            raise InputError("far", tuple(far), f"must name one rank per pipeline, as near does: {len(near)}")
        if not (0 <= pipeline < len(near) and near[pipeline] == endpoint.rank):
            allowed = f"must be the position of rank {endpoint.rank} in {tuple(near)}"
            raise InputError("pipeline", pipeline, allowed)
        self._endpoint = endpoint
        self._link = link
        self._me = pipeline
        self._near = tuple(near)
        self._far = far[pipeline]
        self._order = [(owner, check_tag(tag)) for owner, tag in order]
        self._positions = {tag: at for at, (owner, tag) in enumerate(self._order) if owner == pipeline}
        if len(set(self._order)) != len(self._order) or any(not 0 <= p < len(near) for p, _ in self._order):
            allowed = f"pipelines 0 to {len(near) - 1}, each with each of its tags once"
            raise InputError("order", self._order, allowed)
        self._open: dict[Tag, int] = {}  # own messages of this iteration that were not asked for yet
        self._iteration = -1
        self._pending: set[Handle] = set()
        self._error: TransportError | None = None

    def begin_iteration(self, iteration: int) -> None:
        """Arm the relay for one pass through the order; passes queue up behind each other."""
        self._iteration = iteration
        self._open = dict(self._positions)
        self._on_loop(lambda: self._arm(iteration))

    @abstractmethod
    def _arm(self, iteration: int) -> None:
        """On the I/O thread: wait for the parts of others that go through this rank."""

    def _name(self, tag: Sequence[int]) -> Tag:
        """Name of one of this pipeline's messages of this iteration; each can be asked for once."""
        position = self._open.pop(check_tag(tag), None)
        if position is None:
            known = sorted(self._open)
            raise InputError("tag", tuple(tag), f"must be open in iteration {self._iteration}: {known}")
        return (self._iteration, position)

    def _channel(self, leg: _Leg) -> int:
        return (self._link + 1) * 8 + leg

    def _on_loop(self, action: Callable[[], None]) -> None:
        """Run on the I/O thread; what goes wrong there fails every handle of this link."""
        self._endpoint.call(lambda: self._guard(action))

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except TransportError as error:
            self._fail(error)

    def _track(self, handle: Handle) -> bool:
        """Have a handle fail with this link; False where the link has failed already."""
        if self._error is not None:
            handle.fail(self._error)
            return False
        self._pending.add(handle)
        handle.on_settled(self._pending.discard)
        return True

    def _fail(self, error: TransportError) -> None:
        self._error = self._error or error
        for handle in list(self._pending):
            handle.fail(self._error)

    def _then(self, handle: H, action: Callable[[H], None]) -> None:
        """On the I/O thread, run `action` with a handle once it is settled; its error is this link's."""

        def settled(handle: H) -> None:
            if handle.error is not None:
                raise handle.error
            action(handle)

        handle.on_settled(lambda handle: self._guard(lambda: settled(handle)))

    def _part(self, size: int, index: int) -> slice:
        parts = len(self._near)
        return slice(size * index // parts, size * (index + 1) // parts)

    def _send(
        self,
        leg: _Leg,
        peer: int,
        name: Tag,
        data: memoryview,
        *,
        not_before: float | None = None,
        due: float | None = None,
        padded_to: int | None = None,
    ) -> Send:
        return self._endpoint.send(
            peer,
            name,
            data,
            padded_to=padded_to,
            channel=self._channel(leg),
            not_before=not_before,
            due=due,
            urgent=leg is _Leg.REPORT,
        )


class SharedSender(_SharedEnd):
    """The sending end of a shared link, on each of its n ranks: sends own messages, relays the others'.

    Parameters
    ----------
    endpoint : connected to the other ranks of `near` and to far[pipeline].
    link : number of this directed hop of this cell.
    pipeline : this rank's index in `near`.
    near, far : the ranks on this side and on the other side, by pipeline.
    order : (pipeline, tag) of each transfer of an iteration, in sending order; the same on all ranks.
    padded_to : least bytes of a message over the WAN; what it lacks is filler, of which the LAN sees nothing.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        link: int,
        pipeline: int,
        near: Sequence[int],
        far: Sequence[int],
        order: Order,
        padded_to: int = 0,
    ) -> None:
        super().__init__(endpoint, link=link, pipeline=pipeline, near=near, far=far, order=order)
        self._padded_to = padded_to
        self._turns: deque[_Turn] = deque()
        self._own: dict[Tag, _Turn] = {}
        self._latest = -math.inf

    def send(self, tag: Sequence[int], buffer: Buffer, *, not_before: float | None = None) -> SharedSend:
        """Send one of this pipeline's messages of this iteration, when its turn in the order comes.

        not_before : earliest departure, time.monotonic(); by default now.
        """
        data = memoryview(buffer).cast("B")
        name = self._name(tag)
        shared = SharedSend(check_tag(tag), max(len(data), self._padded_to), len(self._near))
        ready = time.monotonic() if not_before is None else not_before
        self._on_loop(lambda: self._submit(name, shared, data, ready))
        return shared

    def _arm(self, iteration: int) -> None:
        for position, (owner, _) in enumerate(self._order):
            turn = _Turn(name=(iteration, position))
            self._turns.append(turn)
            if owner == self._me:
                self._own[turn.name] = turn
                continue
            channel = self._channel(_Leg.SCATTER)
            receive = self._endpoint.post_receive(self._near[owner], turn.name, channel=channel)
            self._then(receive, functools.partial(self._relay, turn, self._near[owner]))

    def _relay(self, turn: _Turn, origin: int, receive: Receive) -> None:
        share = self._part(self._padded_to, self._me)
        turn.part_bytes = max(receive.message_bytes, share.stop - share.start)
        turn.ready = receive.due
        turn.left = lambda sent: self._report(turn.name, origin, sent)
        turn.data = receive.buffer
        self._pump()

    def _submit(self, name: Tag, shared: SharedSend, data: memoryview, ready: float) -> None:
        if not self._track(shared):
            return
        for index, peer in enumerate(self._near):
            part = data[self._part(len(data), index)]
            if index == self._me:
                share = self._part(shared.message_bytes, index)
                turn = self._own.pop(name)
                turn.part_bytes, turn.ready = max(len(part), share.stop - share.start), ready
                turn.left = lambda sent: shared.part_left(sent.start, sent.end)
                turn.data = part
            else:
                self._await_report(name, peer, shared)
                self._send(_Leg.SCATTER, peer, name, part, not_before=ready, due=ready)
        self._pump()

    def _pump(self) -> None:
        """Forward every part whose turn it is and that is here."""
        while self._turns and self._turns[0].data is not None:
            turn = self._turns.popleft()
            data, turn.data = turn.data, None  # its memory is free as soon as the part has left
            assert data is not None
            assert turn.left is not None
            # Departures must not overtake each other, though a later part may have been here earlier.
            self._latest = max(self._latest, turn.ready)
            sent = self._send(
                _Leg.WAN, self._far, turn.name, data, padded_to=turn.part_bytes, not_before=self._latest
            )
            self._then(sent, turn.left)

    def _report(self, name: Tag, origin: int, sent: Send) -> None:
        times = memoryview(_REPORT.pack(sent.start, sent.end))
        self._send(_Leg.REPORT, origin, name, times)

    def _await_report(self, name: Tag, peer: int, shared: SharedSend) -> None:
        def reported(receive: Receive) -> None:
            offset = self._endpoint.clock_offset_s(peer)
            start, end = _REPORT.unpack(receive.buffer)
            shared.part_left(start - offset, end - offset)

        receive = self._endpoint.post_receive(peer, name, _REPORT.size, channel=self._channel(_Leg.REPORT))
        self._then(receive, reported)


class SharedReceiver(_SharedEnd):
    """The receiving end of a shared link, on each of its n ranks: gathers own parts, relays the others'.

    Parameters as for :class:`SharedSender`; `near` are the ranks on this, the receiving side.
    """

    def post_receive(self, tag: Sequence[int], into: Buffer | int) -> SharedReceive:
        """Wait for one of this pipeline's messages of this iteration.

        `into`: a writable buffer of the message's size (filler not counted), or that size.
        """
        if isinstance(into, int):
            place = OnArrival(into, functools.partial(self._endpoint.new_buffer, into))
        else:
            place = posted(into)
        name = self._name(tag)
        shared = SharedReceive(check_tag(tag), place, len(self._near))
        self._on_loop(lambda: self._post(name, shared))
        return shared

    def _post(self, name: Tag, shared: SharedReceive) -> None:
        if not self._track(shared):
            return
        for index, peer in enumerate(self._near):
            part = self._part(shared.nbytes, index)
            place = OnArrival(part.stop - part.start, functools.partial(_at, shared, part))
            source, leg = (self._far, _Leg.WAN) if index == self._me else (peer, _Leg.GATHER)
            receive = self._endpoint.post_receive(source, name, place, channel=self._channel(leg))
            self._then(receive, shared.part_arrived)

    def _arm(self, iteration: int) -> None:
        for position, (owner, _) in enumerate(self._order):
            if owner != self._me:
                name = (iteration, position)
                receive = self._endpoint.post_receive(self._far, name, channel=self._channel(_Leg.WAN))
                self._then(receive, functools.partial(self._forward, name, self._near[owner]))

    def _forward(self, name: Tag, destination: int, receive: Receive) -> None:
        # On an emulated link the part is here before it is due, and goes on with what is left of its way.
        # Where this thread woke too late for that, an emulated LAN is not to count it.
        leaves = min(time.monotonic(), receive.due)
        self._send(_Leg.GATHER, destination, name, receive.buffer, not_before=leaves, due=receive.due)


def _at(shared: SharedReceive, part: slice) -> memoryview:
    return shared.buffer[part]
