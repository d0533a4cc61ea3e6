"""Failure drills: cuts the network between two data centres for a while, in all ranks of this machine."""

import mmap
import struct
import time
from collections.abc import Sequence

_UNTIL = struct.Struct("<d")  # time.monotonic()


class Cuts:
    """Until when each pair of data centres is cut; in memory that the host shares with its ranks."""

    def __init__(self, names: Sequence[str]) -> None:
        self._pairs = {frozenset((a, b)): i for i, (a, b) in enumerate(_pairs(names))}
        self._map = mmap.mmap(-1, max(1, len(self._pairs)) * _UNTIL.size)

    def cut(self, a: str, b: str, seconds: float) -> None:
        """Cut the network between two data centres. Raises KeyError where there are no such two."""
        until = time.monotonic() + seconds
        _UNTIL.pack_into(self._map, self._pairs[frozenset((a, b))] * _UNTIL.size, until)

    def now(self, a: str, b: str) -> bool:
        """Whether nothing gets from one to the other now."""
        index = self._pairs.get(frozenset((a, b)))
        if index is None:
            return False
        (until,) = _UNTIL.unpack_from(self._map, index * _UNTIL.size)
        return bool(time.monotonic() < until)


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
