"""A worker's connection to the tracker: its messages, and an inbox for the tracker's."""

import queue
import socket
import threading
import time
from collections.abc import Callable

from engine.control.errors import PeerLost
from engine.control.handshake import Handshake, dial
from engine.control.identity import identity_of
from engine.control.messages import Beat
from engine.control.thread_driver import BlockingChannel
from engine.inputs import Document
from engine.job.launch import LaunchSpec
from engine.train.swap.messages import FROM_TRACKER, LISTENERS, End, Hello, Leave

CONNECT_S = 120.0
BEAT_S = 1.0


class Client:
    """Connected to the tracker as `rank`; `die` is called in the background when the tracker is gone.

    Attributes
    ----------
    inbox : what the tracker says, in order; a worker may put messages of its own threads there too.

    Raises
    ------
    PeerLost
        There is no tracker, or it refuses this worker.
    """

    def __init__(
        self, spec: LaunchSpec, rank: int, port: int, hello: Hello, die: Callable[[BaseException], None]
    ) -> None:
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._die = die
        self._let_go = False  # told to leave or to end: the tracker may be gone before this process
        self._where = f"{spec.rendezvous_host}:{port}"
        me = identity_of(spec, rank, LISTENERS)
        try:
            connected = socket.create_connection((spec.rendezvous_host, port), CONNECT_S)
            self._channel = BlockingChannel(
                connected, Handshake(dial(me, peer=spec.first_rank)), FROM_TRACKER, seconds=CONNECT_S
            )
        except OSError as error:
            raise PeerLost(f"no tracker at {self._where}: {error}") from None
        connected.settimeout(None)
        self.send(hello)
        for name, work in (("tracker", self._listen), ("beat", self._beat)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def send(self, message: Document) -> None:
        """Tell the tracker. Raises PeerLost where it is gone."""
        try:
            self._channel.send(message)
        except OSError as error:
            raise PeerLost(f"lost the tracker at {self._where}: {error}") from None

    def _listen(self) -> None:
        why: object = "it closed the connection"
        try:
            for message in self._channel.messages():
                self._let_go = self._let_go or isinstance(message, Leave | End)
                self.inbox.put(message)
        except OSError as error:
            why = error
        if not self._let_go:
            self._die(PeerLost(f"lost the tracker at {self._where}: {why}"))

    def _beat(self) -> None:
        try:
            while True:
                time.sleep(BEAT_S)
                self.send(Beat())
        except PeerLost:
            return  # the listener says so
