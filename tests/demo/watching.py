"""A browser's part in the long tests: it keeps one run on screen, through whatever dies."""

import json
import threading
import time
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from tests.demo.harness import Client


class Watcher:
    """Follows a run over its socket as the page does: reconnects with `since`, asks again after a gap.

    A context manager: it watches from a thread of its own inside the block.
    """

    def __init__(self, client: Client, run: str) -> None:
        self.iterations: dict[int, dict[str, Any]] = {}
        self.run: dict[str, Any] = {}
        self.connected = 0  # times that a socket opened and spoke
        self.faults: list[str] = []  # what no server may do to a browser
        self._client = client
        self._path = f"/ws/runs/{run}/"
        self._seq = -1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(15)
        assert not self._thread.is_alive()

    @property
    def newest(self) -> int:
        """The newest iteration whose loss it was told."""
        whole = [n for n, entry in dict(self.iterations).items() if entry.get("loss") is not None]
        return max(whole, default=-1)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                with self._client.socket(self._path) as socket:
                    if self._seq >= 0:
                        socket.send(json.dumps({"type": "since", "seq": self._seq}))
                    self._listen(socket)
            except (OSError, WebSocketException, TimeoutError):
                time.sleep(0.5)

    def _listen(self, socket: ClientConnection) -> None:
        answered = False
        while not self._stop.is_set():
            try:
                message = json.loads(socket.recv(timeout=1))
            except TimeoutError:
                continue
            if not answered:
                answered, self.connected = True, self.connected + 1
            if message["type"] == "snapshot":
                self._take(message)
            elif message["type"] == "events":
                if message["seq"] > self._seq + 1:
                    socket.send(json.dumps({"type": "resync"}))
                elif message["seq"] <= self._seq:
                    self.faults.append(f"seq {message['seq']} after {self._seq}")
                else:
                    self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if message["seq"] < self._seq:
            self.faults.append(f"{message['type']} of seq {message['seq']} after {self._seq}")
        self._seq = message["seq"]
        self.run.update(message.get("run") or {})
        for entry in message.get("iterations", []):
            self.iterations[entry["iteration"]] = entry
