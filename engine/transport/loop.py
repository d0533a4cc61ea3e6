"""One thread that watches every socket of an endpoint."""

import contextlib
import heapq
import itertools
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

Callback = Callable[[], None]
Events = Callable[[int], None]


class Loop:
    """A selector, a queue of calls from other threads, and timers."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._sequence = itertools.count()
        self._woken = False
        self._stopping = False
        self._over = False
        self._on_crash = on_crash
        self._wakes, self._waker = socket.socketpair()
        self._wakes.setblocking(False)
        self._waker.setblocking(False)
        self._watched: set[int] = set()  # file descriptors
        self.watch(self._wakes, selectors.EVENT_READ, self._drain_wakes)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, callback: Callback) -> None:
        """Run `callback` on the loop's thread soon; from any thread. Once the loop is over, run it here."""
        self._calls.append(callback)
        if self._over:
            self._run_last_calls()
        elif not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                self._waker.send(b"\0")

    def at(self, when: float, callback: Callback) -> None:
        """Run `callback` at `when` (time.monotonic()) or shortly after; on the loop's thread only."""
        heapq.heappush(self._timers, (when, next(self._sequence), callback))

    def watch(self, watched: socket.socket, events: int, callback: Events) -> None:
        """Call `callback(ready events)`; `events` 0 forgets the socket. On the loop's thread only."""
        number = watched.fileno()
        known = number in self._watched
        if not events:
            if known:
                self._watched.remove(number)
                self._selector.unregister(watched)
        elif known:
            self._selector.modify(watched, events, callback)
        else:
            self._watched.add(number)
            self._selector.register(watched, events, callback)

    def stop(self) -> None:
        """End the thread; from any other thread. Idempotent."""
        self._stopping = True
        self.call(lambda: None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:  # a thread that dies unheard would leave every wait() hanging
            self._on_crash(error)
        finally:
            self._over = True
            self._run_last_calls()
            self._selector.close()
            self._wakes.close()
            self._waker.close()

    def _turn(self) -> None:
        timeout = None
        if self._calls:
            timeout = 0.0
        elif self._timers:
            timeout = max(0.0, self._timers[0][0] - time.monotonic())
        ready = self._selector.select(timeout)
        # First: the message of a receive that was posted before it came would else be read into a buffer of
        # its own, and copied.
        self._run_calls()
        for key, events in ready:
            # A call or a callback may have closed this socket, and its number may be another's by now.
            if (known := self._selector.get_map().get(key.fd)) and known.fileobj is key.fileobj:
                key.data(events)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def _run_calls(self) -> None:
        # Only those that are there now: a callback that calls again lets the sockets have their turn first.
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def _run_last_calls(self) -> None:
        while True:
            try:
                callback = self._calls.popleft()
            except IndexError:
                return
            callback()

    def _drain_wakes(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakes.recv(4096):
                pass
        self._woken = False
