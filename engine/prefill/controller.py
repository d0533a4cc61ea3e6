"""The BubbleTea controller (BubbleTea §5.1): places prefill requests in the bubbles of training, or refuses
them at once.

The one idea: an accepted request has a plan from the moment it is accepted. Its chunks hold intervals of the
bubble index. So it is known before whether it meets its objective, and later requests cannot delay it. Until
its first interval begins, a request waits in the queue, and a request that goes first may have it re-planned.
If the queue is full, a request may still get a reserved placement further ahead, and keeps it.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import thread_time_ns

import numpy as np
from numpy.typing import NDArray

from engine.prefill.book import Book
from engine.prefill.bubbles import Interval, TrainingPattern
from engine.prefill.index import ANY_DC, BubbleIndex, Fit, Fleet, Flying
from engine.prefill.kernels.gaps import EPS
from engine.prefill.kernels.place import BEGIN, END, GPU, TOKENS
from engine.prefill.latency import Hop, LatencyModel
from engine.prefill.placement import Cache, Floats, Moved, Placement, PlacementQuery, Refusal, Settings

# Search horizon.
HORIZON_ITERATIONS = 16
# With longest_fit, a request that has waited this many iterations goes before longer ones.
PATIENCE_ITERATIONS = 4
SEARCHES_KEPT = 1_000_000
# A request goes before at most this many waiting ones: each is re-planned before its answer.
MOST_OVERTAKEN = 64


class Controller:
    """Places requests one by one; the clock is that of the requests' arrivals.

    search_ns : CPU time of the latest searches for a placement (`searches_kept`), of the calling thread.
    """

    def __init__(
        self,
        fleet: Fleet,
        latency: LatencyModel,
        *,
        settings: Settings,
        hop: Hop | None = None,
        cache: Cache | None = None,
        searches_kept: int = SEARCHES_KEPT,
    ) -> None:
        self.fleet, self.latency, self.settings = fleet, latency, settings
        self.cache = cache or Cache()
        self.period_ms = fleet.pattern.period_ms
        self._hop = hop or Hop()
        self._guards_ms: float | Sequence[float] = settings.guard_ms
        self._new_index()
        self.now_ms = 0.0
        self.paused = False
        self.search_ns: deque[int] = deque(maxlen=searches_kept)
        self._book = Book()

    def _new_index(self) -> None:
        settings, latency = self.settings, self.latency
        slo_ms = settings.ttft_slo_ms if math.isfinite(settings.ttft_slo_ms) else 0.0
        horizon_ms = max(HORIZON_ITERATIONS * self.period_ms, 2 * slo_ms)
        horizon_ms += settings.reserve_ms
        self.index = BubbleIndex(
            self.fleet,
            latency,
            self._hop,
            chunk=settings.chunk_tokens,
            guard_ms=self._guards_ms,
            horizon_ms=horizon_ms,
        )
        self.longest_tokens = longest_tokens(self.fleet, latency, settings, horizon_ms)

    @property
    def waiting(self) -> tuple[Placement, ...]:
        """The queue, in the order of starts: their first interval has not begun and may still change."""
        return tuple(self._book.queued)

    @property
    def reserved(self) -> tuple[Placement, ...]:
        """Requests beyond the queue that have not begun, in the order of their starts."""
        return tuple(self._book.reserved)

    def offer(self, request: PlacementQuery) -> Placement | Refusal:
        """Accept `request` with a plan, or refuse it, at its arrival (no earlier than the last one's)."""
        return self._answer(request, keep=True)

    def quote(self, request: PlacementQuery) -> Placement | Refusal:
        """What `offer` would answer; the clock moves, and nothing else changes."""
        return self._answer(request, keep=False)

    def _answer(self, request: PlacementQuery, *, keep: bool) -> Placement | Refusal:
        self.advance(request.arrival_ms)
        if self.paused:
            return Refusal(reason="training_paused", retry_after_ms=self.period_ms)
        if request.tokens > self.longest_tokens:
            return Refusal(reason="too_long", retry_after_ms=None)
        overtaken = self._overtaken(request)
        if 0 < len(overtaken) <= MOST_OVERTAKEN and len(self._book.queued) < self.settings.queue:
            placed = self._place_before(request, overtaken, keep=keep)
            if placed is not None:
                return placed
        return self._append(request, keep=keep)

    def advance(self, now_ms: float) -> list[Placement]:
        """Sets the clock; returns the requests that have begun since, whose plan no later request can change.

        Raises
        ------
        ValueError
            The clock would go back.
        """
        if now_ms < self.now_ms:
            raise ValueError(f"now_ms {now_ms}: the clock is at {self.now_ms} and only moves forward")
        self.now_ms = now_ms
        self.index.advance(now_ms)
        return self._book.advance(now_ms)

    def cancel(self, placement: Placement) -> None:
        """Frees the intervals of `placement` that have not begun, for example when its client went away.

        A placement that was cancelled, or lost to training, holds nothing.
        """
        if self._book.remove([placement]):
            self.index.give(self._to_come(placement))

    def training_moved(self, cell: int, bubbles: Sequence[Iterable[Interval]], resume_ms: float) -> Moved:
        """Training of a cell deviates from the forecast: `bubbles`, by rank, replace its bubbles until
        `resume_ms`.

        From then on its pattern begins again. Training goes first. Intervals that have not begun and no
        longer lie in a bubble are re-planned, on their own pipeline if part of their cache is already there.
        """
        live = sorted(self._book.live(), key=lambda p: p.start_ms)
        first = cell * self.fleet.pattern.gpus
        gpus = range(first, first + self.fleet.pattern.gpus)
        self.index.replace(cell, [list(gaps) for gaps in bubbles], resume_ms)
        here = {id(p): p.rows[_on(p.rows, gpus) & (p.rows[:, END] > self.now_ms)] for p in live}
        for rows in here.values():
            for row in rows[rows[:, BEGIN] <= self.now_ms]:
                self._keep_running(row)
        misplaced = [
            p for p in live if not self.index.try_take(here[id(p)][here[id(p)][:, BEGIN] > self.now_ms])
        ]
        for placement in misplaced:
            rows = self._to_come(placement)
            self.index.give(rows[~_on(rows, gpus)])
        return self._replan(misplaced)

    def learned(
        self,
        pattern: TrainingPattern,
        guards_ms: Sequence[float],
        bubbles: Sequence[Iterable[Interval]],
        resume_ms: float,
    ) -> Moved:
        """Training of a fleet of one pattern has a new pattern, or needs other guards.

        guards_ms : by GPU.  bubbles : until `resume_ms`, as in `training_moved`, which runs on the new index.
        """
        self.fleet = replace(self.fleet, pattern=pattern)
        self._guards_ms = guards_ms
        self.settings = replace(self.settings, guard_ms=min(guards_ms))  # of the longest prompt
        self.period_ms = pattern.period_ms
        self._new_index()
        self.index.advance(self.now_ms)
        return self.training_moved(0, bubbles, resume_ms)

    def resume(
        self, old: Placement, done: int, *, not_before_ms: float, passed: Sequence[tuple[int, int]] = ()
    ) -> Placement | None:
        """Re-plans the rest of an accepted request: `done` tokens have their cache on its pipeline.

        For chunks that did not run in time. Returns None, and nothing is held, if there is no placement.

        Parameters
        ----------
        passed : for each chunk after these that ran on the first stages, its tokens and the number of stages.
        """
        self.cancel(old)
        after = max(self.now_ms, not_before_ms)
        # Past work has no time: one chunk for all that is done, and one for each chunk that has begun.
        sizes = [(done, self.fleet.pp_degree)] * (done > 0) + list(passed)
        chunks = np.zeros((len(sizes), self.fleet.pp_degree, 4))
        for chunk, (tokens, stages) in zip(chunks, sizes, strict=True):
            chunk[:, GPU] = old.rows[: self.fleet.pp_degree, GPU]
            chunk[:, BEGIN:] = np.inf, np.inf, tokens
            chunk[:stages, BEGIN : END + 1] = self.now_ms
        new = self._rest(old, chunks, after, after)
        if new is not None:
            self._book.insert(new)
        return new

    def _keep_running(self, row: Floats) -> None:
        """An interval that has begun cannot be stopped: its remaining time is not free."""
        gpu, end = int(row[GPU]), float(row[END])
        for begin, until in self.index.free(gpu):
            if begin < end and until > self.now_ms:
                self.index.take(np.array([[gpu, max(begin, self.now_ms), min(end, until), 0]]))

    def _replan(self, misplaced: list[Placement]) -> Moved:
        news = [self._continued(old) for old in misplaced]
        self._book.replace(misplaced, news, self.now_ms)
        lost = tuple(old for old, new in zip(misplaced, news, strict=True) if new is None)
        return Moved(moved=tuple(new for new in news if new is not None), lost=lost)

    def _continued(self, old: Placement) -> Placement | None:
        """`old` with the chunks that have begun, and the rest placed again."""
        chunks = old.rows.reshape(-1, self.fleet.pp_degree, 4)
        begun = chunks[chunks[:, 0, BEGIN] <= self.now_ms]
        after = max(self.now_ms, float(begun[-1, 0, END])) if len(begun) else self.now_ms
        return self._rest(old, begun, after, self.now_ms)

    def _rest(
        self, old: Placement, begun: Floats, not_before_ms: float, flying_ms: float
    ) -> Placement | None:
        """`old` with the chunks `begun` (chunks, stages, 4), which all have on their first stage.

        Their missing stages, from `flying_ms` on, and all later chunks are placed again and taken.
        """
        request = old.request
        stages = (begun[:, :, BEGIN] <= self.now_ms).sum(axis=1)  # that each chunk has begun on
        whole = int((stages == self.fleet.pp_degree).sum())
        flying = [
            Flying(int(tokens), int(n), max(flying_ms, chunk[n - 1, END] + self._hop.ms(tokens)))
            for chunk, n, tokens in zip(begun[whole:], stages[whole:], begun[whole:, 0, TOKENS], strict=True)
        ]
        if not len(begun):
            fit = self._search(request, not_before_ms)
        else:
            fit = self.index.resume(
                old.pipeline,
                request.tokens,
                done=int(begun[:whole, 0, TOKENS].sum()),
                chunk=self._chunk(request.tokens),
                not_before_ms=not_before_ms,
                flying=flying,
            )
        if fit is None:
            return None
        self.index.take(fit.rows)
        lacking = sum(self.fleet.pp_degree - one.first for one in flying)
        rows = begun.copy()
        rows[rows[:, :, BEGIN] > self.now_ms] = fit.rows[:lacking]
        return replace(
            old,
            pipeline=fit.pipeline,
            rows=np.concatenate([rows.reshape(-1, 4), fit.rows[lacking:]]),
            kv_done_ms=fit.end_ms + self.cache.transfer_ms(request.tokens),
        )

    def _to_come(self, placement: Placement) -> Floats:
        return placement.rows[placement.rows[:, BEGIN] > self.now_ms]

    def _chunk(self, tokens: int) -> int:
        return min(self.settings.chunk_tokens or tokens, tokens)

    def _search(self, request: PlacementQuery, not_before_ms: float) -> Fit | None:
        begin = thread_time_ns()
        chunk, dc = self._chunk(request.tokens), ANY_DC if request.dc is None else request.dc
        fit = self.index.find(request.tokens, chunk=chunk, not_before_ms=not_before_ms, dc=dc)
        self.search_ns.append(thread_time_ns() - begin)
        return fit

    def _append(self, request: PlacementQuery, *, keep: bool) -> Placement | Refusal:
        """Places `request` after all waiting ones; with longest_fit in any gap that they left free.

        With a full queue: at once, within `reserve_ms` for good, or not at all.
        """
        waiting, now_ms = self._book.queued, self.now_ms
        fit = self._search(request, self._turn_ms(request))
        if fit is None:
            return Refusal(reason="no_bubble", retry_after_ms=self.period_ms)
        is_full = fit.start_ms > now_ms + EPS and len(waiting) >= self.settings.queue
        if is_full and fit.start_ms > now_ms + self.settings.reserve_ms:
            if self.settings.queue == 0:
                return Refusal(reason="no_bubble", retry_after_ms=fit.start_ms - now_ms)
            return Refusal(reason="queue_full", retry_after_ms=waiting[0].start_ms - now_ms)
        placement = self._placement(request, fit)
        if placement.late:
            return Refusal(reason="ttft", retry_after_ms=self._until_in_time(placement))
        if not self._has_room(placement):
            return Refusal(reason="kv_space", retry_after_ms=self._until_room(placement))
        if keep:
            self._accept(placement, reserved=is_full)
        return placement

    def _turn_ms(self, request: PlacementQuery) -> float:
        """Earliest start: with fifo, not before others that go first on the same GPUs."""
        if self.settings.order != "fifo":
            return self.now_ms
        rank, turn_ms = self._rank(request), self.now_ms
        for waiting in (self._book.queued, self._book.reserved):
            for other in reversed(waiting):
                same = other.request.dc is None or request.dc is None or other.request.dc == request.dc
                if same and self._rank(other.request) <= rank:
                    turn_ms = max(turn_ms, other.start_ms)
                    break
        return turn_ms

    def _placement(self, request: PlacementQuery, fit: Fit) -> Placement:
        return Placement(
            request=request,
            pipeline=fit.pipeline,
            rows=fit.rows,
            kv_done_ms=fit.end_ms + self.cache.transfer_ms(request.tokens),
            deadline_ms=min(request.deadline_ms, request.arrival_ms + self.settings.ttft_slo_ms),
        )

    def _accept(self, placement: Placement, *, reserved: bool = False) -> None:
        self.index.take(placement.rows)
        self._book.insert(placement, reserved=reserved)

    def _rank(self, request: PlacementQuery) -> tuple[float, ...]:
        """Order among waiting requests: the lowest goes first."""
        if self.settings.order == "fifo":
            return (-request.priority, request.arrival_ms)
        overdue = self.now_ms - request.arrival_ms > PATIENCE_ITERATIONS * self.period_ms
        return (-request.priority, *((0.0, request.arrival_ms) if overdue else (1.0, -request.tokens)))

    def _overtaken(self, request: PlacementQuery) -> list[Placement]:
        """Requests in the queue that `request` goes before, in their order."""
        if not self._book.queued:
            return []
        rank = self._rank(request)
        behind = [(self._rank(p.request), i, p) for i, p in enumerate(self._book.queued)]
        return [p for _, _, p in sorted(entry for entry in behind if entry[0] > rank)]

    def _place_before(
        self, request: PlacementQuery, overtaken: list[Placement], *, keep: bool
    ) -> Placement | None:
        """Places `request`, then those that it goes before; None, and no change, if one would be late.

        keep : else nothing changes in any case.
        """
        book, before = self._book, self._book.queued
        gone = {id(p) for p in overtaken}
        for old in overtaken:
            self.index.give(old.rows)
        book.queued = [p for p in before if id(p) not in gone]
        accepted: list[Placement] = []
        for entrant in (request, *(old.request for old in overtaken)):
            fit = self._search(entrant, self._turn_ms(entrant))
            placement = self._placement(entrant, fit) if fit else None
            if placement is None or placement.late or not self._has_room(placement):
                break
            self._accept(placement)
            accepted.append(placement)
        fits = len(accepted) == 1 + len(overtaken)
        if not (fits and keep):
            for taken in accepted:
                self.index.give(taken.rows)
            book.queued = before
            for old in overtaken:
                self.index.take(old.rows)
        return accepted[0] if fits else None

    def _has_room(self, placement: Placement) -> bool:
        """Whether the caches that a GPU holds at the same time stay within its budget."""
        budget = self.cache.budget_bytes
        if not math.isfinite(budget):
            return True
        held = sum(self._held_bytes(other) for other in self._overlapping(placement))
        return held + self._held_bytes(placement) <= budget

    def _held_bytes(self, placement: Placement) -> float:
        return placement.request.tokens * self.cache.token_bytes / self.fleet.pp_degree

    def _overlapping(self, placement: Placement) -> list[Placement]:
        """Accepted requests whose caches are on the same GPUs at the same time as that of `placement`."""
        return [
            p
            for p in self._book.live()
            if p.pipeline == placement.pipeline
            and p.start_ms < placement.kv_done_ms
            and p.kv_done_ms > placement.start_ms
        ]

    def _until_room(self, placement: Placement) -> float | None:
        if self._held_bytes(placement) > self.cache.budget_bytes:
            return None
        return min(p.kv_done_ms for p in self._overlapping(placement)) - self.now_ms

    def _until_in_time(self, placement: Placement) -> float | None:
        """The time by which the backlog must shrink; None if the request is late even without one."""
        tokens = placement.request.tokens
        alone = self.latency.stage_ms(tokens, 1) if self.fleet.pp_degree == 1 else 0.0
        if placement.request.arrival_ms + alone + self.cache.transfer_ms(tokens) > placement.deadline_ms:
            return None
        return placement.kv_done_ms - placement.deadline_ms


def _on(rows: Floats, gpus: range) -> NDArray[np.bool_]:
    """Which of `rows` are on these GPUs."""
    return (rows[:, GPU] >= gpus.start) & (rows[:, GPU] < gpus.stop)


def longest_tokens(fleet: Fleet, latency: LatencyModel, settings: Settings, horizon_ms: float) -> int:
    """The longest prompt that any pipeline could hold: in its longest bubble, or, in chunks, within the
    horizon.
    """
    pattern, guard_ms, degree = fleet.pattern, settings.guard_ms, fleet.pp_degree
    whole = latency.longest(min(pattern.longest_bubble_ms() - guard_ms, horizon_ms), degree)
    if settings.chunk_tokens is None or settings.chunk_tokens > whole:
        return whole
    spans = [
        sum(max(0.0, end - begin - guard_ms) for begin, end in pattern.bubbles(p, s))
        for p in range(pattern.pipelines)
        for s in range(pattern.stages)
    ]
    return max(whole, latency.longest(max(spans) * (horizon_ms / pattern.period_ms - 1), degree))
