"""The GPUs in reserve, which the leading host knows and the first rank reads when it looks for a layout."""

import json
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from engine.job.launch import RankAssignment

MOST_BYTES = 1 << 20  # of a list; 4,096 GPUs (adapt.most_gpus) take less


class SharedReserve:
    """Lists in memory that a host shares with the first rank, its fork; they outlive that rank.

    The host writes which GPUs are in reserve. The rank writes with which GPUs it looked for a layout.
    """

    def __init__(self) -> None:
        self._gpus, self._considered = _SharedList(), _SharedList()

    def write(self, gpus: Sequence[RankAssignment]) -> None:
        """Let the reserve be `gpus`."""
        self._gpus.write([asdict(gpu) for gpu in gpus])

    def read(self) -> tuple[RankAssignment, ...]:
        """The reserve as it was written last."""
        return tuple(RankAssignment(**gpu) for gpu in self._gpus.read())

    def consider(self, ranks: Iterable[int]) -> None:
        """Note the ranks of the GPUs with which a layout was looked for last, those in use included."""
        self._considered.write(sorted(ranks))

    def considered(self) -> set[int]:
        """What was noted last, in this attempt of the ranks or in an earlier one."""
        return set(self._considered.read())


class _SharedList:
    """A list in shared memory. One process writes, another one reads.

    A list is written next to the one that counts, and counts as soon as the first byte names it. So a reader
    gets a whole list, unless two are written while it reads one: then it gets an empty one, or the next.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 1 + 2 * MOST_BYTES)

    def write(self, values: list[Any]) -> None:
        data = json.dumps(values).encode()
        assert len(data) + 4 <= MOST_BYTES
        other = 1 - self._map[0]
        start = 1 + other * MOST_BYTES
        self._map[start : start + 4 + len(data)] = len(data).to_bytes(4, "little") + data
        self._map[0] = other

    def read(self) -> list[Any]:
        start = 1 + self._map[0] * MOST_BYTES
        size = int.from_bytes(self._map[start : start + 4], "little")
        try:
            values = json.loads(self._map[start + 4 : start + 4 + size] or b"[]")
        except ValueError:
            return []
        return values if isinstance(values, list) else []
