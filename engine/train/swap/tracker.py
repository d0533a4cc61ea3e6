"""The tracker of a swap run: hands out mini-batches, watches workers, starts sums and steps.

It lives in the host process of one machine, inside that process's one selector: no thread, no tensor. What it
decides goes into a log that other machines keep too (replica); a step is committed once it counts there. If
the tracker is lost, one of them makes a new one, to which the workers that are left say what they have
(takeover).

A global batch is over when every unit is in the gradients of a worker that is there (ledger); then
those workers sum what they have. The sum counts only once all of them have it (commit): until then each keeps
its own gradients, so a worker that is lost on the way costs its units, which the others do again, and another
sum. Between two batches workers join, taking over weights and moments from one that is there, and leave.

ATOM §III-E does this with a distributed hash table and heartbeats; its workers' counts are our ledger.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.control.selector_driver import SelectorChannel
from engine.job.events.base import Emit
from engine.job.events.training import Boundary
from engine.job.launch import LaunchSpec
from engine.job.losses import bits_per_byte
from engine.train.boundary import Flag
from engine.train.swap.journal import Changed, Committed, Journal, Measured, Over, Record, Stepped
from engine.train.swap.ledger import Ledger
from engine.train.swap.messages import (
    Abort,
    Address,
    Admit,
    Admitted,
    Bye,
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
    ToReplica,
    Voted,
)
from engine.train.swap.takeover import resumed

SILENT_S = 20.0  # a worker that says nothing for so long is lost; it beats every second
RETRY_S = 1.0  # after a sum that failed though nobody is lost yet: the one who is may be noticed by then
MOST_RETRIES = 3
TICK_S = 1.0
RETURN_S = 15.0  # a worker that has not found the new tracker by then is lost; it may notice 4 s later


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """A worker that has said hello. `idle`: it has reported that it is ready."""

    connection: SelectorChannel[ToReplica]
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
    me : the rank that speaks for this machine. emit : takes events.
    start : starts the process of a rank that is to join now.
    stop_flag : one byte, set to end the run after the step at hand.
    journal : the records that count. propose : adds one, which `counts` is told once it counts.
    awaited : of a tracker that succeeds another, the workers that may still be there; None: the first one.

    Attributes
    ----------
    failure : why the run cannot go on, where it cannot.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        me: int,
        *,
        emit: Emit,
        start: Callable[[int], None],
        stop_flag: Flag,
        tokens_per_byte: Callable[[int], float | None],
        journal: Journal,
        propose: Callable[[Record], None],
        awaited: Iterable[int] | None = None,
    ) -> None:
        assert spec.job.swap_strategy is not None
        self._spec, self._job, self._swap, self._me = spec, spec.job, spec.job.swap_strategy, me
        self._emit, self._start, self._stop_flag = emit, start, stop_flag
        self._tokens_per_byte = tokens_per_byte
        self._journal, self._propose = journal, propose
        self._units = self._job.cell.global_batch // self._job.cell.micro_batch
        self._waiting: dict[int, Worker] = {}
        self._members: dict[int, Worker] = {}
        self._ledger = Ledger(0, ())
        self._phase = "gathering" if awaited is None else "returning"
        self._awaited = set(awaited or ())
        self._hellos: dict[int, Hello] = {}  # of those that have returned
        self._return_at = time.monotonic() + RETURN_S
        self._step = 0
        self._stepped = journal.stepped  # the last step whose loss was said
        self._epoch = 1
        self._retries = 0
        self._retry_at = math.inf
        self._last = journal.committed is not None and journal.committed.last
        self._may_begin = False
        self._joining: list[int] = []  # members that do not have the weights yet
        self._workers: dict[SelectorChannel[ToReplica], Worker] = {}
        self._seeking: dict[SelectorChannel[ToReplica], int] = {}  # connected, and busy with older messages
        self.failure: str | None = None

    @property
    def awaits(self) -> bool:
        """Whether workers, on whatever machine, are at work."""
        return self._phase == "returning" or (self._phase != "gathering" and bool(self._members))

    def survives(self, rank: int) -> bool:
        """Whether the run goes on without `rank`: it has begun, and others are there or done."""
        others = any(other != rank for other in self._members) or bool(self._journal.measured)
        return self._phase == "returning" or (self._phase != "gathering" and others)

    def deadline(self) -> float:
        """When `tick` is to be called at the latest (time.monotonic())."""
        return min(time.monotonic() + TICK_S, self._retry_at)

    def tick(self) -> None:
        """Sum again where a sum has failed; go on without those that do not return."""
        if time.monotonic() >= self._retry_at:
            self._retry_at = math.inf
            self._abort()
        if self._phase == "returning" and time.monotonic() >= self._return_at:
            self._awaited &= {*self._hellos, *self._seeking.values()}
            self._if_returned()

    def begin(self) -> None:
        """Begin the first batch once all workers are there."""
        self._may_begin = True
        self._if_gathered()

    # What connections tell.

    def connections(self) -> list[SelectorChannel[ToReplica]]:
        """Those of workers."""
        return [*self._workers, *self._seeking]

    def sought(self, connection: SelectorChannel[ToReplica]) -> None:
        """A worker has found this tracker; it says hello once it has done what it was told before."""
        self._seeking[connection] = connection.rank

    def handle(self, connection: SelectorChannel[ToReplica], message: FromWorker) -> None:
        """Do what a worker's message asks. Raises ValueError where it makes no sense now."""
        worker = self._workers.get(connection)
        if isinstance(message, Hello):
            self._greet(connection, message)
            return
        if worker is None:
            raise ValueError("it sent a message before its hello")
        if isinstance(message, Stats):
            self._on_stats(worker, message)
            return
        if self._members.get(worker.rank) is not worker:
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

    def lost(self, connection: SelectorChannel[ToReplica]) -> None:
        """A connection has ended: what its worker had is to be done again."""
        self._seeking.pop(connection, None)
        worker = self._workers.pop(connection, None)
        if worker is None:
            return
        self._waiting.pop(worker.rank, None)
        if self._members.get(worker.rank) is not worker:
            return
        del self._members[worker.rank]
        if self._phase == "ending":
            self._if_over()
        elif self._phase == "returning":
            del self._hellos[worker.rank]
        elif self._phase != "gathering" and self._members:
            self._note_change(lost=[worker.rank])
            self._go_on_without(worker.rank)

    def _greet(self, connection: SelectorChannel[ToReplica], message: Hello) -> None:
        rank = connection.rank
        known = {assignment.rank for assignment in self._spec.ranks}
        if rank not in known or rank in self._members or rank in self._waiting or connection in self._workers:
            raise ValueError("it is not a worker of this run, or a second one of its rank")
        self._seeking.pop(connection, None)
        worker = self._workers[connection] = Worker(connection=connection, rank=rank, address=message.address)
        if rank in self._journal.measured:
            worker.send(Bye())
        elif rank in self._journal.gone:
            worker.send(Leave())
        elif self._phase in ("ending", "over"):
            worker.send(End())
        elif self._phase == "gathering" and rank < self._job.cell.pipelines and message.step is not None:
            self._step = message.step
            self._members[rank] = worker
            worker.idle = True
            self._if_gathered()
        elif message.going:
            self._awaited.discard(rank)
            worker.send(Leave())
            self._if_returned()
        elif self._phase == "returning" and rank in self._awaited and message.step is not None:
            self._members[rank], self._hellos[rank] = worker, message
            self._if_returned()
        elif message.step is None:
            self._waiting[rank] = worker
        else:  # it was away for too long: its work is another's by now
            worker.send(Leave())

    # What workers say.

    def _on_ready(self, worker: Worker, message: Ready) -> None:
        """It has taken step `step` − 1, or over the weights with which `step` begins."""
        if self._phase == "stepping" and self._stepped < self._step:
            if message.loss is None or message.grad_norm is None:
                raise ValueError("it took a step without reporting its loss and norm")
            self._say_step(self._step, message.loss, message.grad_norm)
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
        self._members.pop(worker.rank, None)
        self._propose(Measured(rank=worker.rank, stats=message.stats))

    def _go_on_without(self, rank: int) -> None:
        if self._phase == "committing":  # those that are left have the sum
            return
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

    # What counts.

    def counts(self, record: Record) -> None:
        """A record counts now, and is in the journal: do what waited for it."""
        match record:
            case Committed():
                if self._phase == "committing":
                    self._phase = "stepping"
                    self._tell_commit(self._members.values(), record)
            case Measured(rank=rank):
                for worker in self._workers.values():
                    if worker.rank == rank:
                        worker.send(Bye())
                self._if_over()
            case Over():
                self._phase = "over"

    def _tell_commit(self, workers: Iterable[Worker], record: Committed) -> None:
        workers = list(workers)
        saver = min((worker.rank for worker in workers), default=0)
        for worker in workers:
            worker.idle = False
            worker.send(Commit(step=record.step, saver=saver, last=record.last))

    # A new tracker.

    def _if_returned(self) -> None:
        """Go on from where the workers are, once all that may return have."""
        if self._phase != "returning" or not self._awaited <= set(self._hellos):
            return
        if not self._hellos:
            self._return_to_nobody()
            return
        state = resumed(self._journal, self._hellos)
        for rank in state.let_go:
            self._members.pop(rank).send(Leave())
        self._epoch, self._step = state.epoch, state.step
        if state.loss is not None and self._stepped < state.step - 1:
            self._say_step(state.step - 1, *state.loss)
        self._phase = "batch"
        if set(self._members) != set(self._journal.workers):
            self._note_change(lost=sorted(set(self._journal.workers) - set(self._members)))
        self._ledger = Ledger(self._units, self._members, state.units)
        for rank, worker in self._members.items():
            worker.idle = True
            if rank not in state.behind:
                worker.send(Abort())
        if state.behind:
            assert self._journal.committed is not None
            self._step -= 1
            self._phase = "stepping"
            self._tell_commit([self._members[rank] for rank in state.behind], self._journal.committed)
        elif any(state.units.values()):
            self._advance()
        else:
            self._between_batches()

    def _return_to_nobody(self) -> None:
        if self._last and self._journal.measured:  # they had ended, and said so
            self._propose(Over())
        else:
            self.failure = "no worker is left that has the weights"

    # A batch.

    def _if_gathered(self) -> None:
        if self._phase == "gathering" and self._may_begin and len(self._members) == self._job.cell.pipelines:
            self._begin_batch()

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
        self._phase = "committing"
        self._last = bool(self._stop_flag[0]) or self._step + 1 == self._job.optimizer.steps
        units = {str(rank): tuple(units) for rank, units in self._ledger.brought().items()}
        self._propose(
            Committed(
                step=self._step, epoch=self._epoch, units=units, redone=self._ledger.redone, last=self._last
            )
        )

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
                self._emit(Boundary(rank=self._me, iteration=self._step - 1, t=time.time()))
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
            self._propose(Over())

    # Records.

    def _say_step(self, step: int, loss: float, grad_norm: float) -> None:
        self._stepped = step
        bits = bits_per_byte(loss, self._tokens_per_byte(step))
        self._propose(Stepped(step=step, loss=loss, grad_norm=grad_norm, bits_per_byte=bits))

    def _note_change(
        self, *, joined: Iterable[int] = (), left: Iterable[int] = (), lost: Iterable[int] = ()
    ) -> None:
        record = Changed(
            step=self._step,
            workers=tuple(sorted(self._members)),
            joined=tuple(joined) or None,
            left=tuple(left) or None,
            lost=tuple(lost) or None,
        )
        self._propose(record)
