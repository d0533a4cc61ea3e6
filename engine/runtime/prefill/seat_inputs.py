"""Hidden states that wait in a rank for their chunk."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.runtime.prefill.hand_on import Handed
from engine.runtime.prefill.seat_wire import Row

_Key = tuple[str, int, int]  # request, tokens before, tokens


@dataclass(frozen=True, slots=True)
class _Waiting:
    hidden: Tensor
    expires: float


class SeatInputs:
    """What the stage before handed on, in main memory, until it is used, dropped, or its lease ends.

    Two that are of the same tokens are the same: one that was planned anew may use what came before. Not for
    two threads at once. clock : monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[_Key, _Waiting] = {}

    @property
    def bytes_in_use(self) -> int:
        return sum(one.hidden.numel() * one.hidden.itemsize for one in self._waiting.values())

    def put(self, what: Handed, hidden: Tensor) -> None:
        """Keep hidden states (tokens, hidden) for their chunk."""
        self.expire()
        expires = self._clock() + what.lease_s
        self._waiting[what.request, what.done, what.tokens] = _Waiting(hidden, expires)

    def has(self, row: Row) -> bool:
        """Whether the row's are there."""
        return (row.request, row.done, row.tokens) in self._waiting

    def take(self, row: Row) -> Tensor | None:
        """The row's, which are gone with it; None where they are not there."""
        found = self._waiting.pop((row.request, row.done, row.tokens), None)
        return None if found is None else found.hidden

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
