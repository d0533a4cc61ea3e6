"""A worker's connection to the tracker: its messages, and an inbox for the tracker's."""

import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from engine.control.errors import PeerLost
from engine.control.lines import Lines, Message, encode, mac, tuned
from engine.job.launch import LaunchSpec

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
        self, spec: LaunchSpec, rank: int, port: int, hello: Message, die: Callable[[BaseException], None]
    ) -> None:
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._die, self._lines = die, Lines()
        self._let_go = False  # told to leave or to end: the tracker may be gone before this process
        self._where = f"{spec.rendezvous_host}:{port}"
        self._sending = threading.Lock()
        try:
            self._socket = tuned(socket.create_connection((spec.rendezvous_host, port), CONNECT_S))
            nonce = self._first()["nonce"]
            self.say(
                "hello", rank=rank, mac=mac(spec.secret, spec.run, spec.generation, rank, nonce), **hello
            )
        except (OSError, KeyError, ValueError) as error:
            raise PeerLost(f"no tracker at {self._where}: {error}") from None
        self._socket.settimeout(None)
        for name, work in (("tracker", self._listen), ("beat", self._beat)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def say(self, op: str, **fields: Any) -> None:
        """Tell the tracker. Raises PeerLost where it is gone."""
        try:
            with self._sending:
                self._socket.sendall(encode({"op": op, **fields}))
        except OSError as error:
            raise PeerLost(f"lost the tracker at {self._where}: {error}") from None

    def _first(self) -> Message:
        while not (messages := self._lines.feed(self._some())):
            pass
        return messages[0]

    def _some(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("it closed the connection")
        return data

    def _listen(self) -> None:
        try:
            while True:
                for message in self._lines.feed(self._some()):
                    self._let_go = self._let_go or message["op"] in ("leave", "end")
                    self.inbox.put(message)
        except (OSError, ValueError) as error:
            if not self._let_go:
                self._die(PeerLost(f"lost the tracker at {self._where}: {error}"))

    def _beat(self) -> None:
        try:
            while True:
                time.sleep(BEAT_S)
                self.say("beat")
        except PeerLost:
            return  # the listener says so
