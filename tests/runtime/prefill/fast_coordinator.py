"""A prefill coordinator in fast motion: its real plan, KV pools as ranks have them, and a clock that jumps.

Ranks, gateways and the decoder are played: four GPUs that train evenly, requests that end in every way.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.control.coordinator_wire import FROM_COORDINATOR
from engine.control.messages import line_of
from engine.inputs import Document
from engine.job.prefill.settings import PrefillSettings
from engine.prefill.handover import StageCache
from engine.prefill.messages import PrefillRequest
from engine.serve import prefill_wire as wire
from engine.serve.coordinator import PrefillCoordinator
from engine.serve.coordinator_plan import CoordinatorPlan, TrainingGpus
from engine.serve.kv_pool import Freed, KvPool, KvShape, LeaseEnded
from engine.serve.prefill_progress import Model
from engine.serve.tokenizing import tokenizer_of

GPUS, OPS, PERIOD_MS, LASTS_MS = 4, 12, 800.0, 25.0
BUDGET_GB = 0.001
SHAPE = KvShape(first_layer=0, layers=2, kv_heads=2, head_size=16, dtype="fp32", block_tokens=32)
A_MS, B_MS = 6.0, 0.2
DECODED = 3  # tokens of an answer that a decoder goes on with


class Rank:
    """Holds caches as a prefill worker does, and runs chunks when they are due, but for one in 20."""

    def __init__(self, coordinator: "FastCoordinator", gpu: int) -> None:
        self._coordinator, self._gpu, self._chunks = coordinator, gpu, list[wire.RunChunk]()
        self.pool = KvPool(SHAPE, budget_bytes=round(BUDGET_GB * 1e9), clock=lambda: coordinator.now_ms / 1e3)

    def post(self, message: Document) -> None:
        message = wire.TO_PREFILL_WORKER.read(line_of(message))
        if isinstance(message, wire.RunChunk):
            chunk = message
            self._chunks.append(chunk)
            self._coordinator.at(chunk.begin_s * 1e3 + A_MS + B_MS * len(chunk.ids), lambda: self._run(chunk))
            return
        least = message.done if isinstance(message, wire.Cancel) else 0
        self._chunks = [r for r in self._chunks if r.request != message.request or r.done < least]
        if isinstance(message, wire.Drop):
            self.pool.free(message.request, Freed.ABORTED)

    def _run(self, chunk: wire.RunChunk) -> None:
        if chunk not in self._chunks:
            return
        self._chunks.remove(chunk)
        hear = self._coordinator.hear
        if self._coordinator.random.random() < 0.05:
            hear(self._gpu, wire.ChunkLate(request=chunk.request, done=chunk.done, why="late"))
            return
        if chunk.done == 0:
            self.pool.free(chunk.request, Freed.ABORTED)
            if self.pool.reserve(chunk.request, chunk.total, lease_s=chunk.lease_s) is not None:
                hear(self._gpu, wire.ChunkLate(request=chunk.request, done=0, why="kv_space"))
                return
        try:
            with self.pool.pinned(chunk.request) as held:
                if held.filled != chunk.done:
                    raise LeaseEnded(chunk.request)
                held.filled += len(chunk.ids)
        except LeaseEnded:
            hear(self._gpu, wire.ChunkLate(request=chunk.request, done=chunk.done, why="gone"))
            return
        cache = None
        if chunk.keep:
            blocks = self.pool.offer(chunk.request, lease_s=chunk.lease_s)
            cache = StageCache(rank=self._gpu, host="h", port=1, block_ids=blocks, first_layer=0, layers=2)
        elif chunk.final:
            self.pool.free(chunk.request, Freed.ABORTED)
        ran = wire.ChunkRan(
            request=chunk.request,
            done=chunk.done,
            tokens=len(chunk.ids),
            start_s=chunk.begin_s,
            end_s=self._coordinator.now_ms / 1e3,
            token=5 if chunk.final else None,
            cache=cache,
        )
        hear(self._gpu, ran)


class FastCoordinator:
    """The service, and what is to happen. `ended` counts how requests ended."""

    def __init__(self, folder: Path) -> None:
        settings = PrefillSettings(
            checkpoint="/x",
            latency={"a_ms": A_MS, "b_ms": B_MS, "c_ms": 0},
            dtype="fp32",
            chunk_tokens=32,
            kv_budget_gb=BUDGET_GB,
            pause_slowdown=1.0,
            reserve_ms=2_000,
        )
        self.now_ms, self.random = 0.0, np.random.default_rng(0)
        self.ended: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._iteration = itertools.count(), 0
        self._decodes: dict[str, int] = {}
        model = Model(
            tokenizer=tokenizer_of(folder, vocab=256),
            vocabulary=256,
            context=2048,
            ends=frozenset({0}),
            engine_id="run/1/north",
        )
        gpus = TrainingGpus(ranks=tuple(range(GPUS)), ops=(OPS,) * GPUS, stages=2)
        plan = CoordinatorPlan(gpus, settings, SHAPE, layers=2, token_bytes=4)
        self.service = PrefillCoordinator(plan, model, decoder=self, now_ms=lambda: self.now_ms, origin_s=0.0)
        self.ranks = [Rank(self, gpu) for gpu in range(GPUS)]
        for gpu, rank in enumerate(self.ranks):
            self.service.attach(gpu, rank)

    def at(self, when_ms: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_ms, next(self._numbers), what))

    def hear(self, gpu: int, message: Document) -> None:
        self.service.handle(gpu, wire.FROM_PREFILL_WORKER.read(line_of(message)))

    # A gateway.

    def post(self, message: Document) -> None:
        answer = FROM_COORDINATOR.read(line_of(message))
        if answer.kind in ("done", "refused", "failed"):
            self.ended[getattr(answer, "reason", answer.kind)] += 1

    def ask(self) -> None:
        """A request of any kind; some are withdrawn before their end, some leave with their gateway."""
        name, kind = str(next(self._numbers)), int(self.random.integers(10))
        guest = self if kind < 9 else _Leaving(self)
        ids = tuple(self.random.integers(1, 256, int(self.random.integers(16, 512))).tolist())
        self.service.submit(
            guest,
            PrefillRequest(
                request=name,
                prompt=ids,
                longest_prompt=10_000,
                hand_over=kind == 0,
                max_tokens=1 + DECODED * (0 < kind < 5),
            ),
        )
        after_ms = float(self.random.uniform(0, 300))
        if kind in (4, 5):
            self.at(self.now_ms + after_ms, lambda: self.service.withdraw(guest, name))
        elif kind == 9:
            self.at(self.now_ms + after_ms, lambda: self.service.gateway_lost(guest))

    # The decoder: it fetches the cache and makes its tokens; one in ten fails.

    def start(self, request: str, params: Any, token: int, *, most: int, sampling: Document) -> None:
        self._decodes[request] = most
        stage = params.remote_stages[0]
        pool = self.ranks[stage.rank].pool
        pool.free(request, Freed.HANDED_OVER, same=pool.claim(request, stage.block_ids))
        self.at(self.now_ms + 20, lambda: self._decode(request))

    def _decode(self, request: str) -> None:
        if request not in self._decodes:
            return
        answer: dict[str, Any] = {"request": request}
        left = self._decodes[request]
        if self.random.random() < 0.1 or not left:
            del self._decodes[request]
            answer |= {"end": "length"} if not left else {"failed": "KvTransferError"}
        else:
            self._decodes[request] = left - 1
            answer["token"] = 7
            self.at(self.now_ms + 20, lambda: self._decode(request))
        self.service.handle_decoder(answer)

    def stop(self, request: str) -> None:
        self._decodes.pop(request, None)

    # Time.

    def iterate(self, requests: int = 0, *, late_ms: float = 0.0) -> None:
        """One iteration of training, which ends `late_ms` late, in which so many requests come."""
        first, n = self.now_ms, self._iteration
        self._iteration += 1
        for gpu in range(GPUS):
            starts = first + 15.0 * gpu + 60.0 * np.arange(OPS)
            ends = starts + LASTS_MS
            ends[-1] = first + PERIOD_MS + late_ms
            ran = wire.IterationRan(
                iteration=n, starts_s=tuple((starts / 1e3).tolist()), ends_s=tuple((ends / 1e3).tolist())
            )
            self.at(ends[-1] - 1e-3, lambda gpu=gpu, ran=ran: self.hear(gpu, ran))
        begun = wire.IterationBegun(iteration=n, start_s=first / 1e3)
        self.at(first + LASTS_MS, lambda: self.hear(0, begun))
        for k in range(requests):
            self.at(first + PERIOD_MS * (k + 0.5) / requests, self.ask)
        self.until(first + PERIOD_MS + late_ms)

    def until(self, end_ms: float) -> None:
        """Let everything happen that is due by then."""
        turn_ms = self.now_ms
        while (due_ms := min(turn_ms, self._events[0][0] if self._events else np.inf)) < end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            if due_ms < turn_ms:
                heapq.heappop(self._events)[2]()
            left_s = self.service.turn()
            turn_ms = np.inf if left_s is None else self.now_ms + max(0.1, left_s * 1e3)
        self.now_ms = end_ms


class _Leaving:
    """A gateway of one request, with a line of its own."""

    def __init__(self, coordinator: FastCoordinator) -> None:
        self.post = coordinator.post
