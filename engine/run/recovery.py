"""One machine's part of a run that recovers: its ranks' memory, what they said, and who decides for them."""

import dataclasses
import os
import selectors
import socket
from collections.abc import Sequence
from typing import Any, Protocol

from engine.control.recovery_follow import Follow
from engine.control.recovery_lead import Lead
from engine.job.events.base import BaseEvent, Say
from engine.job.events.training import Rank, RankState, Spans
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec
from engine.job.losses import step_event
from engine.job.recovery.attempt import Attempt, EndedRank
from engine.job.recovery.history import History
from engine.job.recovery.layout import NOT_NEEDED, Layout, roles
from engine.train.recovery.cuts import Cuts
from engine.train.recovery.memory import held, new_memory
from engine.train.recovery.resume import ResumeState


class Processes(Protocol):
    """The rank processes, in the hands of the host."""

    def start_all(self, store: socket.socket | None, port: int) -> None: ...
    def kill_all(self) -> None: ...
    def all_gone(self) -> bool: ...
    def forget_all(self) -> None: ...
    def peer_lost(self) -> list[EndedRank]: ...
    def fail(self, why: str) -> None: ...
    def leave(self, ranks: Sequence[int], why: str) -> None: ...
    def cut(self, job: TrainJob) -> None: ...


class Machine:
    """The ranks of one machine over all their attempts (lead.Ranks).

    Parameters
    ----------
    listener : of the rendezvous, on the first rank's machine; the other machines' hosts connect to it.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        processes: Processes,
        selector: selectors.BaseSelector,
        *,
        say: Say,
        listener: socket.socket | None,
    ) -> None:
        settings = spec.job.failures.recovery
        assert settings is not None
        self._spec, self._processes, self._say = spec, processes, say
        self._memory = {rank: new_memory(rank) for rank in spec.local}
        self._history = History()
        self._attempt: Attempt | None = None
        self._present = spec  # in the layout of the present attempt
        self.cuts = Cuts([dc.name for dc in spec.job.datacenters])
        self._recovery: Lead | Follow
        if listener is None:
            self._recovery = Follow(spec, settings, self, selector, history=self._history)
            return
        if len(spec.local) == len(spec.ranks):
            listener.close()
            listener = None
        self._recovery = Lead(
            spec, settings, self, selector, history=self._history, say=say, listener=listener
        )

    @property
    def files(self) -> list[int]:
        """Descriptors that no rank is to hold."""
        return self._recovery.files

    @property
    def awaits(self) -> bool:
        """Whether the run goes on, though no rank may live here."""
        return self._recovery.awaits

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """The recoveries so far, where this is the first rank's machine."""
        return self._recovery.recoveries

    def deadline(self) -> float:
        """When `tick` is to be called at the latest (time.monotonic())."""
        return self._recovery.deadline()

    def tick(self, *, finished: bool) -> None:
        """Do what there is to do; `finished`: all ranks here have ended well, and the result is there."""
        self._recovery.tick()
        if finished:
            self._recovery.finished()

    def close(self) -> None:
        """No attempt begins any more."""
        self._recovery.close()

    def ended(self, dead: Sequence[EndedRank]) -> None:
        """Ranks here ended before their time."""
        self._recovery.trouble(dead)

    def heard(self, event: BaseEvent) -> None:
        """Pass on what a rank says, but for steps that are told already."""
        assert self._attempt is not None
        if not self._history.takes(event):
            return
        if isinstance(event, Spans):
            event = event.model_copy(update={"attempt": self._attempt.number})
        self._say(event)
        match event:
            case Rank(state=RankState.RUNNING, rank=self._spec.first_rank):
                self._recovery.runs()

    def spec_now(self) -> LaunchSpec:
        """The spec of the ranks' present attempt."""
        assert self._attempt is not None
        job = self._present.job
        if self._attempt.source != "start":
            job = job.with_fields("persistence", resume=self._attempt.where)
        return dataclasses.replace(self._present, attempt=self._attempt.number, job=job)

    def kept(self, rank: int) -> ResumeState:
        """What a rank is handed for its present attempt."""
        assert self._attempt is not None
        leads = rank == self._spec.first_rank
        return ResumeState(
            attempt=self._attempt,
            fd=self._memory[rank],
            board=self._history.board,
            metrics=self._history.before(self._attempt.step) if leads else (),
            validation=tuple(self._history.validation.values()) if leads else (),
        )

    # What the leading host asks (lead.Ranks).

    def begin(self, attempt: Attempt, store: socket.socket | None) -> None:
        """Start the ranks of an attempt; `store`: of its rendezvous store, on the first rank's machine."""
        self._attempt = attempt
        self._cut(attempt.layout)
        self._processes.start_all(store, attempt.store_port)

    def kill(self) -> None:
        """End the ranks that are left; what they kept of their last steps stays."""
        self._processes.kill_all()

    def gone(self) -> bool:
        """Whether no rank lives here, and everything that they said has been read."""
        return self._processes.all_gone()

    def peer_lost(self) -> list[EndedRank]:
        """Ranks here that ended for having lost another one, those that were not noticed in time, too."""
        return self._processes.peer_lost()

    def held(self) -> dict[int, tuple[int, ...]]:
        """By local rank: the steps after which its state is in memory; asked when no rank lives here."""
        for iteration, loss, norm, t in self._history.unheard():
            self._say(step_event(self._spec.job, iteration, loss, norm, t))
        self._processes.forget_all()
        return {rank: held(fd) for rank, fd in self._memory.items()}

    def give_up(self, why: str) -> None:
        """The run ends here."""
        self._processes.fail(why)

    def leave(self, why: str) -> None:
        """The run goes on without this machine."""
        self._processes.leave(sorted(self._memory), why)

    def _cut(self, layout: Layout | None) -> None:
        """Go over to a layout; what a rank kept of another part of the model is forgotten."""
        before, self._present = self._present, layout.applied(self._spec) if layout else self._spec
        had, has = roles(before), roles(self._present)
        changed = [rank for rank in self._memory if has.get(rank) != had.get(rank)]
        for rank in changed:
            os.close(self._memory[rank])
            self._memory[rank] = new_memory(rank)
        idle = [rank for rank in changed if rank not in has]
        if idle:
            self._processes.leave(idle, NOT_NEEDED)
        if before.job is not self._present.job:
            self._processes.cut(self._present.job)
