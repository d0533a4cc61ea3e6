"""Assigns the mini-batches of a global batch to workers: each counts exactly once.

A unit is one mini-batch, by its number in the global batch. It is free, held by one worker that computes it,
or brought in: part of the gradients that one worker keeps until the all-reduce. A worker that is lost takes
what it held and what it had brought in with it, and all of that is free again. ATOM §III-E: others
"compensate the loss due to the leaving node".
"""

from collections import deque
from collections.abc import Iterable, Mapping

Units = tuple[int, ...]


class Ledger:
    """The units of one global batch, 0 … `units` − 1.

    brought : those that are in gradients of workers already.

    Attributes
    ----------
    redone : units that were free again because the worker that had them was lost.
    """

    def __init__(
        self, units: int, workers: Iterable[int], brought: Mapping[int, Iterable[int]] | None = None
    ) -> None:
        self._units = units
        self._units_of: dict[int, Units] = dict.fromkeys(workers, ())
        self._brought: dict[int, list[int]] = {w: list((brought or {}).get(w, ())) for w in self._units_of}
        there = {unit for units_ in self._brought.values() for unit in units_}
        self._free: deque[int] = deque(unit for unit in range(units) if unit not in there)
        self.redone = 0

    @property
    def workers(self) -> tuple[int, ...]:
        """Those that take part in this batch, in order."""
        return tuple(sorted(self._units_of))

    @property
    def complete(self) -> bool:
        """Whether every unit is brought in by a worker that is still there."""
        return sum(map(len, self._brought.values())) == self._units

    def take(self, worker: int, most: int, idle: int) -> Units:
        """Hand `worker` up to `most` free units: its share where `idle` workers, itself included, want some.

        Raises
        ------
        ValueError
            It still holds some, or does not take part.
        """
        if self._units_of.get(worker) != ():
            raise ValueError(f"worker {worker} may take units only while it is present and holds none")
        count = min(most, -(-len(self._free) // max(idle, 1)))
        self._units_of[worker] = tuple(self._free.popleft() for _ in range(count))
        return self._units_of[worker]

    def bring(self, worker: int, units: Iterable[int]) -> None:
        """`worker` has the units that it held in its gradients.

        Raises
        ------
        ValueError
            They are not the ones that it holds.
        """
        if not units or self._units_of.get(worker) != tuple(units):
            raise ValueError(f"worker {worker} brings {units}, but holds {self._units_of.get(worker)}")
        self._brought[worker] += self._units_of[worker]
        self._units_of[worker] = ()

    def holds(self, worker: int) -> bool:
        """Whether `worker` is computing units."""
        return bool(self._units_of[worker])

    def lose(self, worker: int) -> None:
        """`worker` is gone, and with it all that was in its gradients."""
        units = sorted((*self._units_of.pop(worker), *self._brought.pop(worker)))
        self.redone += len(units)
        self._free.extendleft(reversed(units))

    def brought(self) -> dict[int, Units]:
        """The units in each worker's gradients."""
        return {worker: tuple(units) for worker, units in sorted(self._brought.items())}
