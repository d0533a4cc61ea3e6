"""A rank's connection to the coordinator of its data centre, which is found again whenever it was lost."""

import contextlib
import json
import socket
import threading
from typing import Any

from engine.control.handshake import Handshake, Identity, dial
from engine.control.thread_driver import BlockingChannel
from engine.inputs import Document
from engine.serve.prefill_wire import (
    TO_PREFILL_WORKER,
    ChunkRan,
    IterationBegun,
    IterationRan,
    RunChunk,
    ToPrefillWorker,
)
from engine.serve.prefill_worker import PrefillWorker

LOOK_S = 0.1  # between two looks for a coordinator
CONNECT_S = 5.0
# What a coordinator that does not read may leave lying before it is taken for dead: some seconds of signals.
SEND_BUFFER_BYTES = 256 * 1024


def address_key(dc: int) -> str:
    """Where in the rendezvous store the coordinator of a data centre says where it listens for ranks."""
    return f"prefill/coordinator/{dc}"


class CoordinatorConnection:
    """Joins `prefill_worker` to the coordinator of rank `coordinator`, whose address the `store` has."""

    def __init__(
        self, prefill_worker: PrefillWorker, me: Identity, store: Any, *, dc: int, coordinator: int
    ) -> None:
        self._prefill_worker, self._me, self._coordinator = prefill_worker, me, coordinator
        self._store, self._key = store, address_key(dc)
        self._channel: BlockingChannel[ToPrefillWorker] | None = None
        self._offset_s = 0.0  # the coordinator's clock less ours
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="coordinator-line", daemon=True)
        self._thread.start()

    def send(self, message: Document) -> None:
        """Send, without waiting: a coordinator that is behind costs training nothing. What cannot be sent is
        lost together with the connection, by which the coordinator knows."""
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.send_at_once(self._on_its_clock(message))

    def _on_its_clock(self, message: Document) -> Document:
        offset_s = self._offset_s
        update: dict[str, Any]
        match message:
            case IterationBegun():
                update = {"start_s": message.start_s + offset_s}
            case ChunkRan():
                update = {"start_s": message.start_s + offset_s, "end_s": message.end_s + offset_s}
            case IterationRan():
                update = {
                    "starts_s": tuple(start_s + offset_s for start_s in message.starts_s),
                    "ends_s": tuple(end_s + offset_s for end_s in message.ends_s),
                }
            case _:
                return message
        return message.model_copy(update=update)

    def close(self) -> None:
        """End the connection and its thread."""
        self._closing.set()
        channel = self._channel
        if channel is not None:
            channel.end()
        self._thread.join(CONNECT_S)

    def _work(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                address = self._published_address()
                if address is not None:
                    self._talk(address)
            self._closing.wait(LOOK_S)

    def _published_address(self) -> tuple[str, int] | None:
        """Where the coordinator listens. Raises RuntimeError: the store's rank is gone, or has no time."""
        if not self._store.check([self._key]):
            return None
        host, port = json.loads(self._store.get(self._key))
        return host, port

    def _talk(self, address: tuple[str, int]) -> None:
        with socket.create_connection(address, timeout=CONNECT_S) as connected:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            handshake = Handshake(dial(self._me, peer=self._coordinator))
            channel = BlockingChannel(connected, handshake, TO_PREFILL_WORKER, seconds=CONNECT_S)
            connected.settimeout(None)
            self._offset_s = channel.greeting.clock_offset_s
            self._channel = channel
            try:
                self._prefill_worker.attach(self)
                self._listen(channel)
            finally:
                self._channel = None
                self._prefill_worker.detach()

    def _listen(self, channel: BlockingChannel[ToPrefillWorker]) -> None:
        for message in channel.messages():
            if isinstance(message, RunChunk):
                ours = {
                    "begin_s": message.begin_s - self._offset_s,
                    "until_s": message.until_s - self._offset_s,
                }
                message = message.model_copy(update=ours)
            self._prefill_worker.handle(message)
