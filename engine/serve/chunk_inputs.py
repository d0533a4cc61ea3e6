"""Hidden states that wait in a rank for their chunk."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.serve.hidden_states import HiddenHeader
from engine.serve.prefill_wire import RunChunk

_Key = tuple[str, int, int]  # request, tokens before, tokens


@dataclass(frozen=True, slots=True)
class _Waiting:
    hidden: Tensor
    expires: float


class ChunkInputs:
    """What the stage before handed on, in main memory, until it is used, dropped, or its lease ends.

    Two of the same tokens are the same: a chunk that was placed again may use what came before. Not for
    two threads at once.

    Parameters
    ----------
    most_bytes : that all may have. What came first goes first: it is the likeliest to be of no use any more,
        and a chunk that misses its own is placed again.
    clock : monotonic seconds.
    """

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes, self._clock = most_bytes, clock
        self._waiting: dict[_Key, _Waiting] = {}

    @property
    def bytes_in_use(self) -> int:
        return sum(one.hidden.nbytes for one in self._waiting.values())

    def put(self, what: HiddenHeader, hidden: Tensor) -> None:
        """Keep hidden states (tokens, hidden) for their chunk."""
        self.expire()
        key = what.request, what.done, what.tokens
        self._waiting.pop(key, None)
        room = self._most_bytes - hidden.nbytes
        while self._waiting and self.bytes_in_use > room:
            del self._waiting[next(iter(self._waiting))]
        if room >= 0:
            self._waiting[key] = _Waiting(hidden, self._clock() + what.lease_s)

    def has(self, chunk: RunChunk) -> bool:
        """Whether the chunk's are there."""
        return (chunk.request, chunk.done, chunk.tokens) in self._waiting

    def take(self, chunk: RunChunk) -> Tensor | None:
        """The chunk's, which are gone with it; None where they are not there."""
        arrival = self._waiting.pop((chunk.request, chunk.done, chunk.tokens), None)
        return None if arrival is None else arrival.hidden

    def drop(self, request: str) -> None:
        """Nobody wants any more what is of `request`."""
        self._waiting = {key: one for key, one in self._waiting.items() if key[0] != request}

    def clear(self) -> None:
        """Nobody wants anything any more."""
        self._waiting.clear()

    def expire(self) -> None:
        """Forget all whose lease has ended."""
        now = self._clock()
        self._waiting = {key: one for key, one in self._waiting.items() if one.expires > now}
