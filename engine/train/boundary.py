"""Ends a run early after a complete iteration, the same one on every rank.

The first rank leads. At the start of iteration N it sees that a stop is asked and writes N into the
rendezvous store before it sends anything of N. No rank can finish N without something that the first rank
sent in N (its activations, and through them every all-reduce), so at the start of N + 1 all find it there.
"""

import time
from typing import Protocol

from engine.job.events import training
from engine.job.events.base import Emit
from engine.train.agreement import Store

KEY = "stop_after"


class Flag(Protocol):
    """Bytes that may change under us."""

    def __getitem__(self, index: int, /) -> int: ...


class Boundary:
    """The iteration after which one rank's run ends early.

    Parameters
    ----------
    stop_flag : one byte, shared with the process that hosts the rank, which sets it to ask for the end.
    leads : whether this is the run's first rank.
    emit : takes the `boundary` event that the first rank sends.
    """

    def __init__(self, store: Store, *, rank: int, stop_flag: Flag, leads: bool, emit: Emit) -> None:
        self._store, self._rank, self._stop_flag, self._leads, self._emit = (
            store,
            rank,
            stop_flag,
            leads,
            emit,
        )
        self._last: int | None = None

    def passed(self, iteration: int) -> bool:
        """Whether the run is over before `iteration`; asked at its start, before anything of it is sent.

        Raises
        ------
        PeerLost
            The store is gone, and with it the first rank.
        """
        if self._last is None:
            self._last = self._lead(iteration) if self._leads else self._follow()
        return self._last is not None and iteration > self._last

    def _lead(self, iteration: int) -> int | None:
        if not self._stop_flag[0]:
            return None
        self._store.set(KEY, str(iteration))
        self._emit(training.Boundary(rank=self._rank, iteration=iteration, t=time.time()))
        return iteration

    def _follow(self) -> int | None:
        return int(self._store.get(KEY)) if self._store.check([KEY]) else None
