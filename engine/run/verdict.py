"""The verdict on ranks that ended: which failed, and which were stopped for it."""

import math
import time

from engine.job.events.training import RankState
from engine.job.launch import EXIT_PEER_LOST
from engine.run.local_ranks import LocalRank, why_ended
from engine.run.part import HostPart
from engine.run.rank_processes import RankProcesses

# How long a rank that lost a peer waits to be told apart from the rank that is the cause, or to be stopped as
# its peer was: agents that are shut down together do not stop their ranks in the same second.
CAUSE_S = 3.0
SOON_S = 0.1
KILL_AFTER_FAILURE_S = 2.0


class Verdict(HostPart):
    """Takes every failure that no part before it takes: the first one ends all ranks here."""

    def __init__(self, ranks: RankProcesses) -> None:
        self._ranks = ranks
        self._at: float | None = None

    @property
    def awaits(self) -> bool:
        """Whether ranks ended of which it is not clear yet whether they failed or were to be stopped."""
        return self._at is not None and not self._ranks.stopping

    def deadline(self) -> float | None:
        """When it is given."""
        return self._at

    def tick(self) -> None:
        """Give it when it is time."""
        if self._at is not None and time.monotonic() >= self._at:
            self.give()

    def takes_failure(self, rank: LocalRank) -> bool:
        """Wait for the rank that is the cause: it may be reaped after those that noticed its end."""
        if not self._ranks.stopping:
            after_s = CAUSE_S if rank.code == EXIT_PEER_LOST else SOON_S
            self._at = min(self._at or math.inf, time.monotonic() + after_s)
        return True

    def give(self) -> None:
        """Say what became of the ranks that ended; the first time that some failed, stop the others."""
        self._say_failures(final=False)
        if not self._ranks.stopping:
            self._ranks.stop(KILL_AFTER_FAILURE_S)

    def close(self) -> None:
        """Say what became of all ranks."""
        self._say_failures(final=True)
        for rank in self._ranks.ended():
            if rank.code == 0:
                self._ranks.emit_state(rank, RankState.FINISHED)

    def _say_failures(self, *, final: bool) -> None:
        """Of those whose last line has been read; `final`: of all."""
        self._at = None
        failed = [rank for rank in self._ranks.ended() if rank.code]
        caused = any(rank.code != EXIT_PEER_LOST for rank in failed)
        for rank in failed:
            if final or not rank.open_pipes or (rank.code or 0) < 0:
                lost_peer = rank.code == EXIT_PEER_LOST and caused
                state = RankState.STOPPED if self._ranks.stopping or lost_peer else RankState.FAILED
                self._ranks.emit_end(rank, state, why_ended(rank, was_stopped=state is RankState.STOPPED))
