"""Handles that `send` and `post_receive` return: something to wait for, with its times."""

import threading
import time
from collections.abc import Callable
from typing import Any

from engine.control.errors import TransportError
from engine.transport.wire import Tag


class Handle:
    """Completes once, with times or an error.

    The I/O thread settles it as soon as the bytes are where they belong; on an emulated link `due` may then
    lie ahead, and whoever waits sleeps until it. So no timer of the I/O thread stands between a message and
    its reader.
    """

    def __init__(self) -> None:
        self.due = 0.0
        self.error: TransportError | None = None
        self._settled = threading.Event()
        self._callbacks: list[Callable[[Any], None]] = []

    @property
    def settled(self) -> bool:
        """The outcome and its times are known, though `due` may lie ahead."""
        return self._settled.is_set()

    @property
    def done(self) -> bool:
        """`wait` would return (or raise) at once."""
        return self.settled and (self.error is not None or time.monotonic() >= self.due)

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once it is done.

        Raises
        ------
        LinkLost, MessageSizeError
            It will never be done.
        TimeoutError
            Not done within `timeout_s` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._settled.wait(timeout_s):
            raise TimeoutError(f"{self} not done within {timeout_s} s")
        if self.error is not None:
            raise self.error
        while (now := time.monotonic()) < self.due:
            if deadline is not None and now >= deadline:
                raise TimeoutError(f"{self} not done within {timeout_s} s")
            time.sleep(min(self.due, deadline or self.due) - now)

    def on_settled(self, callback: Callable[[Any], None]) -> None:
        """Call `callback(handle)` on the I/O thread when it is settled; for use on that thread only."""
        if self.settled:
            callback(self)
        else:
            self._callbacks.append(callback)

    def fail(self, error: TransportError) -> None:
        """Settle with an error, unless it is settled already."""
        if not self.settled:
            self.error = error
            self._settle()

    def _settle(self) -> None:
        self._settled.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class Send(Handle):
    """A message on its way. `start`, `end`: first and last byte pass the link, time.monotonic()."""

    def __init__(self, peer: int, tag: Tag, message_bytes: int) -> None:
        super().__init__()
        self.peer = peer
        self.tag = tag
        self.message_bytes = message_bytes
        self.start = 0.0
        self.end = 0.0

    def finish(self, start: float, end: float) -> None:
        """Settle: the kernel has every byte."""
        self.start, self.end, self.due = start, end, end
        self._settle()

    def __repr__(self) -> str:
        return f"send of {self.message_bytes} bytes to rank {self.peer}, tag {self.tag}"


class Receive(Handle):
    """A message to come.

    nbytes : that it must have; None: whatever comes.
    into : gives the caller's buffer for it, once, when it begins to come; None: it has one of its own.
    buffer : where its bytes are once it is done.
    message_bytes : size on the wire, filler included.
    arrived : seconds of time.monotonic(); late_s : how much later than the emulated link would have it.
    """

    def __init__(
        self, peer: int, tag: Tag, nbytes: int | None = None, into: Callable[[], memoryview] | None = None
    ) -> None:
        super().__init__()
        self.peer = peer
        self.tag = tag
        self.nbytes = nbytes
        self.into = into
        self.buffer = memoryview(b"")
        self.message_bytes = 0
        self.arrived = 0.0
        self.late_s = 0.0

    def finish(self, *, buffer: memoryview, message_bytes: int, due: float, now: float) -> None:
        """Settle: every byte is in `buffer`; on a real link `due` is now."""
        self.buffer, self.message_bytes, self.due = buffer, message_bytes, due
        self.arrived = max(due, now)
        self.late_s = self.arrived - due
        self._settle()

    def __repr__(self) -> str:
        return f"receive from rank {self.peer}, tag {self.tag}"
