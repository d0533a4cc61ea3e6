"""Swap runs: workers without which the run goes on, and on the first rank's machine their tracker."""

import dataclasses
import selectors

from engine.job.events.training import RankState, Result
from engine.job.launch import EXIT_PEER_LOST
from engine.run.local_ranks import LocalRank, emit, why_ended
from engine.run.part import GroupStart, HostPart
from engine.run.rank_processes import RankProcesses
from engine.run.verdict import KILL_AFTER_FAILURE_S
from engine.train.swap.result import result_of
from engine.train.swap.tracker import Tracker


class SwapWorkers(HostPart):
    """On a machine without the tracker. A lost worker leaves its work to others; an error fails the run."""

    def __init__(self, ranks: RankProcesses) -> None:
        self._ranks = ranks

    def takes_failure(self, rank: LocalRank) -> bool:
        """Say of a worker that was lost, and that the run survives, that it left."""
        if self._ranks.stopping or not self._survives(rank):
            return False
        self._ranks.emit_end(rank, RankState.LEFT, why_ended(rank))
        return True

    def _survives(self, lost: LocalRank) -> bool:
        return lost.code is not None and lost.code < 0


class TrackedWorkers(SwapWorkers):
    """On the tracker's machine.

    Parameters
    ----------
    first : all ranks of this machine, and the socket at which the tracker listens.
    """

    def __init__(self, ranks: RankProcesses, first: GroupStart, selector: selectors.BaseSelector) -> None:
        super().__init__(ranks)
        assert first.store is not None
        self._group = dataclasses.replace(first, store=None)
        corpus, batch = next(iter(ranks.corpora.values())), first.spec.job.cell.global_batch
        self._tracker = Tracker(
            first.spec,
            first.store,
            selector,
            emit=emit,
            start=self._start_late,
            stop_flag=ranks.stop_flag,
            tokens_per_byte=lambda step: corpus.tokens_per_byte(step, batch),
        )

    @property
    def first(self) -> GroupStart:
        """The workers with which the run begins; others join later."""
        world = self._group.spec.job.cell.world_size
        at_once = [me for me in self._group.ranks if me.rank < world]
        return dataclasses.replace(self._group, ranks=at_once)

    @property
    def awaits(self) -> bool:
        """Whether workers of other machines are at work."""
        return not self._ranks.stopping and self._tracker.awaits

    def deadline(self) -> float:
        """The tracker's."""
        return self._tracker.deadline()

    def tick(self) -> None:
        """Let the tracker do what is due, and stop a run that it has given up."""
        tracker, ranks = self._tracker, self._ranks
        tracker.tick()
        if tracker.failure is not None and not ranks.stopping:
            for rank in ranks.living()[:1]:
                ranks.emit_end(rank, RankState.FAILED, tracker.failure)
            ranks.stop(KILL_AFTER_FAILURE_S)

    def close(self) -> None:
        """Say the result, where the run has one."""
        tracker, group = self._tracker, self._group
        tracker.close()
        if tracker.over and tracker.stats:
            assert group.plan is not None
            emit(Result(**result_of(group.spec.job, group.plan, tracker)))

    def _survives(self, lost: LocalRank) -> bool:
        was_lost = lost.code == EXIT_PEER_LOST or super()._survives(lost)
        return was_lost and self._tracker.survives(lost.me.rank)

    def _start_late(self, rank: int) -> None:
        joins = [me for me in self._group.ranks if me.rank == rank]
        if joins and not self._ranks.stopping:
            self._ranks.start(dataclasses.replace(self._group, ranks=joins))
