"""Messages between GPUs of one data centre that stay on the GPUs: NCCL point to point.

Each link (one direction of one hop) has a communicator of its two ranks and a stream of its own.

NCCL has no tags: a receive takes what was sent next. Both ends follow one order, that in which the sender's
ops make the messages. The schedule tells it to both (`order_of`).

The receiver posts AHEAD receives ahead, into buffers that it uses in turn. It copies a message out of its
buffer on the stream of the ops, and posts the buffer again behind that copy. So a sender's message is taken
early, and what waits on the receiver's GPU is bounded.

Why it cannot deadlock, if every CUDA kernel that is ready can start: a send waits for its receive on the
link's stream, never on that of the ops. Ops wait for messages alone. A receive waits for messages of its
link that were sent before, and for copies of messages that the receiver needs no later. So whatever an op
waits for comes before it in the schedule, which has no circle. Several receives in one NCCL group would
break this: all of a group end together.

A receive that waits is a kernel that runs. Two settings of CUDA must not make others wait for it
(`ENVIRONMENT`).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.nn.device import Moment
from engine.nn.lane import Lane, Transfer
from engine.schedule.ir import OpKind, Schedule
from engine.train.exchange import Incoming, Key, Message, Outgoing, Passage, Sent, peer_errors

AHEAD = 2  # receives of a link that are posted before they are needed
SENDER, RECEIVER = 0, 1  # numbers of the ranks in a link's group

# To be set before a process first uses CUDA. A stream shares one of 8 hardware queues with others by default:
# what is queued behind a message that waits would wait too. And a kernel that is loaded when it first runs
# waits for all others.
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectLink:
    """One end of a link. group : of its two ranks, SENDER and RECEIVER.  lane : for its transfers."""

    group: Any
    lane: Lane


@dataclass(frozen=True, slots=True)
class _DirectSent:
    transfer: Transfer
    peer: int

    def wait(self) -> Passage:
        with peer_errors(f"rank {self.peer}"):
            start, end = self.transfer.wait()
        return Passage(start=start, end=end, arrives=end)


class DirectOutgoing(Outgoing):
    """Sends to rank `peer` in the order of the calls, each message once the ops so far have made it."""

    def __init__(self, link: DirectLink, peer: int) -> None:
        self._link, self._peer = link, peer

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> Sent:
        # Not `ready`: it may have been made contiguous since.
        data, group = tensor.detach().view(torch.uint8).flatten(), self._link.group
        with peer_errors(f"rank {self._peer}"):
            transfer = self._link.lane.begin(data, lambda: group.send([data], RECEIVER, 0))
        return _DirectSent(transfer, self._peer)


class DirectIncoming(Incoming):
    """Receives from rank `peer`.

    order : keys of the messages of an iteration, in the order in which they are sent.
    new_buffer : gives the device's memory for one message.
    """

    def __init__(
        self, link: DirectLink, peer: int, order: Sequence[Key], new_buffer: Callable[[], Tensor]
    ) -> None:
        self._link, self._peer, self._order = link, peer, order
        self._buffers = [new_buffer() for _ in range(min(AHEAD, len(order)))]
        self._posted: deque[tuple[Key, Tensor, Transfer]] = deque()
        self._to_post: Iterator[Key] = iter(())
        self._here: dict[Key, Tensor] = {}  # taken, because later ones were needed first

    def begin(self, iteration: int) -> None:
        assert not self._posted, "all messages of an iteration are taken in it"
        self._to_post = iter(self._order)
        for buffer in self._buffers:
            self._post(buffer)

    def post(self, key: Key, nbytes: int) -> None:
        """Receives are posted in the order of the sender, as buffers become free."""

    def wait(self, key: Key) -> Message:
        """Have the ops that come next find the message; the host does not wait for it."""
        while key not in self._here:
            self._take_next()
        return Message(self._here.pop(key), time.monotonic())

    def _take_next(self) -> None:
        key, buffer, transfer = self._posted.popleft()
        with peer_errors(f"rank {self._peer}"):
            transfer.join()
        self._here[key] = buffer.clone()
        self._post(buffer)

    def _post(self, buffer: Tensor) -> None:
        key, group = next(self._to_post, None), self._link.group
        if key is None:
            return
        with peer_errors(f"rank {self._peer}"):
            transfer = self._link.lane.begin(buffer, lambda: group.recv([buffer], SENDER, 0))
        self._posted.append((key, buffer, transfer))


def order_of(schedule: Schedule, pipeline: int, link: int, sender: int) -> tuple[Key, ...]:
    """Keys of what is sent over a link in an iteration, in the order in which the sending stage makes it.

    pipeline : as the schedule numbers it.
    """
    hop, direction = divmod(link, 2)
    edges = len(schedule.traversal.positions) - 1
    sent = {
        chunk: OpKind.F if transfer < edges else OpKind.B
        for chunk, transfer in enumerate(schedule.traversal.transfer_of[direction, hop].tolist())
        if transfer >= 0
    }
    ops = schedule.order(pipeline, sender)
    return tuple((op.chunk, op.microbatch) for op in ops if sent.get(op.chunk) is op.kind)
