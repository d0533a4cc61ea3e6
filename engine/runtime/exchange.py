"""Tensors between neighbouring stages: one class per kind of hop, all with the same two verbs.

`post` a receive before the sender sends, `wait` for it when the op needs it; `send` never blocks, and what it
returns knows afterwards when the message left and arrived. Times are seconds of time.monotonic().
"""

import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.runtime.transport import Endpoint, SharedReceiver, SharedSender, TransportError

WAIT_S = 1800.0  # a peer that is alive but silent for this long counts as lost
ACTIVATION, GRADIENT, STARTED, TOTALS = range(4)  # first int of a tag


class PeerLost(RuntimeError):
    """The rank at the other end is gone: this rank fails, but it is not the cause."""


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


class Incoming(Protocol):
    """Messages of one payload from one neighbour."""

    def begin(self, iteration: int) -> None: ...
    def post(self, microbatch: int, into: Tensor) -> None: ...
    def wait(self, microbatch: int) -> None: ...


class Outgoing(Protocol):
    """Messages of one payload to one neighbour."""

    def begin(self, iteration: int) -> None: ...
    def send(self, microbatch: int, tensor: Tensor) -> Sent: ...


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


class LanIncoming:
    """Receives from a rank in the same data centre, by torch.distributed (gloo)."""

    def __init__(self, group: Any, member: int, peer: int, tag: int) -> None:
        self._group, self._member, self._peer, self._tag = group, member, peer, tag
        self._posted: dict[int, Any] = {}

    def begin(self, iteration: int) -> None:
        """Nothing to prepare."""

    def post(self, microbatch: int, into: Tensor) -> None:
        self._posted[microbatch] = self._group.recv([into], self._member, _gloo_tag(self._tag, microbatch))

    def wait(self, microbatch: int) -> None:
        finish(self._posted.pop(microbatch), f"rank {self._peer}")


class LanOutgoing:
    """Sends to a rank in the same data centre, by torch.distributed (gloo)."""

    def __init__(self, group: Any, member: int, peer: int, tag: int) -> None:
        self._group, self._member, self._peer, self._tag = group, member, peer, tag

    def begin(self, iteration: int) -> None:
        """Nothing to prepare."""

    def send(self, microbatch: int, tensor: Tensor) -> Sent:
        start = time.monotonic()
        work = self._group.send([tensor], self._member, _gloo_tag(self._tag, microbatch))
        return _GlooSent(work, tensor, start, self._peer)


@dataclass(frozen=True, slots=True)
class _TransportSent:
    sent: Any
    delay_s: float

    def wait(self) -> Passage:
        lost_is_peer_lost(self.sent.wait)
        return Passage(start=self.sent.start, end=self.sent.end, arrives=self.sent.end + self.delay_s)


class WanIncoming:
    """Receives over the WAN where every pipeline has its own link (spatial sharing)."""

    def __init__(self, endpoint: Endpoint, peer: int, tag: int) -> None:
        self._endpoint, self._peer, self._tag = endpoint, peer, tag
        self._posted: dict[int, Any] = {}

    def begin(self, iteration: int) -> None:
        """Nothing to prepare."""

    def post(self, microbatch: int, into: Tensor) -> None:
        self._posted[microbatch] = self._endpoint.post_receive(
            self._peer, (self._tag, microbatch), into=raw(into)
        )

    def wait(self, microbatch: int) -> None:
        receive = self._posted.pop(microbatch)
        lost_is_peer_lost(lambda: receive.wait(timeout_s=WAIT_S))


class WanOutgoing:
    """Sends over the WAN where every pipeline has its own link (spatial sharing)."""

    def __init__(self, endpoint: Endpoint, peer: int, tag: int, *, padded_to: int, delay_s: float) -> None:
        self._endpoint, self._peer, self._tag = endpoint, peer, tag
        self._padded_to, self._delay_s = padded_to, delay_s

    def begin(self, iteration: int) -> None:
        """Nothing to prepare."""

    def send(self, microbatch: int, tensor: Tensor) -> Sent:
        tag = (self._tag, microbatch)
        sent = self._endpoint.send(self._peer, tag, raw(tensor), padded_to=self._padded_to)
        return _TransportSent(sent, self._delay_s)


class SharedIncoming:
    """Receives over a hop whose pipelines share their links in time (temporal sharing, Atlas §4.3)."""

    def __init__(self, receiver: SharedReceiver) -> None:
        self._receiver = receiver
        self._posted: dict[int, Any] = {}

    def begin(self, iteration: int) -> None:
        self._receiver.begin_iteration(iteration)

    def post(self, microbatch: int, into: Tensor) -> None:
        self._posted[microbatch] = self._receiver.post_receive((microbatch,), raw(into))

    def wait(self, microbatch: int) -> None:
        receive = self._posted.pop(microbatch)
        lost_is_peer_lost(lambda: receive.wait(timeout_s=WAIT_S))


class SharedOutgoing:
    """Sends over a hop whose pipelines share their links in time (temporal sharing, Atlas §4.3)."""

    def __init__(self, sender: SharedSender, *, padded_to: int, delay_s: float) -> None:
        self._sender, self._padded_to, self._delay_s = sender, padded_to, delay_s

    def begin(self, iteration: int) -> None:
        self._sender.begin_iteration(iteration)

    def send(self, microbatch: int, tensor: Tensor) -> Sent:
        sent = self._sender.send((microbatch,), raw(tensor), padded_to=self._padded_to)
        return _TransportSent(sent, self._delay_s)


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, without a copy."""
    return memoryview(tensor.detach().view(torch.uint8).flatten().numpy())  # type: ignore[arg-type]


def finish(work: Any, who: str) -> None:
    """Wait for a gloo operation. Raises PeerLost where the other side is gone."""
    try:
        work.wait()
    except RuntimeError as error:
        raise PeerLost(f"lost {who}: {str(error).splitlines()[0]}") from None


def lost_is_peer_lost(wait: Any) -> None:
    """Run `wait`, turning the transport's errors into PeerLost."""
    try:
        wait()
    except (TransportError, TimeoutError) as error:
        raise PeerLost(str(error)) from None


def _gloo_tag(payload: int, microbatch: int) -> int:
    return microbatch * 4 + payload
