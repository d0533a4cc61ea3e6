"""The requests that the controller has accepted and that are not done: queued, reserved, or begun."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from engine.prefill.placement import Placement


@dataclass(slots=True)
class Book:
    """Accepted requests; those that have not begun are in the order of their starts.

    queued : re-planned if a later request goes before them.  reserved : keep their intervals; they came when
        the
    queue was full.  begun : heap by the end of their transfer.
    """

    queued: list[Placement] = field(default_factory=list)
    reserved: list[Placement] = field(default_factory=list)
    begun: list[tuple[float, int, Placement]] = field(default_factory=list)
    _sequence: "count[int]" = field(default_factory=count)

    def live(self) -> list[Placement]:
        """All accepted requests."""
        return [*self.queued, *self.reserved, *(entry[2] for entry in self.begun)]

    def advance(self, now_ms: float) -> list[Placement]:
        """Returns the requests that have begun since, and drops those whose transfer is over."""
        begun = []
        for waiting in (self.queued, self.reserved):
            first = next((i for i, p in enumerate(waiting) if p.start_ms > now_ms), len(waiting))
            begun += waiting[:first]
            del waiting[:first]
        begun.sort(key=_start)
        for placement in begun:
            self._begin(placement)
        while self.begun and self.begun[0][0] <= now_ms:
            heappop(self.begun)
        return begun

    def insert(self, placement: Placement, *, reserved: bool = False) -> None:
        """Adds a waiting request, after those that begin at the same time."""
        waiting = self.reserved if reserved else self.queued
        at = len(waiting)
        while at and waiting[at - 1].start_ms > placement.start_ms:
            at -= 1
        waiting.insert(at, placement)

    def remove(self, gone: Iterable[Placement]) -> bool:
        """Removes `gone`; returns whether any of them was present."""
        ids, before = {id(p) for p in gone}, len(self.queued) + len(self.reserved) + len(self.begun)
        self.queued = [p for p in self.queued if id(p) not in ids]
        self.reserved = [p for p in self.reserved if id(p) not in ids]
        self.begun = [entry for entry in self.begun if id(entry[2]) not in ids]
        heapify(self.begun)
        return len(self.queued) + len(self.reserved) + len(self.begun) < before

    def replace(self, olds: Sequence[Placement], news: Sequence[Placement | None], now_ms: float) -> None:
        """Replaces each of `olds` by its new plan, or by none; a reserved request stays reserved."""
        reserved_ids = {id(p) for p in self.reserved}
        reserved = [id(old) in reserved_ids for old in olds]
        self.remove(olds)
        for new, held in zip(news, reserved, strict=True):
            if new is not None and new.start_ms > now_ms:
                self.insert(new, reserved=held)
            elif new is not None:
                self._begin(new)

    def _begin(self, placement: Placement) -> None:
        heappush(self.begun, (placement.kv_done_ms, next(self._sequence), placement))


def _start(placement: Placement) -> float:
    return placement.start_ms
