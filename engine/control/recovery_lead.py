"""Recovery on the machine of the first rank: decides when all ranks end and where they restart.

It keeps nothing that the others could not tell it: should it be lost itself, its successor asks them.
"""

import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.control.identity import identity_of
from engine.control.listening import listen
from engine.control.recovery_host import Ranks, RecoveryHost
from engine.control.recovery_messages import (
    FROM_FOLLOWER,
    LISTENERS,
    CheckpointSaved,
    Fail,
    FromFollower,
    FromLeader,
    Halt,
    Halted,
    Hello,
    Leave,
    MachineState,
    Over,
    Start,
    Welcome,
)
from engine.control.selector_driver import Listener, SelectorChannel
from engine.control.silence import SILENT_S
from engine.errors import Infeasible
from engine.job.events.base import Emit
from engine.job.events.incidents import Failed, LayoutChanged, Recovery, Source
from engine.job.launch import NOWHERE, LaunchSpec, RankAssignment
from engine.job.recovery.attempt import Attempt, EndedRank, OpenFailure
from engine.job.recovery.history import History
from engine.job.recovery.layout import NOT_NEEDED, Layout, change, roles
from engine.job.recovery.plan import Saved, restart_point
from engine.job.recovery.reserve import SharedReserve
from engine.job.recovery.smaller import smaller
from engine.job.reserve import most_gpus
from engine.job.sections.failures import RecoverySettings

HOUR_S = 3600.0


class Lead(RecoveryHost):
    """The leading host's part.

    Parameters
    ----------
    listener : where the other machines' hosts connect; None where all ranks are here.
    reserve : is told which GPUs in reserve are on machines that answer.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        settings: RecoverySettings,
        ranks: Ranks,
        selector: selectors.BaseSelector,
        *,
        history: History,
        emit: Emit,
        listener: socket.socket | None,
        reserve: SharedReserve,
    ) -> None:
        super().__init__(spec, settings, ranks, selector, history=history, phase="gathering")
        self._emit = emit
        self._machines: dict[SelectorChannel[FromFollower], tuple[int, ...]] = {}  # the ranks of each
        self._saved_steps = ranks.held()
        self._saved: Saved | None = None
        self._present = spec  # in the layout of the present attempt, or of the next one
        self._gpus = {a.rank: a for a in spec.gpus}  # that the run holds
        self._reserve = reserve
        self._change: dict[str, Any] = {}  # of the layout, as it is told once all ranks run
        self._current: Attempt | None = None
        self._failure: OpenFailure | None = None
        self._move: LayoutChanged | None = None  # to be made once its checkpoint is there
        self._moving: LayoutChanged | None = None  # under way until all ranks run again
        self._recoveries: deque[float] = deque()
        self._listener: Listener[FromFollower] | None = None
        if listener is not None:
            me = identity_of(spec, spec.first_rank, LISTENERS)
            self._listener = Listener(listener, selector, me, FROM_FOLLOWER, self, silent_s=SILENT_S)

    def trouble(self, dead: Sequence[EndedRank]) -> None:
        """Ranks of this machine ended."""
        if self._phase == "running":
            self._noticed().add(dead)
            self._halt()

    def tick(self) -> None:
        """Go a step further where that is possible now."""
        if self._listener is not None:
            self._listener.tick()
        if self._history.saved != self._saved and self._history.saved is not None:
            self._saved = self._history.saved
            self._tell_all(CheckpointSaved(saved=self._saved))
        if self._phase == "running" and self._can_move():
            self._moving, self._move = self._move, None
            self._end_ranks()
        if self._phase == "halting" and self._ranks.gone():
            if self._failure is not None:
                self._failure.add(self._ranks.peer_lost())
            self._saved_steps.update(self._ranks.held())
            self._phase = "gathering"
        if self._phase == "gathering":
            missing = [a for a in self._present.ranks if a.rank not in self._saved_steps]
            if not missing:
                if self._moving is not None:
                    self._make_move(self._moving)
                self._begin()
            elif time.monotonic() > self._since + self._settings.wait_s:
                nodes = ", ".join(sorted({a.node for a in missing}))
                self._go_on_without(f"no message from {nodes} for {self._settings.wait_s:g} s")

    def runs(self) -> None:
        """All ranks have begun."""
        if self._moving is not None and self._current is not None:
            self._report_move(self._moving, self._current)
        if self._failure is None or self._current is None:
            return
        failed, detail = self._failure.described(self._whole())
        now, attempt = time.time(), self._current
        event = Recovery(
            rank=self._spec.first_rank,
            failed=Failed(failed),
            detail=detail,
            noticed=self._failure.noticed,
            detected_s=round(self._failure.silent_s, 3),
            source=Source(attempt.source),
            iteration=attempt.step,
            lost_s=round(max(0.0, now - (self._history.since(attempt.step) or self._failure.noticed)), 3),
            attempt=attempt.number,
            t=now,
            **self._change,
        )
        self._failure, self._change = None, {}
        self.recoveries.append(_without_job(event))
        self._emit(event)

    def finished(self) -> None:
        """The result is there."""
        self._end(Over())

    def close(self) -> None:
        """Close every connection."""
        self._phase = "over"
        self._machines.clear()
        if self._listener is not None:
            self._listener.close()

    def propose(self, move: LayoutChanged) -> None:
        """Move to another layout as soon as the checkpoint is there with which it begins."""
        if self._phase == "running":
            self._move = move

    def _can_move(self) -> bool:
        saved = self._saved
        return self._move is not None and saved is not None and saved.step >= self._move.iteration

    def _make_move(self, move: LayoutChanged) -> None:
        """Go over to the layout of a move, unless a GPU in reserve that it takes is gone."""
        layout = Layout.of_event(self._whole(), move)
        if not {a.rank for a in layout.ranks} <= set(self._saved_steps):
            self._moving = None
            return
        self._go_over(layout)
        self._change = {"left": move.left, "joined": move.joined, "layout": move.layout}

    def _report_move(self, move: LayoutChanged, attempt: Attempt) -> None:
        """Say what a move cost, now that all ranks run."""
        now = time.time()
        event = move.model_copy(
            update={
                "iteration": attempt.step,
                "source": Source(attempt.source),
                "lost_s": round(max(0.0, now - (self._history.since(attempt.step) or move.t)), 3),
                "attempt": attempt.number,
                "t": now,
            }
        )
        self._moving, self._change = None, {}
        self.layout_changes.append(_without_job(event))
        self._emit(event)

    def _noticed(self) -> OpenFailure:
        if self._failure is None:
            self._failure = OpenFailure(noticed=time.time())
        # Of a layout that is not in force yet nothing remains: its GPUs may be what is lost.
        self._move = self._moving = None
        return self._failure

    def _halt(self) -> None:
        """End all ranks; the run goes on without them unless that has happened too often."""
        now = time.monotonic()
        while self._recoveries and now - self._recoveries[0] > HOUR_S:
            self._recoveries.popleft()
        assert self._failure is not None
        if any(rank.final for rank in self._failure.dead.values()):
            self._give_up(self._failure.described(self._whole())[1])
            return
        if len(self._recoveries) >= self._settings.attempts:
            most = f"after {len(self._recoveries)} recoveries within an hour (recovery.attempts)"
            self._give_up(f"{self._failure.described(self._whole())[1]}; {most}")
            return
        self._recoveries.append(now)
        self._end_ranks()

    def _end_ranks(self) -> None:
        self._phase, self._since = "halting", time.monotonic()
        self._tell_all(Halt())
        self._ranks.kill()

    def _go_on_without(self, why: str) -> None:
        """Go over to a layout on the ranks that are there, where they hold the model."""
        if not self._settings.smaller or not self._attempt:  # nothing has begun yet that could go on
            self._give_up(why)
            return
        done = max(self._history.losses, default=-1) + 1
        ranks = (*self._present.ranks, *self._in_reserve())
        layout = smaller(replace(self._present, ranks=ranks), set(self._saved_steps), done=done)
        if isinstance(layout, Infeasible):
            self._give_up(f"{why}, and the run cannot continue with fewer nodes: {layout.reason}")
            return
        before = self._present
        self._go_over(layout)
        self._change = change(before, self._present, why)
        self._begin()

    def _go_over(self, layout: Layout) -> None:
        """The next attempt has this layout; the memory of another part of the model is of no use."""
        had = roles(self._present)
        self._layout, self._present = layout, layout.applied(self._spec)
        self._gpus |= {a.rank: a for a in layout.ranks if self._gpus[a.rank].stage == NOWHERE}
        has = roles(self._present)
        self._saved_steps.update({rank: () for rank in self._saved_steps if has.get(rank) != had.get(rank)})

    def _begin(self) -> None:
        spec, history = self._present, self._history
        saved = self._saved
        if self._attempt and self._current is None:  # the others had ranks before: this host is a new one
            own = next(a.node for a in spec.ranks if a.rank == spec.first_rank)
            self._noticed().nodes[own] = "its host was started again"
            self._noticed().noticed = self._lost_at or self._noticed().noticed
        point = restart_point(spec, self._saved_steps, saved)
        with listen(spec.rendezvous_host, spec.ports, spec.first_rank) as store:
            self._attempt += 1
            self._current = Attempt(
                number=self._attempt,
                step=point.step,
                source=point.source,
                where=point.where,
                peers=point.peers,
                store_port=store.getsockname()[1],
                saved_step=saved.step if saved else 0,
                validated_step=max(history.validation, default=0),
                retell=point.source in ("memory", "peer") and point.step - 1 not in history.losses,
                layout=self._layout,
            )
            self._phase = "running"
            self._saved_steps.clear()
            self._reserve.write(self._in_reserve())
            self._tell_all(Start(attempt=self._current))
            self._ranks.begin(self._current, store)

    def _give_up(self, why: str) -> None:
        self._end(Fail(why=why))
        self._ranks.give_up(why)

    def _end(self, message: FromLeader) -> None:
        self._tell_all(message)
        self.close()

    def _tell_all(self, message: FromLeader) -> None:
        for machine in list(self._machines):
            machine.send(message)

    # The other machines (selector_driver.Handler).

    def greeted(self, connection: SelectorChannel[FromFollower]) -> None:
        """It knows the secret; its first message is to be a Hello."""

    def handle(self, connection: SelectorChannel[FromFollower], message: FromFollower) -> None:
        """Do what a machine's message asks. Raises ValueError where it makes no sense now."""
        if isinstance(message, Hello):
            self._greet(connection, message)
            return
        ranks = self._machines.get(connection, ())
        if isinstance(message, Halted):
            _check(ranks, message.peer_lost)
            if self._failure is not None:
                self._failure.add(message.peer_lost)
            self._report(ranks, message)
            return
        _check(ranks, message.dead)
        if self._phase == "running":
            self._noticed().add(message.dead)
            self._halt()

    def lost(self, connection: SelectorChannel[FromFollower], why: str) -> None:
        """A machine is gone, and its memory with it."""
        ranks = self._machines.pop(connection, ())
        for rank in ranks:
            self._saved_steps.pop(rank, None)
        self._reserve.write(self._in_reserve())
        if not self._needs(ranks) or self._phase == "over":
            return
        nodes = {self._gpus[rank].node for rank in ranks}
        self._noticed().nodes.update(dict.fromkeys(nodes, why))
        if self._phase == "running":
            self._halt()

    def _greet(self, connection: SelectorChannel[FromFollower], message: Hello) -> None:
        ranks = message.ranks
        self._take_in(message)
        others = set(self._gpus) - set(self._spec.local)
        if ranks[0] != connection.rank or not set(ranks) <= others or connection in self._machines:
            raise ValueError("its ranks are not those of another machine of this run")
        for before in [other for other, its in self._machines.items() if set(its) & set(ranks)]:
            before.close()
            self.lost(before, "its host was started again")
        self._machines[connection] = ranks
        connection.send(Welcome())
        self._report(ranks, message)
        if not self._needs(ranks):
            if most_gpus(self._spec.job) is None:
                connection.send(Leave(why=NOT_NEEDED))
            self._reserve.write(self._in_reserve())
            return
        if self._phase == "running":  # its ranks are not there: the others cannot go on
            self._noticed()
            self._halt()

    def _take_in(self, message: Hello) -> None:
        """Note GPUs in reserve that came to the run after its launch. Raises ValueError where it may not."""
        new = {a.rank: a for a in message.reserve if a.rank not in self._gpus}
        names = [dc.name for dc in self._spec.job.datacenters]
        if any(a.dc >= len(names) or a.dc_name != names[a.dc] for a in new.values()):
            raise ValueError("its GPUs are in no data centre of this run")
        if len(self._gpus) + len(new) > (most_gpus(self._spec.job) or 0) and new:
            raise ValueError("the run may hold no more GPUs (failures.adapt.most_gpus)")
        self._gpus |= new

    def _whole(self) -> LaunchSpec:
        """The run with every GPU that it holds or held as a rank; those of the launch as they were then."""
        return replace(self._spec, ranks=tuple(self._gpus.values()), reserve=())

    def _in_reserve(self) -> tuple[RankAssignment, ...]:
        """GPUs that no rank of the present layout computes on, of machines that answer."""
        if most_gpus(self._spec.job) is None:
            return ()
        used = {a.rank for a in self._present.ranks}
        here = set(self._spec.local).union(*self._machines.values())
        return tuple(
            replace(a, pipeline=NOWHERE, stage=NOWHERE)
            for rank, a in sorted(self._gpus.items())
            if rank in here and rank not in used
        )

    def _report(self, ranks: tuple[int, ...], report: MachineState) -> None:
        if not set(report.held) <= set(ranks):
            raise ValueError("it reports the memory of ranks that are not its own")
        if report.layout is not None and report.attempt > self._attempt:  # this host is a new one
            self._layout = report.layout
            self._present = self._layout.applied(self._spec)
        self._saved_steps.update(report.held)
        self._attempt = max(self._attempt, report.attempt)
        self._lost_at = max(self._lost_at, report.lost_at)
        if report.saved is not None:
            self._saved = max((s for s in (self._saved, report.saved) if s), key=lambda s: s.step)

    def _needs(self, ranks: tuple[int, ...]) -> bool:
        """Whether the present layout has ranks of a machine."""
        return any(a.rank in ranks for a in self._present.ranks)


def _check(ranks: tuple[int, ...], dead: Sequence[EndedRank]) -> None:
    if not ranks:
        raise ValueError("it sent a message before its hello")
    if not {rank.rank for rank in dead} <= set(ranks):
        raise ValueError("it reports the end of ranks that are not its own")


def _without_job(event: Recovery | LayoutChanged) -> dict[str, Any]:
    """What the result keeps of an event: not the whole document of the new layout, nor its times."""
    of_layout = {"job", "position_of_rank"}
    left_out: Any = {"kind": True, "rank": True, "times": True, "conditions": True, "layout": of_layout}
    return event.model_dump(mode="json", exclude=left_out)
