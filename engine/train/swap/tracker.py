"""The tracker of a swap run: hands out mini-batches, watches workers, starts sums and steps.

It lives in the host process of the first rank's machine, inside that process's one selector: no thread, no
tensor. A global batch is over when every unit is in the gradients of a worker that is there (ledger); then
those workers sum what they have. The sum counts only once all of them have it (commit): until then each keeps
its own gradients, so a worker that is lost on the way costs its units, which the others do again, and another
sum. Between two batches workers join, taking over weights and moments from one that is there, and leave.

ATOM §III-E does this with a distributed hash table and heartbeats; its workers' counts are our ledger.
"""

import math
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.control.lines import Lines, Message, encode, mac, tuned
from engine.job.launch import LaunchSpec
from engine.train.swap.ledger import Ledger

SILENT_S = 20.0  # a worker that says nothing for so long is lost; it beats every second
RETRY_S = 1.0  # after a sum that failed though nobody is lost yet: the one who is may be noticed by then
MOST_RETRIES = 3
TICK_S = 1.0


class Flag(Protocol):
    """A byte that the host sets."""

    def __getitem__(self, index: int, /) -> int: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """One connection. `idle`: the worker has reported that it is ready."""

    socket: socket.socket
    nonce: str
    heard: float
    lines: Lines = field(default_factory=Lines)
    rank: int = -1  # until it has said who it is
    address: dict[str, Any] = field(default_factory=dict)
    idle: bool = False
    voted: bool = False
    stats: dict[str, Any] | None = None


class Tracker:
    """The tracker of a run.

    Parameters
    ----------
    say : takes events. start : starts the process of a rank that is to join now.
    asked : one byte, set to end the run after the step at hand.

    Attributes
    ----------
    failure : why the run cannot go on, where it cannot.
    stats : what each worker measured, once it is done.
    """

    def __init__(
        self, spec: LaunchSpec, listener: socket.socket, selector: selectors.BaseSelector, *,
        say: Callable[[dict[str, Any]], None], start: Callable[[int], None], asked: Flag,
    ) -> None:  # fmt: skip
        assert spec.job.swap is not None
        self._spec, self._job, self._swap = spec, spec.job, spec.job.swap
        self._listener, self._selector = listener, selector
        self._say, self._start, self._asked = say, start, asked
        self._units = self._job.global_batch // self._job.micro_batch
        self._connections: set[Worker] = set()
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
        self.redone = 0
        self.changes: list[dict[str, Any]] = []
        self.stats: dict[int, dict[str, Any]] = {}
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    @property
    def files(self) -> list[int]:
        """The descriptors that only this process is to hold."""
        return [self._listener.fileno(), *(worker.socket.fileno() for worker in self._connections)]

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
        now = time.monotonic()
        for worker in [w for w in self._connections if now - w.heard > SILENT_S]:
            self._gone(worker)
        if now >= self._retry_at:
            self._retry_at = math.inf
            self._abort()

    def close(self) -> None:
        """Close every connection."""
        self._drop(self._listener)
        for worker in list(self._connections):
            self._drop(worker.socket)
        self._connections.clear()

    # Connections.

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        worker = Worker(socket=tuned(connection), nonce=secrets.token_hex(16), heard=time.monotonic())
        self._connections.add(worker)
        # A message is far smaller than a socket's buffer, and a worker reads all the time: no send blocks.
        connection.settimeout(SILENT_S)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(worker))
        self._tell(worker, "nonce", nonce=worker.nonce)

    def _read(self, worker: Worker) -> None:
        try:
            data = worker.socket.recv(1 << 16)
            messages = worker.lines.feed(data)
            if not data:
                raise ConnectionError
            worker.heard = time.monotonic()
            for message in messages:
                if worker in self._connections:
                    self._hear(worker, message)
        except (OSError, ValueError, KeyError, TypeError):
            self._gone(worker)

    def _hear(self, worker: Worker, message: Message) -> None:
        op = message["op"]
        if worker.rank < 0:
            self._greet(worker, message)
        elif op in ("ready", "done", "voted", "failed", "stats"):
            getattr(self, f"_on_{op}")(worker, message)

    def _tell(self, worker: Worker, op: str, **fields: Any) -> None:
        try:
            worker.socket.sendall(encode({"op": op, **fields}))
        except OSError:
            worker.heard = (
                -math.inf
            )  # the next tick drops it: nobody is dropped in the middle of a round of calls

    def _drop(self, connection: socket.socket) -> None:
        if connection.fileno() >= 0:
            self._selector.unregister(connection)
            connection.close()

    def _greet(self, worker: Worker, message: Message) -> None:
        rank, spec = int(message["rank"]), self._spec
        mine = mac(spec.secret, spec.run, spec.generation, rank, worker.nonce)
        known = {assignment.rank for assignment in spec.ranks}
        there = rank in self._members or rank in self._waiting or rank in self.stats
        if not secrets.compare_digest(mine, str(message["mac"])) or rank not in known or there:
            raise ValueError("not a worker of this run")
        worker.rank, worker.address = rank, message["address"]
        if self._phase in ("ending", "over"):
            self._tell(worker, "end")
        elif self._phase == "gathering" and rank < self._job.pipelines:
            self._step = int(message["step"])
            self._members[rank] = worker
            worker.idle = True
            if len(self._members) == self._job.pipelines:
                self._begin_batch()
        else:
            self._waiting[rank] = worker

    # What workers say.

    def _on_ready(self, worker: Worker, message: Message) -> None:
        """It has taken step `step` − 1, or over the weights with which `step` begins."""
        if self._phase == "stepping" and self._reported < self._step:
            self._reported = self._step
            self.losses.append(message["loss"])
            self.norms.append(message["grad_norm"])
            self._say_step(message)
        worker.idle = True
        self._if_all_idle()

    def _on_done(self, worker: Worker, message: Message) -> None:
        self._ledger.bring(worker.rank, tuple(message["units"]))
        worker.idle = True
        self._advance()

    def _on_voted(self, worker: Worker, message: Message) -> None:
        if message["epoch"] != self._epoch or self._phase not in ("summing", "admitting"):
            return
        worker.voted = True
        self._if_all_voted()

    def _on_failed(self, worker: Worker, message: Message) -> None:
        if message["epoch"] != self._epoch or self._phase not in ("summing", "admitting"):
            return
        self._retries += 1
        if self._retries > MOST_RETRIES:
            self.failure = f"step {self._step}: {MOST_RETRIES + 1} sums failed; the last: {message['why']}"
        self._retry_at = min(self._retry_at, time.monotonic() + RETRY_S)

    def _on_stats(self, worker: Worker, message: Message) -> None:
        self.stats[worker.rank] = message["stats"]
        self._members.pop(worker.rank, None)
        self._if_over()

    def _gone(self, worker: Worker) -> None:
        """A connection has ended: what its worker had is to be done again."""
        if worker not in self._connections:
            return
        self._connections.discard(worker)
        self._drop(worker.socket)
        self._waiting.pop(worker.rank, None)
        if self._members.get(worker.rank) is not worker:
            return
        del self._members[worker.rank]
        if self._phase == "ending":
            self._if_over()
        elif self._phase != "gathering" and self._members:
            self._note_change(lost=[worker.rank])
            self._go_on_without(worker.rank)

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
            units = self._ledger.take(rank, self._job.microbatches, idle)
            if units:
                worker.idle = False
                self._tell(worker, "take", step=self._step, units=units)

    def _collect(self, phase: str) -> None:
        """Let the members sum: gradients (summing), or the weights of one to those that join (admitting)."""
        self._phase, self._retry_at = phase, math.inf
        members = [{"rank": rank, **w.address} for rank, w in sorted(self._members.items())]
        for worker in self._members.values():
            worker.voted, worker.idle = False, False
            self._tell(
                worker, "sum" if phase == "summing" else "admit", step=self._step, epoch=self._epoch,
                members=members,
                source=min(self._settled()),
            )  # fmt: skip

    def _abort(self) -> None:
        """The sum at hand is void: nobody has to have it, and all are free for another."""
        admitting = self._phase == "admitting"
        self._epoch += 1
        for worker in self._members.values():
            worker.idle = True
            self._tell(worker, "abort")
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
                self._tell(worker, "admitted", step=self._step)
            return
        self._phase = "stepping"
        self.redone += self._ledger.redone
        self._say_batch()
        self._last = bool(self._asked[0]) or self._step + 1 == self._job.steps
        saver = min(self._members)
        for worker in self._members.values():
            self._tell(worker, "commit", step=self._step, saver=saver, last=self._last)

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
            if self._step < self._job.steps:
                rank = self._spec.first_rank
                self._say({"kind": "boundary", "rank": rank, "iteration": self._step - 1, "t": time.time()})
            self._end()
            return
        for index, joins in enumerate(self._swap.joins):
            if joins.after_step == self._step:
                self._start(self._job.pipelines + index)
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
            self._tell(self._members.pop(rank), "leave")
        return going

    def _end(self) -> None:
        self._phase = "ending"
        for worker in [*self._members.values(), *self._waiting.values()]:
            self._tell(worker, "end")

    def _if_over(self) -> None:
        if self._phase == "ending" and not self._members:
            self._phase = "over"

    # Events.

    def _say_step(self, message: Message) -> None:
        self._say(
            {
                "kind": "step", "iteration": self._step, "loss": message["loss"],
                "grad_norm": message["grad_norm"],
                "learning_rate": self._job.lr_schedule.rate(self._job.lr, self._step, self._job.steps),
                "tokens": self._job.tokens_per_step, "t": time.time(),
            }
        )  # fmt: skip

    def _say_batch(self) -> None:
        units = {str(rank): list(units) for rank, units in self._ledger.brought().items()}
        redone = self._ledger.redone
        self._say(
            {"kind": "batch", "iteration": self._step, "units": units, "redone": redone, "t": time.time()}
        )

    def _note_change(self, **who: list[int]) -> None:
        change = {
            "step": self._step,
            "workers": sorted(self._members),
            **{name: ranks for name, ranks in who.items() if ranks},
        }
        self.changes.append(change)
        self._say({"kind": "workers", **change, "t": time.time()})
