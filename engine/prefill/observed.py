"""Training times of the GPUs of a running cell, learned from its own last iterations.

A run has more than its schedule: all-reduce, optimizer, checkpoints, and a WAN that is not quite as planned.
It also repeats itself. So the pattern is the median of the observed times, counted from the begin of each
iteration. The guard of a GPU covers observed ops that began earlier than that.

An op here is (iteration, index): its index in the order of its GPU. The last op of an iteration lasts until
the GPU is ready for the next: all-reduce, optimizer and all other work in between belong to it.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.prefill.bubbles import Interval, TrainingPattern, joined

Floats = NDArray[np.float64]
Op = tuple[int, int]

FEWEST = 3  # iterations before a forecast
KEPT = 24
SAME_MS = 0.01  # two signals within this are the same
EARLY_QUANTILE = 0.99
MOST_GUARD_SHARE = (
    0.1  # of an iteration: a guard beyond it would leave no bubble, and says that nothing repeats
)


@dataclass(slots=True)
class _Seen:
    """One iteration: begin and end of every op by GPU, NaN where it has none; ms. missing : GPUs."""

    starts: Floats
    ends: Floats
    missing: set[int]


class ObservedCell:
    """The GPUs of one cell that are in one data centre.

    Parameters
    ----------
    ops : number of ops in an iteration of each GPU, by pipeline, then stage.
    stages : of the cell in this data centre; GPUs are numbered pipeline · stages + stage.

    Attributes
    ----------
    latest : the current iteration, None before the first signal.
    begin_ms : begin of the first op of its first GPU.
    """

    def __init__(self, ops: Sequence[int], *, stages: int) -> None:
        self._ops, self._stages = tuple(ops), stages
        self._seen: dict[int, _Seen] = {}
        self._history: deque[tuple[Floats, Floats]] = deque(maxlen=KEPT)
        self._periods: deque[float] = deque(maxlen=KEPT)
        self._begins: dict[int, float] = {}
        self._starts = self._ends = np.empty((len(self._ops), max(self._ops)))
        self._order: list[tuple[list[float], list[int]]] = []
        self.latest: int | None = None
        self.begin_ms = 0.0
        self.period_ms = 0.0
        self._early_ms = [0.0] * len(self._ops)

    @property
    def knows(self) -> bool:
        """Whether enough was observed for a forecast."""
        return len(self._history) >= FEWEST and len(self._periods) >= FEWEST - 1

    def begun(self, iteration: int, start_ms: float) -> bool:
        """Signal: the first op of the first GPU has run. Returns whether it begins a new iteration.

        Repeated signals, and those of iterations that are long over, are ignored.
        """
        if self._is_over(iteration):
            return False
        begun = self._begins.get(iteration)
        if begun is not None:
            if start_ms <= begun + SAME_MS:
                return False
            self._go_back()
        self._begun(iteration, start_ms)
        return True

    def ran(self, gpu: int, iteration: int, starts_ms: Sequence[float], ends_ms: Sequence[float]) -> bool:
        """Signal: the times of a GPU's ops in an iteration. Returns whether it completes the iteration.

        Signals of iterations that are long over, or of other ops than the GPU has, are ignored.
        """
        if not 0 <= gpu < len(self._ops) or self._is_over(iteration):
            return False
        count = self._ops[gpu]
        if not len(starts_ms) == len(ends_ms) == count:
            return False
        seen = self._seen.setdefault(iteration, self._empty())
        seen.starts[gpu, :count], seen.ends[gpu, :count] = starts_ms, ends_ms
        seen.missing.discard(gpu)
        begin = self._begins.get(iteration)
        if begin is None or seen.missing:
            return False
        self._history.append((seen.starts - begin, seen.ends - begin))
        del self._seen[iteration]
        self._learn()
        return True

    @property
    def due_ms(self) -> float:
        """Latest time at which the signal of the next iteration's begin should arrive."""
        return self.begin_ms + self.period_ms + float(self._ends[0, 0]) if self.knows else math.inf

    def overdue(self, now_ms: float) -> bool:
        """Whether the next iteration should have begun by now and has not: it begins no earlier than now."""
        return now_ms > self.due_ms

    def resume_ms(self, now_ms: float) -> float:
        """Expected begin of the next iteration."""
        expected = self.begin_ms + self.period_ms
        return max(expected, now_ms) if self.overdue(now_ms) else expected

    def pattern(self) -> TrainingPattern:
        """The ops of an iteration, from its begin on."""
        rows = [self._on_circle(gpu) for gpu in range(len(self._ops))]
        pipelines = len(self._ops) // self._stages
        return TrainingPattern(
            period_ms=self.period_ms,
            busy=tuple(
                tuple(rows[p * self._stages + s] for s in range(self._stages)) for p in range(pipelines)
            ),
            dc_of_stage=(0,) * self._stages,
        )

    def bubbles(self, pattern: TrainingPattern, resume_ms: float) -> list[tuple[Interval, ...]]:
        """The idle intervals of each GPU, from the begin of the current iteration to its end."""
        bubbles = []
        for p in range(pattern.pipelines):
            for s in range(pattern.stages):
                busy = [(self.begin_ms + b, self.begin_ms + e) for b, e in pattern.busy[p][s]]
                begins = [self.begin_ms, *(e for _, e in busy)]
                ends = [*(b for b, _ in busy), resume_ms]
                bubbles.append(tuple((b, e) for b, e in zip(begins, ends, strict=True) if e > b))
        return bubbles

    def next_op(self, gpu: int, at_ms: float, *, resume_ms: float) -> tuple[Op, float]:
        """The first op of a GPU that should begin at or after `at_ms`, and its begin."""
        assert self.latest is not None
        starts, indexes = self._order[gpu]
        begin, iteration = self.begin_ms, self.latest
        if (
            at_ms + 1e-6 >= begin + self.period_ms
        ):  # later iterations count from the expected begin of the next
            begin, iteration, at_ms = resume_ms, iteration + 1, max(at_ms, resume_ms)
        laps = int((at_ms - begin) // self.period_ms)
        best: tuple[Op, float] | None = None
        for lap in (laps - 1, laps, laps + 1):
            since = begin + lap * self.period_ms
            index = bisect_left(starts, at_ms - since - 1e-6)
            if index < len(starts):
                op, begins = (iteration + lap, indexes[index]), since + starts[index]
                if best is None or begins < best[1]:
                    best = op, begins
        assert best is not None, "every GPU has an op in every iteration"
        return best

    def _is_over(self, iteration: int) -> bool:
        return self.latest is not None and iteration < self.latest - KEPT

    def _go_back(self) -> None:
        """Training repeats an iteration, for example after a checkpoint: observations of earlier ones are
        dropped.
        """
        self._seen.clear()
        self._begins.clear()
        self.latest = None

    def _begun(self, iteration: int, start_ms: float) -> None:
        before = self._begins.get(iteration - 1)
        if before is not None:
            self._periods.append(start_ms - before)
        self._begins[iteration] = start_ms
        for by_iteration in (self._begins, self._seen):
            for old in [i for i in by_iteration if i < iteration - KEPT]:
                del by_iteration[old]
        if self.latest is None or iteration > self.latest:
            self.latest, self.begin_ms = iteration, start_ms

    def _learn(self) -> None:
        starts = np.stack([starts for starts, _ in self._history])
        ends = np.stack([ends for _, ends in self._history])
        self._starts, self._ends = np.median(starts, axis=0), np.median(ends, axis=0)
        if self._periods:
            self.period_ms = float(np.median(self._periods))
        # All times are counted from the first op of the first GPU.
        early = np.nanquantile(self._starts[None] - starts, EARLY_QUANTILE, axis=(0, 2))
        self._early_ms = np.maximum(early, 0.0).tolist()
        self._order = []
        for gpu, count in enumerate(self._ops):
            order = np.argsort(self._starts[gpu, :count], kind="stable")
            self._order.append((self._starts[gpu, order].tolist(), order.tolist()))

    def guards_ms(self, least_ms: float) -> tuple[float, ...]:
        """Time to reserve before an op, by GPU.

        It is `least_ms`, or the earliness that 99 of 100 of its ops stayed within in the stored iterations.
        """
        most_ms = MOST_GUARD_SHARE * self.period_ms
        return tuple(max(least_ms, min(early_ms, most_ms)) for early_ms in self._early_ms)

    def _on_circle(self, gpu: int) -> tuple[Interval, ...]:
        """Training of a GPU within one period; parts beyond its end move to its begin."""
        period = self.period_ms
        pieces: list[Interval] = []
        for k in range(self._ops[gpu]):
            begin, end = float(self._starts[gpu, k]), float(self._ends[gpu, k])
            if end - begin >= period:
                return ((0.0, period),)
            lap = begin // period
            begin, end = begin - lap * period, end - lap * period
            pieces += [(begin, min(end, period))] + ([(0.0, end - period)] if end > period else [])
        return joined(sorted(pieces))

    def _empty(self) -> _Seen:
        shape = len(self._ops), max(self._ops)
        missing = set(range(len(self._ops)))
        return _Seen(starts=np.full(shape, np.nan), ends=np.full(shape, np.nan), missing=missing)
