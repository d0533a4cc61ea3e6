"""What the controller has accepted and is not done: who is queued, who has a reserved place, who runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from engine.prefill.placement import Placement


@dataclass(slots=True)
class Book:
    """Accepted requests, those that have not begun in the order of their starts.

    queued : are re-planned where one goes before them.  reserved : keep their intervals; they came when the
    queue was full.  begun : heap by the end of their transfer.
    """

    queued: list[Placement] = field(default_factory=list)
    reserved: list[Placement] = field(default_factory=list)
    begun: list[tuple[float, int, Placement]] = field(default_factory=list)
    _sequence: "count[int]" = field(default_factory=count)

    def live(self) -> list[Placement]:
        """All of them."""
        return [*self.queued, *self.reserved, *(entry[2] for entry in self.begun)]

    def advance(self, now_ms: float) -> list[Placement]:
        """Returns those that have begun since, and forgets whose transfer is over."""
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
        """One that waits, behind those that begin at the same time."""
        waiting = self.reserved if reserved else self.queued
        at = len(waiting)
        while at and waiting[at - 1].start_ms > placement.start_ms:
            at -= 1
        waiting.insert(at, placement)

    def remove(self, gone: Iterable[Placement]) -> bool:
        """Whether any of these was there; they are no more."""
        ids, before = {id(p) for p in gone}, len(self.queued) + len(self.reserved) + len(self.begun)
        self.queued = [p for p in self.queued if id(p) not in ids]
        self.reserved = [p for p in self.reserved if id(p) not in ids]
        self.begun = [entry for entry in self.begun if id(entry[2]) not in ids]
        heapify(self.begun)
        return len(self.queued) + len(self.reserved) + len(self.begun) < before

    def replace(self, olds: Sequence[Placement], news: Sequence[Placement | None], now_ms: float) -> None:
        """Each of `olds` by its new plan, or by none; who had a reserved place has one again."""
        kept = {id(p) for p in self.reserved}
        reserved = [id(old) in kept for old in olds]
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
