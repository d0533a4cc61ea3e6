"""A listening socket with a thread for each guest, and one that waits for them."""

import contextlib
import socket
import threading
from collections.abc import Callable

PAUSE_S = 0.02
LOOK_S = 0.25  # longest time between two looks at `close`


class Guests:
    """Listens at (`host`, `port`); `attend` has this and each guest's connection, on a thread of its own.

    most : guests at once; one more is hung up on.
    look : called before each wait; returns the seconds until it wants to be called again, None for no matter.

    Raises OSError where nobody can listen there.
    """

    def __init__(
        self, host: str, port: int, attend: Callable[["Guests", socket.socket], None], *, name: str,
        most: int | None = None, look: Callable[[], float | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._attend, self._most, self._look = attend, most, look
        self._listener = socket.create_server((host, port))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._there: dict[threading.Thread, socket.socket] = {}
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def closing(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def talks_over(self, connected: socket.socket) -> None:
        """Of the calling guest's thread: `connected` is what `close` is to shut down."""
        with self._lock:
            self._there[threading.current_thread()] = connected

    def close(self) -> None:
        """End all conversations and wait for their threads."""
        self._closing.set()
        with contextlib.suppress(OSError):  # on Linux this wakes the thread; elsewhere it looks by itself
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._lock:
            there = dict(self._there)
        for connected in there.values():
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        for thread in there:
            thread.join()

    def _serve(self) -> None:
        while not self.closing:
            left = self._look()
            self._listener.settimeout(LOOK_S if left is None else min(LOOK_S, max(left, 1e-3)))
            try:
                connected, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # it left again; or no file is left for it: not to be asked again at once
                self._closing.wait(PAUSE_S)
                continue
            self._welcome(connected)

    def _welcome(self, connected: socket.socket) -> None:
        with self._lock:
            if self._most is not None and len(self._there) >= self._most:
                connected.close()
                return
            thread = threading.Thread(target=self._run, args=(connected,), daemon=True)
            self._there[thread] = connected
        thread.start()

    def _run(self, connected: socket.socket) -> None:
        try:
            with connected:
                self._attend(self, connected)
        finally:
            with self._lock:
                self._there.pop(threading.current_thread(), None)
