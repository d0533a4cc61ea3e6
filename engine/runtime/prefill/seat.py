"""The seat of prefill in a rank: chunks run while training waits, and only then.

One GPU does one thing at a time. The executor takes it before each op and gives it back after; a chunk that
runs at that moment is waited for, so what prefill costs training is in training's own times. A chunk begins
only before the op that the desk meant, only while the GPU is free, and only if it should be done in time;
otherwise the desk is told, and plans it anew.
"""

import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.errors import Infeasible
from engine.inputs import Document
from engine.prefill.handover import HandOver
from engine.runtime.prefill.chunks import Chunk
from engine.runtime.prefill.kv_pool import Freed, LeaseEnded
from engine.runtime.prefill.sampling import draw
from engine.runtime.prefill.seat_wire import Cancel, ChunkLate, ChunkRan, Drop, OpEnded, Row
from engine.runtime.prefill.stage import PrefillStage

REMEMBERED = 6  # iterations whose ops a desk that comes anew is told of


class Desk(Protocol):
    """Where a seat's news go."""

    def say(self, message: Document) -> None: ...


@dataclass(slots=True)
class _Training:
    """Where the executor is: op `next` of `iteration` comes, or runs where training is `busy`."""

    iteration: int = -1
    next: int = 0
    busy: bool = True
    last_start: float = 0.0
    waited_s: float = 0.0


@dataclass(slots=True)
class Waits:
    """What training ops that were due waited for chunks that ran: how many, seconds in all, the longest."""

    ops: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, waited_s: float) -> None:
        self.ops += 1
        self.total_s += waited_s
        self.longest_s = max(self.longest_s, waited_s)


class Seat:
    """Runs what the desk asks for, on one thread of its own.

    Parameters
    ----------
    stage : the whole model.
    server : offers its caches.
    ops : number of training ops of this GPU in an iteration.
    span : is told of every chunk that ran, with monotonic begin and end, on the executor's thread.
    """

    def __init__(self, stage: PrefillStage, server: HandOver, *, ops: int, span: "SpanTo") -> None:
        self._stage, self._server, self._ops, self._span = stage, server, ops, span
        self._changed = threading.Condition()
        self._training = _Training()
        self.waits = Waits()
        self._rows: list[Row] = []
        self._running: str | None = None
        self._closing = False
        self._ran: deque[tuple[float, float]] = deque()
        self._told: deque[OpEnded] = deque(maxlen=REMEMBERED * ops)
        self._desk: Desk | None = None
        self._thread = threading.Thread(target=self._work, name="prefill", daemon=True)
        self._thread.start()

    # The executor's side.

    def begin(self, iteration: int) -> None:
        """An iteration begins: the GPU is free until its first op."""
        self._stage.pool.expire()
        now, training = time.monotonic(), self._training
        with self._changed:
            before = training.iteration
            start, waited_s = training.last_start, training.waited_s
            training.iteration, training.next, training.busy = iteration, 0, False
            self._changed.notify_all()
        if before >= 0 and start:
            self._tell(
                OpEnded(iteration=before, op=self._ops - 1, start_s=start, end_s=now, waited_s=waited_s)
            )

    def take(self) -> float:
        """A training op is due: returns when it has the GPU. The monotonic time is its begin."""
        due, training = time.monotonic(), self._training
        with self._changed:
            training.busy = True
            waits = self._running is not None
            while self._running is not None:
                self._changed.wait()
        now = time.monotonic()
        training.waited_s = now - due if waits else 0.0
        if waits:
            self.waits.add(training.waited_s)
        return now

    def give(self, start: float, end: float) -> None:
        """A training op that began at `start` is done; after the last one training keeps the GPU."""
        training = self._training
        with self._changed:
            index = training.next
            training.next += 1
            last = training.next == self._ops
            training.busy = last
            training.last_start = start
            if not last:
                self._changed.notify_all()
        if not last:
            waited_s = training.waited_s
            self._tell(
                OpEnded(iteration=training.iteration, op=index, start_s=start, end_s=end, waited_s=waited_s)
            )
        while self._ran:
            self._span(*self._ran.popleft())

    def _tell(self, message: OpEnded) -> None:
        self._told.append(message)
        if self._desk is not None:
            self._desk.say(message)

    # The desk's side.

    def attach(self, desk: Desk) -> None:
        """A desk listens from now on; it is told what was before."""
        for message in list(self._told):
            desk.say(message)
        self._desk = desk

    def detach(self) -> None:
        """The desk is gone: nobody answers for what it had accepted, so nothing of it is held."""
        self._desk = None
        with self._changed:
            self._rows.clear()
        for request in self._stage.pool.requests:
            self._stage.pool.free(request, Freed.ABORTED)

    def heed(self, message: Row | Cancel | Drop) -> None:
        """Do what the desk says."""
        with self._changed:
            if isinstance(message, Row):
                self._rows.append(message)
                self._rows.sort(key=lambda row: row.begin_s)
                self._changed.notify_all()
                return
            least = message.done if isinstance(message, Cancel) else 0
            self._rows = [r for r in self._rows if r.request != message.request or r.done < least]
        if isinstance(message, Drop):
            self._stage.pool.free(message.request, Freed.ABORTED)

    def close(self) -> None:
        """End the thread; a chunk that runs is waited for."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _say(self, message: Document) -> None:
        desk = self._desk
        if desk is not None:
            desk.say(message)

    def _work(self) -> None:
        while (found := self._next()) is not None:
            row, late = found
            if late:
                self._say(ChunkLate(request=row.request, done=row.done, why="late"))
                continue
            try:
                answer = self._run(row)
            except Exception as error:  # training goes on; what the error says could quote a prompt
                print(f"prefill of a chunk failed: {type(error).__name__}", file=sys.stderr, flush=True)  # noqa: T201
                answer = ChunkLate(request=row.request, done=row.done, why="gone")
            finally:
                with self._changed:
                    self._running = None
                    self._changed.notify_all()
            self._say(answer)

    def _next(self) -> tuple[Row, bool] | None:
        """The row to run now, for which the GPU is the seat's, or one that is too late; None at the end."""
        with self._changed:
            while not self._closing:
                wait_s: float | None = None
                if self._rows:
                    row = self._rows[0]
                    wait_s = self._wait_s(row)
                    if wait_s is None or wait_s <= 0:
                        self._rows.pop(0)
                        if wait_s is not None:
                            self._running = row.request
                        return row, wait_s is None
                self._changed.wait(wait_s)
            return None

    def _wait_s(self, row: Row) -> float | None:
        """Seconds until the row may begin, or its chance be over; 0 now; None where it is too late."""
        training, now = self._training, time.monotonic()
        lasts_s = self._stage.settings.lasts_s(_chunk(row))
        here, meant = (training.iteration, training.next), (row.iteration, row.op)
        left_s = row.until_s - lasts_s - now
        if left_s < 0 or here > meant or (here == meant and training.busy):
            return None
        if here < meant:
            return max(left_s, 1e-4)
        return max(0.0, row.begin_s - now)

    def _run(self, row: Row) -> ChunkRan | ChunkLate:
        pool, chunk = self._stage.pool, _chunk(row)
        if row.done == 0:
            pool.free(row.request, Freed.ABORTED)  # of an earlier plan
            if isinstance(pool.reserve(row.request, row.total, lease_s=row.lease_s), Infeasible):
                return ChunkLate(request=row.request, done=0, why="kv_space")
        start = time.monotonic()
        try:
            logits = self._stage.run(chunk, torch.tensor(row.ids, dtype=torch.int64))
        except (LeaseEnded, ValueError):  # what came before it is not there
            return ChunkLate(request=row.request, done=row.done, why="gone")
        end = time.monotonic()
        self._ran.append((start, end))
        token, cache = None, None
        if row.final and row.sampling is not None:
            token = draw(logits, row.sampling, at=0)
            try:
                cache = self._server.offer(row.request, lease_s=row.lease_s) if row.keep else None
            except LeaseEnded:
                return ChunkLate(request=row.request, done=row.done, why="gone")
            if not row.keep:
                pool.free(row.request, Freed.ABORTED)
        return ChunkRan(
            request=row.request, done=row.done, tokens=chunk.tokens, start_s=start, end_s=end, token=token,
            cache=cache,
        )  # fmt: skip


class SpanTo(Protocol):
    """Takes note of a chunk that ran."""

    def __call__(self, start: float, end: float) -> None: ...


def _chunk(row: Row) -> Chunk:
    return Chunk(request=row.request, done=row.done, tokens=len(row.ids), final=row.final)
