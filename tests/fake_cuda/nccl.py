"""NCCL point to point that is not there: sends and receives of pairs of ranks, as ops on streams.

As NCCL does, an operation is queued behind what the current stream has, on a stream of the communicator's. An
end of a communicator does one operation after the other. A send and a receive are over together, once both
are the next of their end. There are no tags.

Values are copied once both are issued. An op of torch that uses a buffer whose message is still to come
blocks its thread until then: on a GPU its stream would wait. So a deadlock shows as one, and is found: where
the two ends' next operations do not fit each other, and where every rank waits.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tests.fake_cuda.clock import Clock
from tests.fake_cuda.gpu import Gpu, Stream, Use
from tests.fake_cuda.memory import Extent, Kind
from tests.fake_cuda.watching import unwatched

LONGEST_WAIT_S = 60.0


@dataclass(slots=True)
class Operation:
    """One side of a message; `data` of a send is a copy, of a receive the buffer itself.

    gone : held until the message is there, or never will be.
    """

    sends: bool
    data: Tensor
    seconds: float
    gone: Any = field(default_factory=threading.Lock)

    def __str__(self) -> str:
        return f"a {'send' if self.sends else 'receive'} of {self.data.nbytes} bytes"


class Nccl:
    """All communicators of a job of `ranks`, each of which has a thread that uses what it receives."""

    def __init__(self, gpu: Gpu, ranks: int) -> None:
        self.gpu, self._ranks = gpu, ranks
        self._coming: list[tuple[Extent, Operation]] = []
        self._blocked: list[Operation] = []
        self._failed = False
        gpu.before_use = self._await

    def pair(self) -> "tuple[End, End]":
        """The two ends of a new communicator."""
        queues: tuple[deque[Operation], deque[Operation]] = (deque(), deque())
        return End(self, queues[0], queues[1]), End(self, queues[1], queues[0])

    def issued(self, operation: Operation, own: deque[Operation], other: deque[Operation]) -> None:
        """Queue an operation, and end those that are over by it."""
        own.append(operation)
        if not operation.sends:
            self._coming.append((Extent.of(operation.data), operation))
        while own and other and not self._failed:
            if own[0].sends == other[0].sends or own[0].data.nbytes != other[0].data.nbytes:
                self._deadlock(f"the ends of a communicator do not fit: {own[0]} meets {other[0]}")
                return
            pair = own.popleft(), other.popleft()
            send, receive = pair if pair[0].sends else pair[::-1]
            with unwatched():
                receive.data.copy_(send.data)
            receive.seconds = max(send.seconds, receive.seconds)
            self._coming = [(at, coming) for at, coming in self._coming if coming is not receive]
            self._blocked = [one for one in self._blocked if one is not receive]
            receive.gone.release()

    def _await(self, uses: Sequence[Use]) -> None:
        """Block until the messages are there whose buffers are used."""
        for use in uses:
            extent = Extent.of(use.tensor)
            for at, operation in list(self._coming):
                if at.meets(extent):
                    self._block(operation)

    def _block(self, operation: Operation) -> None:
        with self.gpu.lock:
            if not self._failed and not operation.gone.locked():
                return
            self._blocked.append(operation)
            if len(self._blocked) == self._ranks:
                self._deadlock("every rank waits for a message")
        if not self._failed and not operation.gone.acquire(timeout=LONGEST_WAIT_S):
            self._deadlock("nobody sends a message that a rank waits for")
        if self._failed:
            raise RuntimeError("deadlock")
        operation.gone.release()
        self.gpu.wait_for(Clock(seconds=operation.seconds))

    def _deadlock(self, text: str) -> None:
        self.gpu.report(Kind.DEADLOCK, text)
        self._failed = True
        for _, operation in self._coming:
            if operation.gone.locked():
                operation.gone.release()


class End:
    """Stands in for ProcessGroupNCCL at one of two ranks."""

    def __init__(self, nccl: Nccl, own: deque[Operation], other: deque[Operation]) -> None:
        self._nccl, self._own, self._other = nccl, own, other
        self._stream: Stream | None = None

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> "Work":
        return self._issue(tensors, sends=True)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> "Work":
        return self._issue(tensors, sends=False)

    def _issue(self, tensors: list[Tensor], *, sends: bool) -> "Work":
        gpu, (tensor,) = self._nccl.gpu, tensors
        number = tensor.device.index
        with gpu.lock:
            if self._stream is None:
                self._stream = Stream(gpu, number)
            self._stream.wait_stream(gpu.current_stream(number))
            name = "nccl send" if sends else "nccl receive"
            gpu.launch(name, self._stream, [Use(tensor, reads=sends, writes=not sends)])
            with unwatched():
                data = tensor.clone() if sends else tensor.detach()
            operation = Operation(sends=sends, data=data, seconds=self._stream.clock.seconds)
            operation.gone.acquire()
            self._nccl.issued(operation, self._own, self._other)
            return Work(gpu, self._stream.clock.copy(), tensor)


class Work:
    """Stands in for WorkNCCL, which refers to the tensor until somebody waits."""

    def __init__(self, gpu: Gpu, over: Clock, tensor: Tensor) -> None:
        self._gpu, self._over = gpu, over
        self._tensor: Tensor | None = tensor

    def wait(self) -> None:
        """The current stream waits, the host does not."""
        assert self._tensor is not None
        stream = self._gpu.current_stream(self._tensor.device.index)
        with self._gpu.lock:
            stream.clock.join(self._over)
        self._tensor = None
