"""The emulated link as pure arithmetic: which connection takes a chunk, and when it passes.

It knows bytes and times only, and takes every time as an argument: no clock, no sleep, no socket. A chunk is
serialised twice: on its connection at window / RTT (what one TCP connection with a constant window carries:
at that pace no more than a window and one chunk are ever sent within one round trip), and on the node pair at
the cap. Times are exact, not measured, so a late thread never makes the emulated link slower or lets its rate
drift: the debt is carried by arithmetic. Slow start and loss are not modelled.
"""

import heapq
import math
from dataclasses import dataclass

from engine.transport.shape import LinkShape

LARGEST_CHUNK = 512 * 1024
SMALLEST_CHUNK = 16 * 1024


@dataclass(frozen=True, slots=True)
class Slot:
    """Passage of one chunk: the connection that carries it, first and last byte, and arrival, in seconds."""

    connection: int
    start: float
    end: float
    due: float


class PairShaper:
    """One direction of an emulated node pair, shared by its connections."""

    def __init__(self, shape: LinkShape, connections: int) -> None:
        self.reshape(shape)
        self._pair_free = -math.inf
        # (free at, connection): the connection whose window opens first takes the next chunk.
        self._free = [(-math.inf, index) for index in range(connections)]

    def reshape(self, shape: LinkShape) -> None:
        """Other figures for what passes from now on, over as many connections."""
        self.shape = shape
        self._seconds_per_byte = 1 / (shape.cap_bytes_per_s or math.inf)
        self._connection_seconds_per_byte = 1 / shape.connection_bytes_per_s

    def next_start(self, ready: float) -> float:
        """When a connection could take a chunk that is there from `ready` on."""
        return max(ready, self._free[0][0])

    def take(self, nbytes: int, ready: float) -> Slot:
        """Let a chunk of `nbytes`, there from `ready` on, pass; chunks pass in the order of the calls."""
        free, connection = self._free[0]
        opened = max(free, ready)
        start = max(opened, self._pair_free)
        self._pair_free = start + nbytes * self._seconds_per_byte
        end = max(self._pair_free, opened + nbytes * self._connection_seconds_per_byte)
        heapq.heapreplace(self._free, (end, connection))
        return Slot(connection, start, end, end + self.shape.one_way_delay_s)

    def take_urgent(self, nbytes: int, ready: float) -> Slot:
        """Let a small message pass at once on the urgent connection; what waits yields by its bytes."""
        passage = nbytes * self._seconds_per_byte
        self._pair_free = max(self._pair_free, ready) + passage
        end = ready + max(passage, nbytes * self._connection_seconds_per_byte)
        return Slot(-1, ready, end, end + self.shape.one_way_delay_s)


def chunk_bytes(message_bytes: int, connections: int) -> int:
    """Size of the chunks that share a message evenly among `connections`.

    As few as the bounds allow: a chunk that is left over would occupy one connection alone.
    """
    share = math.ceil(message_bytes / connections)
    pieces = max(1, math.ceil(share / LARGEST_CHUNK))
    return max(math.ceil(share / pieces), SMALLEST_CHUNK)
