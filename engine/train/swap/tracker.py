"""The tracker of a swap run: hands out mini-batches, watches workers, starts sums and steps.

It lives in the host process of the first rank's machine, inside that process's one selector: no thread, no
tensor. A global batch is over when every unit is in the gradients of a worker that is there (ledger); then
those workers sum what they have. The sum counts only once all of them have it (commit): until then each keeps
its own gradients, so a worker that is lost on the way costs its units, which the others do again, and another
sum. Between two batches workers join, taking over weights and moments from one that is there, and leave.

ATOM §III-E does this with a distributed hash table and heartbeats; its workers' counts are our ledger.
"""

import math
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from engine.control.identity import identity_of
from engine.control.selector_driver import Listener, SelectorChannel
from engine.job.events.base import Emit
from engine.job.events.training import Batch, Boundary, Workers
from engine.job.launch import LaunchSpec
from engine.job.losses import bits_per_byte, step_event
from engine.train.swap.ledger import Ledger
from engine.train.swap.messages import (
    FROM_WORKER,
    LISTENERS,
    Abort,
    Address,
    Admit,
    Admitted,
    Commit,
    Done,
    End,
    Failed,
    FromTracker,
    FromWorker,
    Hello,
    Leave,
    Member,
    Ready,
    Stats,
    Sum,
    Take,
    Voted,
)

SILENT_S = 20.0  # a worker that says nothing for so long is lost; it beats every second
RETRY_S = 1.0  # after a sum that failed though nobody is lost yet: the one who is may be noticed by then
MOST_RETRIES = 3
TICK_S = 1.0


class Flag(Protocol):
    """A byte that the host sets."""

    def __getitem__(self, index: int, /) -> int: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """A worker that has said hello. `idle`: it has reported that it is ready."""

    connection: SelectorChannel[FromWorker]
    rank: int
    address: Address
    idle: bool = False
    voted: bool = False

    def send(self, message: FromTracker) -> None:
        """Tell it something. No call of the tracker's waits for a worker, or loses one."""
        self.connection.send(message)


class Tracker:
    """The tracker of a run.

    Parameters
    ----------
    emit : takes events. start : starts the process of a rank that is to join now.
    stop_flag : one byte, set to end the run after the step at hand.

    Attributes
    ----------
    failure : why the run cannot go on, where it cannot.
    stats : what each worker measured, once it is done.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        *,
        emit: Emit,
        start: Callable[[int], None],
        stop_flag: Flag,
        tokens_per_byte: Callable[[int], float | None],
    ) -> None:
        assert spec.job.swap_strategy is not None
        self._spec, self._job, self._swap = spec, spec.job, spec.job.swap_strategy
        self._emit, self._start, self._stop_flag = emit, start, stop_flag
        self._tokens_per_byte = tokens_per_byte
        self._units = self._job.cell.global_batch // self._job.cell.micro_batch
        self._waiting: dict[int, Worker] = {}
        self._members: dict[int, Worker] = {}
        self._ledger = Ledger(0, ())
        self._phase = "gathering"
        self._step = 0
        self._reported = -1  # last step whose loss is known
        self._epoch = 1
        self._retries = 0
        self._retry_at = math.inf
        self._last = False  # whether the run ends after the step at hand
        self._joining: list[int] = []  # members that do not have the weights yet
        self.failure: str | None = None
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.bits: list[float | None] = []
        self.redone = 0
        self.changes: list[dict[str, Any]] = []
        self.stats: dict[int, dict[str, Any]] = {}
        self._workers: dict[SelectorChannel[FromWorker], Worker] = {}
        me = identity_of(spec, spec.first_rank, LISTENERS)
        self._listener = Listener(listener, selector, me, FROM_WORKER, self, silent_s=SILENT_S)

    @property
    def over(self) -> bool:
        """Whether all steps are done and every worker that is there has given its figures."""
        return self._phase == "over"

    @property
    def awaits(self) -> bool:
        """Whether workers, on whatever machine, are at work."""
        return self._phase not in ("gathering", "over") and bool(self._members)

    def survives(self, rank: int) -> bool:
        """Whether the run goes on without `rank`: it has begun, and others are there or done."""
        others = any(other != rank for other in self._members) or bool(self.stats)
        return self._phase != "gathering" and others

    def deadline(self) -> float:
        """When `tick` is to be called at the latest (time.monotonic())."""
        return min(time.monotonic() + TICK_S, self._retry_at)

    def tick(self) -> None:
        """Drop who is silent; sum again where a sum has failed."""
        self._listener.tick()
        if time.monotonic() >= self._retry_at:
            self._retry_at = math.inf
            self._abort()

    def close(self) -> None:
        """Close every connection."""
        self._listener.close()

    # What connections tell (selector_driver.Handler).

    def greeted(self, connection: SelectorChannel[FromWorker]) -> None:
        """It knows the secret; its first message is to be a Hello."""

    def handle(self, connection: SelectorChannel[FromWorker], message: FromWorker) -> None:
        """Do what a worker's message asks. Raises ValueError where it makes no sense now."""
        worker = self._workers.get(connection)
        if isinstance(message, Hello):
            self._greet(connection, message)
            return
        if worker is None:
            raise ValueError("it says something before it has said hello")
        if self._members.get(worker.rank) is not worker and not isinstance(message, Stats):
            raise ValueError("it takes no part in this step")
        match message:
            case Ready():
                self._on_ready(worker, message)
            case Done():
                self._on_done(worker, message)
            case Voted():
                self._on_voted(worker, message)
            case Failed():
                self._on_failed(message)
            case Stats():
                self._on_stats(worker, message)

    def lost(self, connection: SelectorChannel[FromWorker], why: str) -> None:
        """A connection has ended: what its worker had is to be done again."""
        worker = self._workers.pop(connection, None)
        if worker is None:
            return
        self._waiting.pop(worker.rank, None)
        if self._members.get(worker.rank) is not worker:
            return
        del self._members[worker.rank]
        if self._phase == "ending":
            self._if_over()
        elif self._phase != "gathering" and self._members:
            self._note_change(lost=[worker.rank])
            self._go_on_without(worker.rank)

    def _greet(self, connection: SelectorChannel[FromWorker], message: Hello) -> None:
        rank = connection.rank
        known = {assignment.rank for assignment in self._spec.ranks}
        there = rank in self._members or rank in self._waiting or rank in self.stats
        if rank not in known or there or connection in self._workers:
            raise ValueError("it is not a worker of this run, or a second one of its rank")
        worker = self._workers[connection] = Worker(connection=connection, rank=rank, address=message.address)
        if self._phase in ("ending", "over"):
            worker.send(End())
        elif self._phase == "gathering" and rank < self._job.cell.pipelines:
            self._step = message.step
            self._members[rank] = worker
            worker.idle = True
            if len(self._members) == self._job.cell.pipelines:
                self._begin_batch()
        else:
            self._waiting[rank] = worker

    # What workers say.

    def _on_ready(self, worker: Worker, message: Ready) -> None:
        """It has taken step `step` − 1, or over the weights with which `step` begins."""
        if self._phase == "stepping" and self._reported < self._step:
            if message.loss is None or message.grad_norm is None:
                raise ValueError("it took a step and does not say its loss and norm")
            self._reported = self._step
            self.losses.append(message.loss)
            self.norms.append(message.grad_norm)
            self._say_step(message.loss, message.grad_norm)
        worker.idle = True
        self._if_all_idle()

    def _on_done(self, worker: Worker, message: Done) -> None:
        self._ledger.bring(worker.rank, message.units)
        worker.idle = True
        self._advance()

    def _on_voted(self, worker: Worker, message: Voted) -> None:
        if message.epoch != self._epoch or self._phase not in ("summing", "admitting"):
            return
        worker.voted = True
        self._if_all_voted()

    def _on_failed(self, message: Failed) -> None:
        if message.epoch != self._epoch or self._phase not in ("summing", "admitting"):
            return
        self._retries += 1
        if self._retries > MOST_RETRIES:
            self.failure = f"step {self._step}: {MOST_RETRIES + 1} sums failed; the last: {message.why}"
        self._retry_at = min(self._retry_at, time.monotonic() + RETRY_S)

    def _on_stats(self, worker: Worker, message: Stats) -> None:
        self.stats[worker.rank] = message.stats
        self._members.pop(worker.rank, None)
        self._if_over()

    def _go_on_without(self, rank: int) -> None:
        self._epoch += 1
        self._retries = 0
        if rank in self._ledger.workers:
            self._ledger.lose(rank)
        if self._phase in ("summing", "admitting"):
            self._abort()
        elif self._phase == "batch":
            self._advance()
        else:
            self._if_all_idle()

    # A batch.

    def _begin_batch(self) -> None:
        self._phase, self._retries, self._joining = "batch", 0, []
        self._ledger = Ledger(self._units, self._members)
        self._advance()

    def _advance(self) -> None:
        """Hand out what is free; when all is brought in, sum."""
        if self._phase != "batch":
            return
        if self._ledger.complete and all(worker.idle for worker in self._members.values()):
            self._collect("summing")
            return
        for rank, worker in sorted(self._members.items()):
            if not worker.idle or self._ledger.holds(rank):
                continue
            idle = sum(w.idle for w in self._members.values())
            units = self._ledger.take(rank, self._job.cell.microbatches, idle)
            if units:
                worker.idle = False
                worker.send(Take(step=self._step, units=units))

    def _collect(self, phase: str) -> None:
        """Let the members sum: gradients (summing), or the weights of one to those that join (admitting)."""
        self._phase, self._retry_at = phase, math.inf
        members = tuple(
            Member(rank=rank, **dict(worker.address)) for rank, worker in sorted(self._members.items())
        )
        what: Sum | Admit
        if phase == "summing":
            what = Sum(step=self._step, epoch=self._epoch, members=members)
        else:
            source = min(self._settled())
            what = Admit(step=self._step, epoch=self._epoch, members=members, source=source)
        for worker in self._members.values():
            worker.voted, worker.idle = False, False
            worker.send(what)

    def _abort(self) -> None:
        """The sum at hand is void: nobody has to have it, and all are free for another."""
        admitting = self._phase == "admitting"
        self._epoch += 1
        for worker in self._members.values():
            worker.idle = True
            worker.send(Abort())
        if not admitting:
            self._phase = "batch"
            self._advance()
        else:
            self._admit()

    def _if_all_voted(self) -> None:
        if not all(worker.voted for worker in self._members.values()):
            return
        self._retries, self._retry_at = 0, math.inf
        if self._phase == "admitting":
            self._phase = "settled"
            for worker in self._members.values():
                worker.send(Admitted(step=self._step))
            return
        self._phase = "stepping"
        self.redone += self._ledger.redone
        self._say_batch()
        self._last = bool(self._stop_flag[0]) or self._step + 1 == self._job.optimizer.steps
        saver = min(self._members)
        for worker in self._members.values():
            worker.send(Commit(step=self._step, saver=saver, last=self._last))

    def _if_all_idle(self) -> None:
        if not all(worker.idle for worker in self._members.values()):
            return
        if self._phase == "settled":
            self._begin_batch()
        elif self._phase == "stepping":
            self._step += 1
            self._between_batches()

    # Between two batches.

    def _between_batches(self) -> None:
        if self._last:
            if self._step < self._job.optimizer.steps:
                rank = self._spec.first_rank
                self._emit(Boundary(rank=rank, iteration=self._step - 1, t=time.time()))
            self._end()
            return
        for index, joins in enumerate(self._swap.joins):
            if joins.after_step == self._step:
                self._start(self._job.cell.pipelines + index)
        left = self._let_go()
        self._joining = sorted(self._waiting)
        self._members.update(self._waiting)
        self._waiting.clear()
        if left or self._joining:
            self._epoch += 1
            self._note_change(left=left, joined=self._joining)
        self._admit()

    def _admit(self) -> None:
        """Let those that join take over the weights of one that is there; then the batch begins."""
        there = len(self._settled())
        if not there:
            self.failure = "every worker that had the weights was lost while others joined"
        elif there == len(self._members):
            self._begin_batch()
        else:
            self._collect("admitting")

    def _settled(self) -> list[int]:
        return [rank for rank in self._members if rank not in self._joining]

    def _let_go(self) -> list[int]:
        """Tell those to leave whose time it is; one always stays."""
        due = [leaves.worker for leaves in self._swap.leaves if leaves.after_step == self._step]
        going = [rank for rank in due if rank in self._members]
        going = going[: len(self._members) - 1]
        for rank in going:
            self._members.pop(rank).send(Leave())
        return going

    def _end(self) -> None:
        self._phase = "ending"
        for worker in [*self._members.values(), *self._waiting.values()]:
            worker.send(End())

    def _if_over(self) -> None:
        if self._phase == "ending" and not self._members:
            self._phase = "over"

    # Events.

    def _say_step(self, loss: float, grad_norm: float) -> None:
        bits = bits_per_byte(loss, self._tokens_per_byte(self._step))
        self.bits.append(bits)
        self._emit(step_event(self._job, self._step, loss, grad_norm, time.time(), bits_per_byte=bits))

    def _say_batch(self) -> None:
        units = {str(rank): tuple(units) for rank, units in self._ledger.brought().items()}
        self._emit(Batch(iteration=self._step, units=units, redone=self._ledger.redone, t=time.time()))

    def _note_change(
        self, *, joined: Iterable[int] = (), left: Iterable[int] = (), lost: Iterable[int] = ()
    ) -> None:
        event = Workers(
            step=self._step,
            workers=tuple(sorted(self._members)),
            joined=tuple(joined) or None,
            left=tuple(left) or None,
            lost=tuple(lost) or None,
            t=time.time(),
        )
        self.changes.append(event.model_dump(mode="json", exclude={"kind", "t"}))
        self._emit(event)
