"""Buffers for received messages, reused because the kernel clears every new page.

On the TUN testbed 15 % of all busy CPU time was measured to go into that clearing (docs/transport.md).
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Smaller ones come from the C heap, which uses its memory again by itself.
LEAST_KEPT_BYTES = 256 * 1024
# Sizes are rounded up to multiples of this, so that messages of nearly one size share their buffers.
GRAIN_BYTES = 1 << 20
# As torch has its tensors: what MKL multiplies may differ in its last bits by where operands begin.
ALIGNMENT_BYTES = 64
MOST_IDLE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class OnArrival:
    """A buffer of `nbytes` bytes that `make` gives, once, when its message begins to come.

    A receive that is posted long ahead takes no memory until then.
    """

    nbytes: int
    make: Callable[[], memoryview]


class Buffers:
    """Gives buffers, and takes each back by itself once nobody refers to it. From any thread.

    most_idle_bytes : kept of those in which nothing is; what is beyond goes back to the system, oldest first.
    """

    def __init__(self, most_idle_bytes: int = MOST_IDLE_BYTES) -> None:
        self._most_idle_bytes = most_idle_bytes
        self._lock = threading.Lock()
        self._idle: list[NDArray[np.uint8]] = []  # oldest first
        self._returned: deque[NDArray[np.uint8]] = deque()

    def take(self, nbytes: int) -> memoryview:
        """A buffer of `nbytes` bytes that begins at a multiple of 64; what is in it is undefined."""
        if nbytes < LEAST_KEPT_BYTES:
            return _new(nbytes).data
        size = -(-nbytes // GRAIN_BYTES) * GRAIN_BYTES
        memory = self._kept(size)
        if memory is None:
            memory = _new(size)
        lent = memory[:nbytes]
        # A finalizer may run anywhere, in `take` too: it takes no lock.
        weakref.finalize(lent, self._returned.append, memory).atexit = False
        return lent.data

    def _kept(self, size: int) -> NDArray[np.uint8] | None:
        with self._lock:
            while self._returned:
                self._idle.append(self._returned.popleft())
            # The one that was used last: it may be in the processor's cache still.
            index = next((at for at in reversed(range(len(self._idle))) if len(self._idle[at]) == size), None)
            memory = None if index is None else self._idle.pop(index)
            while sum(map(len, self._idle)) > self._most_idle_bytes:
                self._idle.pop(0)
        return memory


def _new(nbytes: int) -> NDArray[np.uint8]:
    memory = np.empty(nbytes + ALIGNMENT_BYTES - 1, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[begin : begin + nbytes]
