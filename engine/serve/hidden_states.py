"""Hidden states on their way from the rank of one stage to the rank of the next, inside a data centre.

Each stage but the first listens; the stage before it connects, by the address in the rendezvous store, and
proves like all others that it knows the run's secret. Then each chunk is two frames: what it is, and its
hidden states as raw bytes with a checksum; nothing is unpickled. What cannot be sent is lost: the next stage
misses it, and says so to the coordinator.
"""

import contextlib
import json
import socket
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pydantic import ValidationError
from torch import Tensor

from engine.control.errors import TransportError
from engine.control.handshake import Handshake, Identity, dial
from engine.control.listening import listen
from engine.control.thread_driver import greet
from engine.control.thread_server import ThreadServer
from engine.inputs import Count, Document, Index, Positive
from engine.serve.kv_wire import KvTransferError, receive_frame, send_frame

CONNECT_S = 5.0
SEND_S = 5.0  # for a stage that takes nothing


class HiddenHeader(Document):
    """What a chunk's hidden states are: `tokens` tokens behind `done` ones of a request's prompt.

    lease_s : how long they are kept for a chunk that does not come.
    """

    request: str
    done: Index
    tokens: Count
    lease_s: Positive


class HiddenSink(Protocol):
    """Who is handed hidden states (tokens, hidden)."""

    def arrived(self, what: HiddenHeader, hidden: Tensor) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenShape:
    """Shape of hidden states. context : most tokens of a prompt."""

    size: int
    dtype: torch.dtype
    context: int

    def bytes_of(self, tokens: int) -> int:
        return tokens * self.size * self.dtype.itemsize


def address_key(rank: int) -> str:
    """Where in the rendezvous store a stage says where it listens for the one before it."""
    return f"prefill/stage/{rank}"


class HiddenSender:
    """Sends to the next stage, rank `behind`, on a thread of its own: neither prefill nor training waits.

    most_bytes : of hidden states that wait to be sent; where they are more, the oldest are lost.
    """

    def __init__(self, me: Identity, store: Any, *, behind: int, most_bytes: int) -> None:
        self._me, self._store, self._behind, self._most_bytes = me, store, behind, most_bytes
        self._changed = threading.Condition()
        self._queue: deque[tuple[HiddenHeader, Tensor]] = deque()
        self._closing = False
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._work, name="hidden-out", daemon=True)
        self._thread.start()

    @property
    def bytes_queued(self) -> int:
        """Of what has not begun to go out."""
        with self._changed:
            return sum(hidden.nbytes for _, hidden in self._queue)

    def send(self, what: HiddenHeader, hidden: Tensor) -> None:
        """Send it when those before it are gone."""
        with self._changed:
            self._queue.append((what, hidden))
            while self.bytes_queued > self._most_bytes:
                self._queue.popleft()
            self._changed.notify_all()

    def clear(self) -> None:
        """Nobody wants any more what has not gone out."""
        with self._changed:
            self._queue.clear()

    def close(self) -> None:
        """End the connection and its thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            what, hidden = task
            try:
                if self._socket is None:
                    self._connect()
                self._put(what, hidden)
            # RuntimeError of the store: its rank is gone, or has no time for us.
            except (TransportError, OSError, ValueError, RuntimeError):
                self._disconnect()
        self._disconnect()

    def _next(self) -> tuple[HiddenHeader, Tensor] | None:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return None if self._closing else self._queue.popleft()

    def _connect(self) -> None:
        key = address_key(self._behind)
        if not self._store.check([key]):
            raise KvTransferError(f"rank {self._behind} listens nowhere yet")
        host, port = json.loads(self._store.get(key))
        connected = socket.create_connection((host, port), timeout=CONNECT_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            self._socket = connected
        connected.settimeout(SEND_S)
        greet(connected, Handshake(dial(self._me, peer=self._behind)))

    def _put(self, what: HiddenHeader, hidden: Tensor) -> None:
        assert self._socket is not None
        send_frame(self._socket, what.model_dump())
        raw = hidden.detach().to("cpu").contiguous().view(torch.uint8).flatten()
        send_frame(self._socket, {}, raw.numpy().data)

    def _disconnect(self) -> None:
        with self._changed:
            connected, self._socket = self._socket, None
        if connected is not None:
            connected.close()


class HiddenReceiver:
    """Listens at `host` for rank `before`, whose hidden states are of `shape`; `to` gets them.

    ports : of which it takes one; None: any.

    Raises InputError where it cannot listen there.
    """

    def __init__(
        self,
        me: Identity,
        shape: HiddenShape,
        to: HiddenSink,
        *,
        before: int,
        host: str,
        ports: tuple[int, int] | None = None,
    ) -> None:
        self._shape, self._to, self._before = shape, to, before
        self._server = ThreadServer(listen(host, ports, me.rank), me, self._attend, name="hidden-in")
        self.address = self._server.address

    def close(self) -> None:
        """End all connections and wait for their threads."""
        self._server.close()

    def _attend(self, connected: socket.socket, handshake: Handshake) -> None:
        assert handshake.greeting is not None
        if handshake.greeting.rank == self._before:
            connected.settimeout(None)
            with contextlib.suppress(ValidationError):
                while True:
                    self._to.arrived(*self._receive(connected))

    def _receive(self, connected: socket.socket) -> tuple[HiddenHeader, Tensor]:
        what = HiddenHeader.model_validate(receive_frame(connected)[0])
        if what.done + what.tokens > self._shape.context:
            raise KvTransferError(f"a chunk up to token {what.done + what.tokens} of {self._shape.context}")
        _, body = receive_frame(connected, body_bytes=self._shape.bytes_of(what.tokens))
        hidden = torch.frombuffer(body, dtype=self._shape.dtype).view(what.tokens, self._shape.size)
        return what, hidden
