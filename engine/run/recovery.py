"""One machine's part of a run that recovers: its ranks' memory, what they said, and who decides for them."""

import dataclasses
import json
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence

from engine.control.recovery_follow import Follow
from engine.control.recovery_lead import Lead
from engine.job.events.base import BaseEvent
from engine.job.events.incidents import LayoutChanged
from engine.job.events.training import Rank, RankState, Spans
from engine.job.launch import EXIT_PEER_LOST
from engine.job.losses import step_event
from engine.job.planned import schedule_of
from engine.job.recovery.attempt import Attempt, EndedRank
from engine.job.recovery.history import History
from engine.job.recovery.layout import NOT_NEEDED, Layout, roles
from engine.job.recovery.reserve import SharedReserve
from engine.job.reserve import most_gpus
from engine.run.local_ranks import LocalRank, dead, emit
from engine.run.part import GroupStart, HostPart
from engine.run.rank_processes import RankProcesses
from engine.run.run_result import RunResult
from engine.run.verdict import SOON_S, Verdict
from engine.train.recovery.cuts import Cuts
from engine.train.recovery.memory import held, new_memory
from engine.train.recovery.resume import ResumeState
from engine.train.start import Start

# How long ranks that lost a peer wait for the rank that is the cause. All ranks end anyway, and only what is
# said of it depends on the cause.
CAUSE_S = 0.3
IN_RESERVE = "its GPU was in reserve"


class Recovering(HostPart):
    """The ranks of one machine over all their attempts (recovery_host.Ranks).

    Parameters
    ----------
    first : the ranks here, as launched. The first rank's machine has the socket of the rendezvous; the other
        machines' hosts connect to it.
    verdict : on the ranks once the run is given up. result : gets the recoveries.
    """

    def __init__(
        self,
        first: GroupStart,
        ranks: RankProcesses,
        selector: selectors.BaseSelector,
        *,
        verdict: Verdict,
        result: RunResult,
    ) -> None:
        spec, settings, listener = first.spec, first.spec.job.failures.recovery, first.store
        assert settings is not None
        self._spec, self._ranks, self._verdict, self._result = spec, ranks, verdict, result
        self._memory = {rank: new_memory(rank) for rank in spec.local}
        self._history, self._reserve = History(), SharedReserve()
        self._attempt: Attempt | None = None
        self._present = spec  # in the layout of the present attempt
        self._schedule = first.schedule
        self._cuts = Cuts([dc.name for dc in spec.job.datacenters])
        self._killing = False  # of ranks that are killed nothing is to be said
        self._trouble_at = math.inf  # when recovery is told of ranks that ended
        self._recovery: Lead | Follow
        if listener is None:
            self._recovery = Follow(spec, settings, self, selector, history=self._history)
            return
        if len(spec.local) == len(spec.gpus) >= (most_gpus(spec.job) or 0):
            listener.close()
            listener = None
        self._recovery = Lead(
            spec,
            settings,
            self,
            selector,
            history=self._history,
            emit=emit,
            listener=listener,
            reserve=self._reserve,
        )

    # What the host asks (part.HostPart).

    @property
    def awaits(self) -> bool:
        """Whether the run goes on, though no rank may live here."""
        return self._recovery.awaits

    def deadline(self) -> float | None:
        """When recovery, or what it is to be told, is due."""
        due = min(self._recovery.deadline() if self.awaits else math.inf, self._trouble_at)
        return due if due < math.inf else None

    def tick(self) -> None:
        """Do what there is to do, and tell of ranks that ended before their time."""
        if self.awaits:
            self._recovery.tick()
        if self.awaits and self._result.complete:
            self._recovery.finished()
        if time.monotonic() < self._trouble_at:
            return
        self._trouble_at = math.inf
        if self.awaits:
            self._recovery.trouble([dead(rank) for rank in self._ranks.ended() if rank.code])
        else:
            self._verdict.give()

    def equip(self, start: Start) -> Start:
        """A rank gets what is kept of earlier attempts, and the drills."""
        return dataclasses.replace(start, kept=self._kept(start.me.rank), cuts=self._cuts)

    def takes_event(self, event: BaseEvent) -> bool:
        """Pass on what a rank says, but for steps that are told already."""
        assert self._attempt is not None
        if not self._history.takes(event):
            return True
        if isinstance(event, LayoutChanged):
            self._recovery.propose(event)
            return True
        if isinstance(event, Spans):
            event = event.model_copy(update={"attempt": self._attempt.number})
        self._ranks.tell(event)
        match event:
            case Rank(state=RankState.RUNNING, rank=self._spec.first_rank):
                self._recovery.runs()
        return True

    def takes_failure(self, rank: LocalRank) -> bool:
        """While the run goes on, recovery is told of it, soon: others may have ended for the same cause."""
        if not self.awaits:
            return False
        if not self._killing:
            after_s = CAUSE_S if rank.code == EXIT_PEER_LOST else SOON_S
            self._trouble_at = min(self._trouble_at, time.monotonic() + after_s)
        return True

    def stop(self) -> None:
        """No attempt begins any more."""
        self._recovery.close()

    def close(self) -> None:
        """Say of ranks without a process how they ended, and add the recoveries to the result."""
        if self._ranks.stopping:
            ended = {rank.me.rank for rank in self._ranks.ended()}
            why = "stopped before it was started again"
            self._say_ends(sorted(set(self._spec.local) - ended), RankState.STOPPED, why)
        self._say_ends(self._idle(), RankState.FINISHED, IN_RESERVE)
        self._result.added["recoveries"] = self._recovery.recoveries
        if self._spec.job.failures.adapt is not None and self._spec.job.failures.adapt.layout:
            self._result.added["layout_changes"] = self._recovery.layout_changes

    def cut(self, arguments: str) -> None:
        """A drill: cut the network between two data centres. `arguments`: JSON of both names and seconds."""
        self._cuts.cut(*json.loads(arguments))

    # What the leading host asks (recovery_host.Ranks).

    def begin(self, attempt: Attempt, store: socket.socket | None) -> None:
        """Start the ranks of an attempt; `store`: of its rendezvous store, on the first rank's machine."""
        self._attempt, self._killing = attempt, False
        self._change_layout(attempt.layout)
        job = self._present.job
        if attempt.source != "start":
            job = job.with_fields("persistence", resume=attempt.where)
        spec = dataclasses.replace(self._present, attempt=attempt.number, job=job)
        group = GroupStart(
            spec=spec,
            ranks=list(spec.local_ranks),
            schedule=self._schedule,
            plan=None,
            port=attempt.store_port,
            store=store,
        )
        self._ranks.start(group)
        for rank in self._idle():
            emit(Rank(rank=rank, state=RankState.RESERVE, t=time.time()))

    def kill(self) -> None:
        """End the ranks that are left; what they kept of their last steps stays."""
        self._killing, self._trouble_at = True, math.inf
        self._ranks.signal_all(signal.SIGKILL)

    def gone(self) -> bool:
        """Whether no rank lives here, and everything that they said has been read."""
        return self._ranks.all_gone()

    def peer_lost(self) -> list[EndedRank]:
        """Ranks here that ended for having lost another one, those that were not noticed in time, too."""
        return [dead(rank) for rank in self._ranks.ended() if rank.code == EXIT_PEER_LOST]

    def held(self) -> dict[int, tuple[int, ...]]:
        """By local rank: the steps after which its state is in memory; asked when no rank lives here."""
        for iteration, (loss, norm, bits), t in self._history.unheard():
            self._ranks.tell(step_event(self._spec.job, iteration, loss, norm, t, bits_per_byte=bits))
        self._ranks.forget()
        return {rank: held(fd) for rank, fd in self._memory.items()}

    def give_up(self, why: str) -> None:
        """The run ends here: say of ranks that are dead how they ended, or `why` where none is there."""
        if self._ranks.by_pid:
            self._verdict.give()
            return
        if len(self._idle()) == len(self._spec.local):  # the run may go on without it
            self._say_ends(self._idle(), RankState.FINISHED, f"{IN_RESERVE}; {why}")
            return
        first, *others = self._ranks.without_end()
        self._say_ends([first], RankState.FAILED, why)
        self._say_ends(others, RankState.STOPPED, why)

    def leave(self, why: str) -> None:
        """The run goes on without this machine."""
        self._say_ends(sorted(self._memory), RankState.LEFT, why)

    def _say_ends(self, ranks: Sequence[int], state: RankState, why: str) -> None:
        for rank in ranks:
            self._ranks.emit_end_of(rank, state, why)

    def _kept(self, rank: int) -> ResumeState:
        """What a rank is handed for its present attempt."""
        assert self._attempt is not None
        leads = rank == self._spec.first_rank
        return ResumeState(
            attempt=self._attempt,
            fd=self._memory[rank],
            reserve=self._reserve,
            board=self._history.board,
            metrics=self._history.before(self._attempt.step) if leads else (),
            validation=tuple(self._history.validation.values()) if leads else (),
        )

    def _idle(self) -> list[int]:
        """The GPUs in reserve here, by their ranks' numbers."""
        if most_gpus(self._spec.job) is None:
            return []
        used = {me.rank for me in self._present.ranks}
        return sorted(rank for rank in self._spec.local if rank not in used)

    def _change_layout(self, layout: Layout | None) -> None:
        """Go over to a layout; what a rank kept of another part of the model is forgotten."""
        before, self._present = self._present, layout.applied(self._spec) if layout else self._spec
        had, has = roles(before), roles(self._present)
        changed = [rank for rank in self._memory if has.get(rank) != had.get(rank)]
        for rank in changed:
            os.close(self._memory[rank])
            self._memory[rank] = new_memory(rank)
        if most_gpus(self._spec.job) is None:
            self._say_ends([rank for rank in changed if rank not in has], RankState.LEFT, NOT_NEEDED)
        if before.job is not self._present.job:
            self._schedule = schedule_of(self._present.job)
