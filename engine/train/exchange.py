"""Tensors between adjacent stages: one class per kind of hop, all with the same two methods.

`post` a receive before the sender sends, `wait` for it when the op needs it; `send` never blocks, and what it
returns knows afterwards when the message left and arrived. Times are seconds of time.monotonic().

CrossPipe, "Implementation": receives are posted ahead of sends, in the schedule's order.
"""

import contextlib
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.control.errors import PeerLost
from engine.control.silence import WAIT_S
from engine.nn.device import Moment
from engine.transport import Endpoint, Receive, SharedReceive, SharedReceiver, SharedSender, TransportError

MESSAGE, STARTED, TOTALS, VALIDATION, SUM, STATE = range(6)  # first int of a tag

Key = tuple[int, int]  # of a message on its link: chunk of the op that made it, microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """When a message began and ceased to occupy its link, and when it arrived."""

    start: float
    end: float
    arrives: float


class Sent(Protocol):
    """A message under way."""

    def wait(self) -> Passage:
        """Block until it has left; the tensor may be changed from then on."""


@dataclass(frozen=True, slots=True)
class Message:
    """A received message: contiguous, of any type; in host memory, or on the device for the ops that follow.

    arrived : the time from which it may be read.
    """

    tensor: Tensor
    arrived: float


class _End:
    """An end of one direction of one hop."""

    def begin(self, iteration: int) -> None:
        """An iteration begins, for which most kinds of hops have nothing to prepare."""


class Incoming(_End, ABC):
    """One direction of one hop, at its receiving end; each key comes once an iteration."""

    @abstractmethod
    def post(self, key: Key, nbytes: int) -> None: ...
    @abstractmethod
    def wait(self, key: Key) -> Message: ...


class Outgoing(_End, ABC):
    """One direction of one hop, at its sending end; each key goes once an iteration."""

    @abstractmethod
    def send(self, key: Key, tensor: Tensor, ready: Moment) -> Sent:
        """Send a tensor that is there since `ready`."""


@dataclass(frozen=True, slots=True)
class _GlooSent:
    work: Any
    tensor: Tensor  # kept alive until it has left
    start: float
    peer: int

    def wait(self) -> Passage:
        finish(self.work, f"rank {self.peer}")
        end = time.monotonic()
        return Passage(start=self.start, end=end, arrives=end)


class LanIncoming(Incoming):
    """Receives from a rank in the same data centre, by torch.distributed (gloo).

    tag : of a key, the same number on both sides and on no other link between the two ranks.
    new_buffer : gives the memory, of so many bytes, for a message.
    """

    def __init__(
        self,
        group: Any,
        member: int,
        peer: int,
        tag: Callable[[Key], int],
        new_buffer: Callable[[int], Tensor],
    ) -> None:
        self._group, self._member, self._peer, self._tag = group, member, peer, tag
        self._new_buffer = new_buffer
        self._posted: dict[Key, tuple[Any, Tensor]] = {}

    def post(self, key: Key, nbytes: int) -> None:
        buffer = self._new_buffer(nbytes)
        self._posted[key] = self._group.recv([buffer], self._member, self._tag(key)), buffer

    def wait(self, key: Key) -> Message:
        work, buffer = self._posted.pop(key)
        finish(work, f"rank {self._peer}")
        return Message(buffer, time.monotonic())  # gloo does not say since when


class LanOutgoing(Outgoing):
    """Sends to a rank in the same data centre, by torch.distributed (gloo)."""

    def __init__(self, group: Any, member: int, peer: int, tag: Callable[[Key], int]) -> None:
        self._group, self._member, self._peer, self._tag = group, member, peer, tag

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> Sent:
        start = time.monotonic()
        work = self._group.send([tensor], self._member, self._tag(key))
        return _GlooSent(work, tensor, start, self._peer)


@dataclass(frozen=True, slots=True)
class _TransportSent:
    sent: Any
    delay_s: float

    def wait(self) -> Passage:
        lost_is_peer_lost(self.sent.wait)
        return Passage(start=self.sent.start, end=self.sent.end, arrives=self.sent.end + self.delay_s)


class WanIncoming(Incoming):
    """Receives over the WAN where each pipeline has its own link (spatial sharing); `link` is its number."""

    def __init__(self, endpoint: Endpoint, peer: int, link: int) -> None:
        self._endpoint, self._peer, self._link = endpoint, peer, link
        self._posted: dict[Key, Any] = {}

    def post(self, key: Key, nbytes: int) -> None:
        tag = (MESSAGE, self._link, *key)
        self._posted[key] = self._endpoint.post_receive(self._peer, tag, nbytes)

    def wait(self, key: Key) -> Message:
        return _received(self._posted.pop(key))


class WanOutgoing(Outgoing):
    """Sends over the WAN where each pipeline has its own link (spatial sharing); `link` is its number.

    delay_s : gives the latency of the link at present, in seconds.
    """

    def __init__(
        self, endpoint: Endpoint, peer: int, link: int, *, padded_to: int, delay_s: Callable[[], float]
    ) -> None:
        self._endpoint, self._peer, self._link = endpoint, peer, link
        self._padded_to, self._delay_s = padded_to, delay_s

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> Sent:
        tag, to = (MESSAGE, self._link, *key), self._padded_to
        sent = self._endpoint.send(self._peer, tag, raw(tensor), padded_to=to, not_before=ready)
        return _TransportSent(sent, self._delay_s())


class SharedIncoming(Incoming):
    """Receives over a hop whose pipelines share their links in time (temporal sharing, Atlas §4.3)."""

    def __init__(self, receiver: SharedReceiver) -> None:
        self._receiver = receiver
        self._posted: dict[Key, Any] = {}

    def begin(self, iteration: int) -> None:
        self._receiver.begin_iteration(iteration)

    def post(self, key: Key, nbytes: int) -> None:
        self._posted[key] = self._receiver.post_receive(key, nbytes)

    def wait(self, key: Key) -> Message:
        return _received(self._posted.pop(key))


class SharedOutgoing(Outgoing):
    """Sends over a hop whose pipelines share their links in time (temporal sharing, Atlas §4.3)."""

    def __init__(self, sender: SharedSender, *, delay_s: Callable[[], float]) -> None:
        self._sender, self._delay_s = sender, delay_s

    def begin(self, iteration: int) -> None:
        self._sender.begin_iteration(iteration)

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> Sent:
        sent = self._sender.send(key, raw(tensor), not_before=ready)
        return _TransportSent(sent, self._delay_s())


class Silent(Incoming, Outgoing):
    """An end of a hop at a rank that another one of its stage speaks for (tensor parallelism)."""

    def __init__(self) -> None:
        self._posted: dict[Key, int] = {}

    def post(self, key: Key, nbytes: int) -> None:
        self._posted[key] = nbytes

    def wait(self, key: Key) -> Message:
        return Message(torch.empty(self._posted.pop(key), dtype=torch.uint8, device="meta"), -math.inf)

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> Sent:
        raise AssertionError("the other rank sends")


class _Held:
    """A message whose turn has not come."""

    def __init__(self) -> None:
        self._left = threading.Event()
        self._sent: Sent | None = None

    def became(self, sent: Sent) -> None:
        """It is under way now."""
        self._sent = sent
        self._left.set()

    def wait(self) -> Passage:
        self._left.wait()
        assert self._sent is not None
        return self._sent.wait()


class InTurn(Outgoing):
    """Sends in the order that the schedule lists for a link, holding back what is made before its turn."""

    def __init__(self, outgoing: Outgoing, order: Sequence[Key]) -> None:
        self._outgoing, self._order = outgoing, tuple(order)
        self._next = 0
        self._ready: dict[Key, tuple[Tensor, Moment, _Held]] = {}

    def begin(self, iteration: int) -> None:
        self._next = 0
        self._outgoing.begin(iteration)

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> Sent:
        message = _Held()
        self._ready[key] = (tensor, ready, message)
        while self._next < len(self._order) and self._order[self._next] in self._ready:
            turn = self._order[self._next]
            waiting, since, its = self._ready.pop(turn)
            its.became(self._outgoing.send(turn, waiting, since))
            self._next += 1
        return message


@dataclass(frozen=True, slots=True)
class Summing:
    """An operation on a tensor that a thread carries out; it is waited for as for one of gloo."""

    future: "Future[None]"

    def wait(self) -> None:
        """Return once the tensor holds the sum. Raises what the operation raised."""
        self.future.result()


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, without a copy."""
    return memoryview(tensor.detach().view(torch.uint8).flatten().numpy())  # type: ignore[arg-type]


def _received(receive: Receive | SharedReceive) -> Message:
    lost_is_peer_lost(lambda: receive.wait(timeout_s=WAIT_S))
    return Message(torch.frombuffer(receive.buffer, dtype=torch.uint8), receive.arrived)


def finish(work: Any, who: str) -> None:
    """Wait for a gloo operation. Raises PeerLost where the other side is gone."""
    with peer_errors(who):
        work.wait()


@contextlib.contextmanager
def peer_errors(who: str) -> Iterator[None]:
    """Turn the errors of gloo and NCCL into PeerLost."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"lost {who}: {str(error).splitlines()[0]}") from None


def lost_is_peer_lost(wait: Any) -> None:
    """Run `wait`, turning the transport's errors into PeerLost."""
    try:
        wait()
    except (TransportError, TimeoutError) as error:
        raise PeerLost(str(error)) from None
