"""One rank's side of re-planning: its reports, and its change to another schedule.

Reports lie in the rendezvous store, where each takes the place of one that is a few iterations old. The first
rank reads them, judges and plans. A new schedule is announced there as text, at the start of iteration N and
before the first rank sends anything of N, for iteration N + 1: no rank can finish N without the first one, so
all find it in time (as with engine.train.boundary).
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.job.adapt.measured import summary
from engine.schedule import Schedule
from engine.schedule.text import parse_schedule
from engine.simulate.spans import Span
from engine.train import agreement

SLOTS = 4  # reports of a rank that are kept: none is more than two iterations behind the first rank
Announced = tuple[int, Schedule | None]  # from which iteration on; None: a checkpoint is saved after it


class Store(agreement.Store, Protocol):
    """A store that reads several values at once."""

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


class Follower:
    """Reports what a rank measures, and learns of new schedules."""

    def __init__(self, store: Store, *, rank: int) -> None:
        self._store, self._rank = store, rank
        self._plans = 0  # that were found
        self._next: tuple[int, Schedule | None] | None = None
        self._saves_after: int | None = None

    def report(self, iteration: int, spans: Sequence[Span]) -> None:
        """Tell the first rank what an iteration took here. Raises PeerLost where that rank is gone."""
        value = json.dumps([iteration, summary(spans)])
        self._store.set(report_key(iteration, self._rank), value)

    def before(self, iteration: int) -> Schedule | None:
        """The schedule that holds from `iteration` on, where it is another; asked at its start.

        Raises
        ------
        PeerLost
            The store is gone, and with it the first rank.
        """
        if self._next is None:
            self._next = self._announced(iteration)
        if self._next is None or iteration < self._next[0]:
            return None
        (begins, schedule), self._next = self._next, None
        if schedule is None:
            self._saves_after = begins + 1
        return schedule

    def saves(self, step: int) -> bool:
        """Whether the state after `step` steps is to be saved, because the run moves to another layout."""
        return step == self._saves_after

    def started(self, start_s: float, checkpoint_s: Callable[[], float | None]) -> None:
        """All ranks run, after `start_s` seconds; `checkpoint_s` gives what the last checkpoint took."""

    @property
    def adaptations(self) -> list[dict[str, Any]]:
        """The part of the result about re-planning; on the first rank."""
        return []

    def _announced(self, iteration: int) -> Announced | None:
        key = f"adapt/plan/{self._plans}"
        if not self._store.check([key]):
            return None
        self._plans += 1
        begins, text = json.loads(self._store.get(key))
        return begins, None if text is None else parse_schedule(text)


def report_key(iteration: int, rank: int) -> str:
    """Where a rank's report of an iteration lies."""
    return f"adapt/report/{iteration % SLOTS}/{rank}"
