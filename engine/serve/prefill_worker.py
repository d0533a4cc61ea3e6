"""The prefill worker of a rank: chunks run while training waits, and only then.

A rank holds the served model, or one stage of it, which gets the hidden states of a chunk from the stage
before and hands its own on.

One GPU does one thing at a time. The executor takes it before each op and gives it back after; a chunk that
runs at that moment is waited for, so what prefill costs training is in training's own times. A chunk begins
only before the op that the coordinator meant, only while the GPU is free, and only if it should be done in
time. Otherwise the coordinator gets a message and places the chunk again.

Where one CPU plays several GPUs, a chunk gives way to whatever else wants that CPU, too, as long as no op of
its own GPU waits for it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import Infeasible
from engine.inputs import Document
from engine.serve.chunk_inputs import ChunkInputs
from engine.serve.hidden_states import HiddenHeader, HiddenSender
from engine.serve.kv_pool import Freed, LeaseEnded
from engine.serve.kv_push import KvPusher
from engine.serve.kv_server import KvServer
from engine.serve.prefill_wire import (
    CachePushed,
    Cancel,
    ChunkLate,
    ChunkRan,
    Drop,
    IterationBegun,
    IterationRan,
    OpsChanged,
    PushCache,
    RunChunk,
)
from engine.serve.sampling import draw
from engine.serve.stage import PrefillStage
from engine.serve.yielding import give_way, take_part

log = logging.getLogger(__name__)
REMEMBERED = 6  # iterations whose ops a new coordinator gets


class Coordinator(Protocol):
    """Where a prefill worker's news go."""

    def send(self, message: Document) -> None: ...


SpanTo = Callable[[float, float], None]  # takes the monotonic begin and end of a chunk that ran


@dataclass(slots=True)
class _Training:
    """Where the executor is: op `next` of `iteration` comes, or runs where training is `busy`."""

    iteration: int = -1
    next: int = 0
    busy: bool = True
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
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


class PrefillWorker:
    """Runs what the coordinator asks for, on one thread of its own.

    Parameters
    ----------
    stage : of the served model.
    next_stage : to the stage behind; None on the last.
    server : offers its caches.
    ops : number of training ops of this GPU in an iteration.
    leads : it is the coordinator's first GPU, by whose first op the coordinator tells the time.
    pusher : sends caches to receivers that requests name; None: none are sent.
    span : is told of every chunk that ran, with monotonic begin and end, on the executor's thread.
    """

    def __init__(
        self,
        stage: PrefillStage,
        server: KvServer,
        *,
        ops: int,
        leads: bool,
        span: SpanTo,
        next_stage: HiddenSender | None = None,
        pusher: KvPusher | None = None,
    ) -> None:
        self._stage, self._server, self._span, self._next_stage = stage, server, span, next_stage
        self._pusher = pusher
        self._leads, self._order = leads, OpsChanged(since=0, ops=ops)
        self._changed = threading.Condition()
        self._training = _Training()
        self.waits = Waits()
        self._chunks: list[RunChunk] = []
        self._inputs = ChunkInputs(stage.most_hidden_bytes)
        self._running: str | None = None
        self._closing = False
        self._ran: deque[tuple[float, float]] = deque()
        self._free = float("-inf")  # end of the last chunk
        self._reported: deque[IterationBegun | IterationRan] = deque(maxlen=(1 + leads) * REMEMBERED)
        self._coordinator: Coordinator | None = None
        self._thread = threading.Thread(target=self._work, name="prefill", daemon=True)
        self._thread.start()

    # The executor's side.

    def begin(self, iteration: int) -> None:
        """An iteration begins: the GPU is free until its first op."""
        self._stage.pool.expire()
        now, training = time.monotonic(), self._training
        with self._changed:
            self._inputs.expire()
            before = training.iteration
            training.iteration, training.next, training.busy = iteration, 0, False
            self._wake()
        if len(training.starts) == self._order.ops:
            starts_s, ends_s, waited_s = tuple(training.starts), tuple(training.ends[:-1]), training.waited_s
            self._report(
                IterationRan(iteration=before, starts_s=starts_s, ends_s=(*ends_s, now), waited_s=waited_s)
            )
        training.starts, training.ends, training.waited_s = [], [], 0.0

    def reorder(self, *, since: int, ops: int) -> None:
        """Training has another schedule from iteration `since` on: what was asked for is not run any more."""
        with self._changed:
            self._chunks.clear()
            self._reported.clear()
            self._order = OpsChanged(since=since, ops=ops)
        self._training.starts, self._training.ends = [], []
        self._send(self._order)

    def take(self) -> float:
        """A training op is due: returns when it has the GPU, with the end of the last chunk (monotonic).

        On a GPU a chunk that runs goes on: its kernels are taken up again when those of training are done.
        """
        due, training = time.monotonic(), self._training
        with self._changed:
            training.busy = True
            waits = self._running is not None and not self._stage.gives_way
            if waits and self._thread.native_id is not None:
                take_part(self._thread.native_id)
            while waits and self._running is not None:
                self._changed.wait()
        if waits:
            waited_s = time.monotonic() - due
            training.waited_s += waited_s
            self.waits.add(waited_s)
        return self._free

    def give(self, start: float, end: float) -> None:
        """A training op that began at `start` is done; after the last one training keeps the GPU."""
        training = self._training
        with self._changed:
            training.next += 1
            last = training.next == self._order.ops
            training.busy = last
            if not last:
                self._wake()
        training.starts.append(start)
        training.ends.append(end)
        if self._leads and len(training.starts) == 1:
            self._report(IterationBegun(iteration=training.iteration, start_s=start))
        while self._ran:
            self._span(*self._ran.popleft())

    def _wake(self) -> None:
        """The thread looks at its chunks again; without any it is left asleep."""
        if self._chunks:
            self._changed.notify_all()

    def _report(self, message: IterationBegun | IterationRan) -> None:
        self._reported.append(message)
        if self._coordinator is not None:
            self._coordinator.send(message)

    # The side of the stage before.

    def arrived(self, what: HiddenHeader, hidden: Tensor) -> None:
        """Hidden states (tokens, hidden) of a chunk are there."""
        with self._changed:
            self._inputs.put(what, hidden)
            self._changed.notify_all()

    # The coordinator's side.

    def attach(self, coordinator: Coordinator) -> None:
        """A coordinator listens from now on; it is told what was before."""
        if self._order.since:
            coordinator.send(self._order)
        for message in list(self._reported):
            coordinator.send(message)
        self._coordinator = coordinator

    def detach(self) -> None:
        """The coordinator is gone: nobody answers for what it had accepted, so nothing of it is held."""
        self._coordinator = None
        if self._next_stage is not None:
            self._next_stage.clear()
        with self._changed:
            self._chunks.clear()
            self._inputs.clear()
        for request in self._stage.pool.requests:
            self._stage.pool.free(request, Freed.ABORTED)

    def handle(self, message: RunChunk | Cancel | Drop | PushCache) -> None:
        """Do what the coordinator says."""
        if isinstance(message, PushCache):
            self._push(message)
            return
        with self._changed:
            if isinstance(message, RunChunk):
                self._chunks.append(message)
                self._chunks.sort(key=lambda chunk: chunk.begin_s)
                self._changed.notify_all()
                return
            least = message.done if isinstance(message, Cancel) else 0
            self._chunks = [one for one in self._chunks if one.request != message.request or one.done < least]
            if isinstance(message, Drop):
                self._inputs.drop(message.request)
        if isinstance(message, Drop):
            self._stage.pool.free(message.request, Freed.ABORTED)

    def _push(self, order: PushCache) -> None:
        def report(error: str) -> None:
            self._send(CachePushed(request=order.request, error=error))

        if self._pusher is None:
            report("this rank sends no caches")
        else:
            self._pusher.push(order, report)

    def close(self) -> None:
        """End the thread; a chunk that runs is waited for."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _send(self, message: Document) -> None:
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.send(message)

    def _work(self) -> None:
        me = threading.get_native_id()
        give_way(me)
        while (task := self._next()) is not None:
            chunk, late = task
            if late:
                self._send(ChunkLate(request=chunk.request, done=chunk.done, why="late"))
                continue
            try:
                answer = self._run(chunk)
            except Exception as error:  # training goes on; what the error says could quote a prompt
                log.warning("Prefill of a chunk failed: %s.", type(error).__name__)
                answer = ChunkLate(request=chunk.request, done=chunk.done, why="gone")
            finally:
                with self._changed:
                    self._running = None
                    self._changed.notify_all()
            give_way(me)  # training may have waited for this chunk
            self._send(answer)

    def _next(self) -> tuple[RunChunk, bool] | None:
        """The chunk to run now, for which the GPU is free, or one that is too late; None at the end."""
        with self._changed:
            while not self._closing:
                soonest_s: float | None = None
                for index, chunk in enumerate(self._chunks):
                    wait_s = self._wait_s(chunk)
                    if wait_s is None or wait_s <= 0:
                        del self._chunks[index]
                        if wait_s is not None:
                            self._running = chunk.request
                        return chunk, wait_s is None
                    soonest_s = wait_s if soonest_s is None else min(soonest_s, wait_s)
                self._changed.wait(soonest_s)
            return None

    def _wait_s(self, chunk: RunChunk) -> float | None:
        """Seconds until the chunk may begin, or its chance be over; 0 now; None where it is too late."""
        training, now = self._training, time.monotonic()
        lasts_s = self._stage.settings.lasts_s(chunk)
        here, meant = (training.iteration, training.next), (chunk.iteration, chunk.op)
        left_s = chunk.until_s - lasts_s - now
        if left_s < 0 or here > meant or (here == meant and training.busy):
            return None
        if here < meant or not (self._stage.part.is_first or self._inputs.has(chunk)):
            return max(left_s, 1e-4)
        return max(0.0, chunk.begin_s - now)

    def _run(self, chunk: RunChunk) -> ChunkRan | ChunkLate:
        pool = self._stage.pool
        if chunk.done == 0:
            pool.free(chunk.request, Freed.ABORTED)  # of an earlier plan
            if isinstance(pool.reserve(chunk.request, chunk.total, lease_s=chunk.lease_s), Infeasible):
                return ChunkLate(request=chunk.request, done=0, why="kv_space")
        start = time.monotonic()
        try:
            pool.rewind(chunk.request, chunk.done)  # an earlier plan may have been further
            output = self._stage.run(chunk, self._input(chunk))
        except (LeaseEnded, ValueError):  # what came before it is not there
            return ChunkLate(request=chunk.request, done=chunk.done, why="gone")
        end = time.monotonic()
        self._ran.append((start, end))
        self._free = end
        token, cache = None, None
        try:
            if chunk.final and chunk.keep:
                cache = self._server.offer(chunk.request, lease_s=chunk.lease_s)
        except LeaseEnded:
            return ChunkLate(request=chunk.request, done=chunk.done, why="gone")
        if self._next_stage is not None:
            self._hand_on(chunk, output)
        elif chunk.final and chunk.sampling is not None:
            token = draw(output, chunk.sampling, at=0)
            if not chunk.keep:
                pool.free(chunk.request, Freed.ABORTED)
        return ChunkRan(
            request=chunk.request,
            done=chunk.done,
            tokens=chunk.tokens,
            start_s=start,
            end_s=end,
            token=token,
            cache=cache,
        )

    def _input(self, chunk: RunChunk) -> Tensor:
        """What the stage runs. Raises ValueError where it is not there: dropped since the chunk was due."""
        if self._stage.part.is_first:
            return torch.tensor(chunk.ids, dtype=torch.int64)
        with self._changed:
            hidden = self._inputs.take(chunk)
        if hidden is None:
            raise ValueError("the hidden states are gone")
        return hidden

    def _hand_on(self, chunk: RunChunk, hidden: Tensor) -> None:
        """To the next stage, unless nobody wants it any more."""
        if self._next_stage is not None and chunk.request in self._stage.pool.requests:
            what = HiddenHeader(
                request=chunk.request, done=chunk.done, tokens=chunk.tokens, lease_s=chunk.lease_s
            )
            self._next_stage.send(what, hidden)
