"""Messages over several plain TCP connections, an equal share on each: work stealing is compared with it."""

import queue
import socket
import struct
import threading
import time
from typing import Any

import torch
from torch import Tensor

from engine.job.job import TrainJob
from engine.job.launch import RankAssignment
from engine.nn.device import Moment
from engine.schedule.ir import Schedule
from engine.train.exchange import Incoming, Key, Message, Outgoing, Passage, raw
from engine.train.wiring import Fabric, Wiring, ends_of

_HEAD = struct.Struct("<II")  # the message's key
_TIMEOUT_S = 600.0


class _Shared:
    """A message of which every connection has a share."""

    def __init__(self, data: memoryview, connections: int) -> None:
        self.begin = time.monotonic()
        self.data, self._connections = data, connections
        self._left, self._lock, self._done = connections, threading.Lock(), threading.Event()

    def share(self, index: int) -> memoryview:
        nbytes, of = len(self.data), self._connections
        return self.data[nbytes * index // of : nbytes * (index + 1) // of]

    def one_done(self) -> None:
        with self._lock:
            self._left -= 1
        if not self._left:
            self._done.set()

    def wait(self) -> Passage:
        if not self._done.wait(_TIMEOUT_S):
            raise TimeoutError("a message over the equal split did not come")
        end = time.monotonic()
        return Passage(start=self.begin, end=end, arrives=end)


class EqualSplitOutgoing:
    """The sending end of one way: a thread per connection, messages in the order of `send`."""

    def __init__(self, connections: int) -> None:
        self._queues: list[queue.SimpleQueue[tuple[Key, _Shared]]] = [
            queue.SimpleQueue() for _ in range(connections)
        ]

    def connect(self, here: str, there: tuple[str, int]) -> None:
        for index, waiting in enumerate(self._queues):
            connected = socket.create_connection(there, timeout=30, source_address=(here, 0))
            connected.settimeout(None)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.sendall(bytes([index]))
            threading.Thread(target=self._run, args=(connected, index, waiting), daemon=True).start()

    def begin(self, iteration: int) -> None:
        """Nothing to prepare."""

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> _Shared:
        message = _Shared(raw(tensor), len(self._queues))
        for waiting in self._queues:
            waiting.put((key, message))
        return message

    @staticmethod
    def _run(connected: socket.socket, index: int, waiting: "queue.SimpleQueue[tuple[Key, _Shared]]") -> None:
        while True:
            key, message = waiting.get()
            connected.sendall(_HEAD.pack(*key))
            connected.sendall(message.share(index))
            message.one_done()


class EqualSplitIncoming:
    """The receiving end of one way."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._posted: dict[Key, _Shared] = {}
        self._changed = threading.Condition()

    def accept(self, server: socket.socket) -> None:
        """Take the sender's connections, on a thread."""
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        with server:
            for _ in range(self._connections):
                connected, _ = server.accept()
                threading.Thread(target=self._run, args=(connected,), daemon=True).start()

    def begin(self, iteration: int) -> None:
        """Nothing to prepare."""

    def post(self, key: Key, nbytes: int) -> None:
        with self._changed:
            self._posted[key] = _Shared(raw(torch.empty(nbytes, dtype=torch.uint8)), self._connections)
            self._changed.notify_all()

    def wait(self, key: Key) -> Message:
        arrived = self._posted[key].wait().arrives
        with self._changed:
            return Message(torch.frombuffer(self._posted.pop(key).data, dtype=torch.uint8), arrived)

    def _run(self, connected: socket.socket) -> None:
        index = connected.recv(1)[0]
        while len(head := connected.recv(_HEAD.size, socket.MSG_WAITALL)) == _HEAD.size:
            key = _HEAD.unpack(head)
            with self._changed:
                while key not in self._posted:
                    self._changed.wait()
                message = self._posted[key]
            left = message.share(index)
            while left:
                if not (count := connected.recv_into(left)):
                    return
                left = left[count:]
            message.one_done()


class EqualSplitWiring(Wiring):
    """The wiring of a rank whose WAN messages go over an equal split; that inside a DC stays."""

    def __init__(
        self, job: TrainJob, schedule: Schedule, me: RankAssignment, fabric: Fabric, connections: int
    ) -> None:
        self._connections = connections
        super().__init__(job, schedule, me, fabric)

    def connect(self, store: Any) -> None:
        """Listen where ways end here, and dial where they begin; ranks meet at `store`."""
        me = self._me
        for way, incoming in self._incoming.items():
            if isinstance(incoming, EqualSplitIncoming):
                server = socket.create_server((me.host, 0), backlog=2 * self._connections)
                incoming.accept(server)
                store.set(f"split/{way}/{me.pipeline}", str(server.getsockname()[1]))
        for way, outgoing in self._outgoing.items():
            if isinstance(outgoing, EqualSplitOutgoing):
                port = int(store.get(f"split/{way}/{me.pipeline}"))
                other = self._fabric.at(me.pipeline, ends_of(way, self._job.cell.stages)[1])
                outgoing.connect(me.host, (other.host, port))

    def _new_incoming(self, way: int) -> Incoming:
        if self._job.network(way // 2, self._me.pipeline) is None:
            return super()._new_incoming(way)
        return EqualSplitIncoming(self._connections)

    def _new_outgoing(self, way: int) -> Outgoing:
        if self._job.network(way // 2, self._me.pipeline) is None:
            return super()._new_outgoing(way)
        return EqualSplitOutgoing(self._connections)
