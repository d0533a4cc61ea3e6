"""A heartbeat from each rank to its host, for ranks that no other rank watches.

Ranks that talk over the transport notice it of each other. In a job of one stage in one data centre they only
meet in an all-reduce, and those that compute a stage together (tensor parallelism) in its collectives, which
wait for good while the lead's transport lives on.
"""

import mmap
import threading
import time
from collections.abc import Sequence

import numpy as np

from engine.control.silence import LAG_KEPT, LAG_TIMES, MOST_LATE_S, SILENT_S
from engine.job.job import TrainJob

BEAT_S = 0.5


class Pulses:
    """When each rank of this machine was last alive, on a page that its processes share (they are forks).

    The host waits longer where it is woken late itself, as the transport does.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._at = {rank: i for i, rank in enumerate(ranks)}
        self._beats = np.frombuffer(mmap.mmap(-1, 8 * len(ranks)), dtype=np.float64)  # time.monotonic()
        self._next = time.monotonic() + BEAT_S
        self._lag_s = 0.0

    @classmethod
    def of(cls, job: TrainJob, ranks: Sequence[int]) -> "Pulses | None":
        """The pulses of a job whose ranks do not watch each other; else None."""
        alone = job.cell.tp > 1 or (job.cell.stages == 1 and len(set(job.dcs)) == 1)
        return cls(ranks) if alone and not job.swap_strategy else None

    def expect(self, rank: int) -> None:
        """The host is about to start `rank`: it has as long to begin as it may be silent later."""
        self._beats[self._at[rank]] = time.monotonic()

    def beat(self, rank: int) -> None:
        """In the process of `rank`: beat from now on."""

        def run() -> None:
            while True:
                self._beats[self._at[rank]] = time.monotonic()
                time.sleep(BEAT_S)

        threading.Thread(target=run, name="pulse", daemon=True).start()

    def deadline(self) -> float:
        """The latest time to call `silent` (time.monotonic())."""
        return self._next

    def silent(self) -> dict[int, float]:
        """Ranks that have been silent for too long, and for how many seconds; asked every BEAT_S."""
        now = time.monotonic()
        if now < self._next:
            return {}
        self._lag_s = max(now - self._next, LAG_KEPT * self._lag_s)
        self._next = now + BEAT_S
        allowed = SILENT_S + min(LAG_TIMES * self._lag_s, MOST_LATE_S)
        since = {rank: now - float(self._beats[at]) for rank, at in self._at.items()}
        return {rank: seconds for rank, seconds in since.items() if seconds > allowed}
