"""Swap runs: workers without which the run goes on, and on some machines a replica of their tracker."""

import dataclasses
import selectors
import socket
from typing import Any

from engine.control.listening import listen
from engine.job.events.training import RankState, Result
from engine.job.launch import EXIT_PEER_LOST
from engine.run.local_ranks import LocalRank, emit, why_ended
from engine.run.part import GroupStart, HostPart
from engine.run.rank_processes import RankProcesses
from engine.run.verdict import KILL_AFTER_FAILURE_S
from engine.train.swap.replica import Replica, candidates_of
from engine.train.swap.result import result_of


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


def replica_here(first: GroupStart) -> int | None:
    """The rank for which this machine keeps the tracker, or stands by to; None where it does neither."""
    return next((rank for rank in candidates_of(first.spec) if rank in first.spec.local), None)


class TrackedWorkers(SwapWorkers):
    """On a machine with a replica of the tracker, or one that stands by.

    Parameters
    ----------
    first : all ranks of this machine, and on the first rank's the socket at which the tracker listens.
    me : the rank for which this machine keeps the tracker.

    Attributes
    ----------
    added : further fields of the result.

    Raises
    ------
    InputError
        No port is free for the replica.
    """

    def __init__(
        self, ranks: RankProcesses, first: GroupStart, me: int, selector: selectors.BaseSelector
    ) -> None:
        super().__init__(ranks)
        self.added: dict[str, Any] = {}
        self._group = dataclasses.replace(first, store=None)
        corpus, batch = next(iter(ranks.corpora.values())), first.spec.job.cell.global_batch
        self._leads_first = first.store is not None
        self._replica = Replica(
            first.spec,
            me,
            first.store or self._listening(me),
            selector,
            emit=ranks.tell,
            start=self._start_late,
            stop_flag=ranks.stop_flag,
            tokens_per_byte=lambda step: corpus.tokens_per_byte(step, batch),
        )

    @property
    def first(self) -> GroupStart:
        """The workers to start now. The first machine's tracker starts its own later ones when it is time."""
        if not self._leads_first:
            return self._group
        world = self._group.spec.job.cell.world_size
        at_once = [me for me in self._group.ranks if me.rank < world]
        return dataclasses.replace(self._group, ranks=at_once)

    @property
    def awaits(self) -> bool:
        """Whether workers of other machines are at work."""
        return not self._ranks.stopping and self._replica.awaits

    def deadline(self) -> float:
        """The replica's."""
        return self._replica.deadline()

    def tick(self) -> None:
        """Let the replica do what is due, and stop a run that it has given up."""
        replica, ranks = self._replica, self._ranks
        replica.tick()
        if replica.failure is not None and not ranks.stopping:
            for rank in ranks.living()[:1]:
                ranks.emit_end(rank, RankState.FAILED, replica.failure)
            ranks.stop(KILL_AFTER_FAILURE_S)

    def close(self) -> None:
        """Say the result, where the run has one and this machine's is the tracker."""
        replica, group = self._replica, self._group
        leads = replica.tracker is not None
        replica.close()
        if leads and replica.journal.over is not None and replica.journal.measured:
            assert group.plan is not None
            emit(Result(**{**result_of(group.spec.job, group.plan, replica.journal), **self.added}))

    def _survives(self, lost: LocalRank) -> bool:
        tracker = self._replica.tracker
        if tracker is None:
            return super()._survives(lost)
        return (lost.code == EXIT_PEER_LOST or super()._survives(lost)) and tracker.survives(lost.me.rank)

    def _start_late(self, rank: int) -> None:
        started = {each.me.rank for each in self._ranks.by_pid.values()}
        joins = [me for me in self._group.ranks if me.rank == rank and rank not in started]
        if joins and not self._ranks.stopping:
            self._ranks.start(dataclasses.replace(self._group, ranks=joins))

    def _listening(self, me: int) -> socket.socket:
        spec = self._group.spec
        host = next(assignment.host for assignment in spec.ranks if assignment.rank == me)
        return listen(host, spec.ports, me)
