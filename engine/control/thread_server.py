"""A listening socket with a thread for each connection, and one that waits for them."""

import contextlib
import functools
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from engine.control.channel import Unproven
from engine.control.errors import TransportError
from engine.control.handshake import HANDSHAKE_S, Handshake, Identity, listen
from engine.control.thread_driver import greet

PAUSE_S = 0.02
LOOK_S = 0.25  # longest time between two looks at `close`


class ThreadServer:
    """Takes connections at a listening socket until `close`.

    Parameters
    ----------
    attend : has each connection whose other side knows the secret, and its handshake, on a thread of its own.
        Where it raises an OSError, the connection ends.
    most : connections at once; one more is hung up on.
    look : called before each wait; returns the seconds until it wants to be called again, None for no matter.
    secured : puts a connection into TLS.
    """

    def __init__(
        self,
        listening: socket.socket,
        me: Identity,
        attend: Callable[[socket.socket, Handshake], None],
        *,
        name: str,
        most: int | None = None,
        look: Callable[[], float | None] = lambda: None,
        secured: Callable[[socket.socket], AbstractContextManager[socket.socket]] = nullcontext,
    ) -> None:
        self._listening, self._me, self._attend = listening, me, attend
        self._most, self._look, self._secured = most, look, secured
        self.address: tuple[str, int] = listening.getsockname()[:2]
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._there: dict[threading.Thread, socket.socket] = {}
        self._proven: set[threading.Thread] = set()
        self._unproven = Unproven()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def closing(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def close(self) -> None:
        """End all conversations and wait for their threads."""
        self._closing.set()
        with contextlib.suppress(OSError):  # on Linux this wakes the thread; elsewhere it looks by itself
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        with self._lock:
            there = dict(self._there)
        for connected in there.values():
            _end(connected)
        for thread in there:
            thread.join()

    def _serve(self) -> None:
        while not self.closing:
            left = self._look()
            self._listening.settimeout(LOOK_S if left is None else min(LOOK_S, max(left, 1e-3)))
            try:
                connected, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:  # it left again; or no file is left for it: not to be asked again at once
                self._closing.wait(PAUSE_S)
                continue
            thread = threading.Thread(target=self._run, args=(connected,), daemon=True)
            with self._lock:
                self._there[thread] = connected
                self._unproven.add(thread, functools.partial(_end, connected))
            thread.start()

    def _run(self, connected: socket.socket) -> None:
        thread = threading.current_thread()
        try:
            # A stranger, or one that left: there is nobody to tell.
            with connected, contextlib.suppress(TransportError, OSError):
                connected.settimeout(HANDSHAKE_S)  # of TLS
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._secured(connected) as talking:
                    with self._lock:
                        self._there[thread] = talking
                    handshake = Handshake(listen(self._me))
                    greet(talking, handshake, HANDSHAKE_S)
                    if self._let_in(thread):
                        self._attend(talking, handshake)
        finally:
            with self._lock:
                self._there.pop(thread)
                self._unproven.remove(thread)
                self._proven.discard(thread)

    def _let_in(self, thread: threading.Thread) -> bool:
        with self._lock:
            self._unproven.remove(thread)
            if self.closing or (self._most is not None and len(self._proven) >= self._most):
                return False
            self._proven.add(thread)
            return True


def _end(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
