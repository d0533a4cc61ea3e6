"""Bubbles: idle time of each GPU of a training cell, in a pattern that repeats with every iteration."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.simulate.spans import Span
from engine.simulate.timeline import Timeline

Floats = NDArray[np.float64]
Interval = tuple[float, float]
# A gap shorter than this share of the period is rounding.
NO_GAP = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingPattern:
    """The ops of one DP-cell over one period, which then repeats. Times in ms from the period's start.

    busy : for each pipeline and stage, the intervals in which that GPU trains, in order, disjoint and within
        [0, period_ms]; adjacent ones are merged.
    dc_of_stage : data centre of the GPUs of each stage.
    """

    period_ms: float
    busy: tuple[tuple[tuple[Interval, ...], ...], ...]
    dc_of_stage: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.period_ms > 0:
            raise ValueError(f"period_ms {self.period_ms}: must be greater than 0")

    @property
    def pipelines(self) -> int:
        return len(self.busy)

    @property
    def stages(self) -> int:
        return len(self.busy[0])

    @property
    def gpus(self) -> int:
        return self.pipelines * self.stages

    @property
    def busy_ms(self) -> float:
        """Training time of all GPUs in one period."""
        return sum(end - begin for row in self.busy for gpu in row for begin, end in gpu)

    @property
    def utilization(self) -> float:
        """Training time over GPU time."""
        return self.busy_ms / (self.period_ms * self.gpus)

    def bubbles(self, pipeline: int, stage: int) -> tuple[Interval, ...]:
        """The idle intervals of one GPU, begins in [0, period); the last may reach into the next period."""
        busy = self.busy[pipeline][stage]
        if not busy:
            return ((0.0, self.period_ms),)
        after = (*(begin for begin, _ in busy[1:]), busy[0][0] + self.period_ms)
        least = NO_GAP * self.period_ms
        gaps = []
        for (_, begin), end in zip(busy, after, strict=True):
            lap = self.period_ms if begin >= self.period_ms - least else 0.0
            gaps.append((max(0.0, begin - lap), end - lap))
        return tuple(sorted((begin, end) for begin, end in gaps if end - begin > least))

    def longest_bubble_ms(self) -> float:
        """The longest idle interval of any GPU; infinite if a GPU never trains."""
        if any(not gpu for row in self.busy for gpu in row):
            return np.inf
        every = (b for p in range(self.pipelines) for s in range(self.stages) for b in self.bubbles(p, s))
        return max((end - begin for begin, end in every), default=0.0)


def of_timeline(timeline: Timeline, slot_ms: float, dc_of_stage: tuple[int, ...]) -> TrainingPattern:
    """The pattern of a simulated iteration whose time unit lasts `slot_ms`; the next follows at its end."""
    starts, ends = timeline.op_start * slot_ms, timeline.op_end * slot_ms
    rows = tuple(
        tuple(
            joined(zip(starts[p, s].tolist(), ends[p, s].tolist(), strict=True)) for s in range(ends.shape[1])
        )
        for p in range(ends.shape[0])
    )
    return TrainingPattern(period_ms=timeline.makespan * slot_ms, busy=rows, dc_of_stage=dc_of_stage)


def of_spans(spans: Iterable[Span], unit_ms: float) -> TrainingPattern:
    """The pattern of recorded spans whose time unit lasts `unit_ms`: the whole record is one period.

    Every span on a GPU counts as training, except prefill. Stages are taken to be in one data centre.

    Raises
    ------
    ValueError
        No span is on a GPU, or spans of one GPU run at the same time.
    """
    ops = [span for span in spans if span.track == "gpu" and span.op != "prefill" and span.stage is not None]
    if not ops:
        raise ValueError("has no span on track gpu with a stage")
    origin = min(span.start for span in ops)
    pipelines = 1 + max(span.pipeline for span in ops)
    stages = 1 + max(span.stage or 0 for span in ops)
    intervals: list[list[list[Interval]]] = [[[] for _ in range(stages)] for _ in range(pipelines)]
    for span in ops:
        interval = ((span.start - origin) * unit_ms, (span.end - origin) * unit_ms)
        intervals[span.pipeline][span.stage or 0].append(interval)
    return TrainingPattern(
        period_ms=max(end for row in intervals for gpu in row for _, end in gpu),
        busy=tuple(tuple(joined(sorted(gpu)) for gpu in row) for row in intervals),
        dc_of_stage=(0,) * stages,
    )


def joined(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """`intervals`, given in order, with adjacent or overlapping ones merged; NaN is left out."""
    joined: list[Interval] = []
    for begin, end in intervals:
        if not end > begin:
            continue
        if joined and begin <= joined[-1][1] + NO_GAP * max(1.0, end):
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return tuple(joined)
