"""A thread that deals with one thing after the other, so that an iteration waits for none of them."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Calls `work` with each item that is put; `die` is called with what it raised."""

    def __init__(self, work: Callable[[T], None], die: Callable[[BaseException], None], *, name: str) -> None:
        self._work, self._die = work, die
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Have an item dealt with after those before it."""
        self._items.put(item)

    def close(self) -> None:
        """Wait until all items are dealt with, and end the thread."""
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (item := self._items.get()) is not None:
                self._work(item)
        except BaseException as error:
            self._die(error)
