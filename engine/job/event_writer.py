"""The path of a rank's events to its host: JSON lines on a pipe, written by a separate thread."""

import os
import queue
import threading
import time
from collections.abc import Callable

from engine.job.events.base import BaseEvent

Made = BaseEvent | Callable[[], BaseEvent]
MOST_WAITING = 4096  # events held while the reader is slow; beyond it spans are dropped, and counted
FLUSH_S = 0.05
FLUSH_BYTES = 256 * 1024


class EventWriter:
    """Writes events to a file descriptor in batches, by time and size.

    An event may be given as a function that makes it, which then runs in the writer's thread.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.Queue[Made | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()
        self.dropped = 0

    def put(self, event: Made) -> None:
        """Queue an event that must arrive; waits where the reader is far behind."""
        self._queue.put(event)

    def offer(self, event: Made) -> None:
        """Queue an event that may be dropped where the reader is far behind."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._batch()
            _write_all(self._fd, b"".join(batch))

    def _batch(self) -> tuple[list[bytes], bool]:
        lines: list[bytes] = []
        size = 0
        deadline = float("inf")
        while size < FLUSH_BYTES:
            try:
                left = None if not lines else max(0.0, deadline - time.monotonic())
                event = self._queue.get(timeout=left)
            except queue.Empty:
                break
            if event is None:
                return lines, False
            lines.append((event() if callable(event) else event).to_json() + b"\n")
            size += len(lines[-1])
            deadline = min(deadline, time.monotonic() + FLUSH_S)
        return lines, True


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
