"""Follows the training of one DP-cell by its signals, and foretells the rest of the iteration.

The plan says when each op runs; GPUs say when it did. An op that ended late or early moves all that depends
on it, on every GPU of the cell (BubbleTea §5.1 combines the plan and the GPUs' signals in the same way).
"""

import numpy as np
from numpy.typing import NDArray

from engine.prefill.bubbles import Interval, joined
from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.schedule.scenario import Scenario
from engine.schedule.timing import Jitter, Timing, durations, time_ops

Floats = NDArray[np.float64]
# An op that ended before it was thought to begin is given this share of its time.
SHORTEST = 1e-6


class CellForecast:
    """When the ops of one iteration run, as far as is known. Times in ms on the controller's clock.

    Lateness that no signal explains yet shows once an op is overdue (`catch_up`): it is then taken to end
    now. Transfers are as planned; a late one shows as a late op behind it.
    """

    def __init__(self, scenario: Scenario, schedule: Schedule, slot_ms: float) -> None:
        self._scenario, self._schedule, self._slot_ms = scenario, schedule, slot_ms
        kinds = np.where(schedule.ops == NO_OP, 0, schedule.ops & 3)
        took = durations(scenario, schedule.chunks, split=schedule.has(OpKind.W)) * slot_ms
        self._planned_ms = took[kinds, np.arange(schedule.stages)[None, :, None]]
        edges = len(schedule.traversal.places) - 1
        transfers = np.ones((2, edges, schedule.pipelines, schedule.microbatches))
        self._jitter = Jitter(ops=np.ones(schedule.ops.shape), transfers=transfers)
        self._plan: Timing = time_ops(scenario, schedule)
        self.begin(0.0)

    def begin(self, at_ms: float) -> None:
        """An iteration begins: nothing of it is known but the plan."""
        self.begin_ms = at_ms
        self._jitter.ops[:] = 1.0
        self._ended = np.zeros(self._schedule.ops.shape, dtype=np.bool_)
        self._timing = self._plan

    @property
    def resume_ms(self) -> float:
        """When the next iteration begins."""
        return self.begin_ms + self._timing.makespan * self._slot_ms

    def op(self, pipeline: int, stage: int, index: int) -> Interval:
        """When an op runs, by its place in the order of its GPU."""
        at = pipeline, stage, index
        return float(self._ms(self._timing.op_start[at])), float(self._ms(self._timing.op_end[at]))

    def ended(self, pipeline: int, stage: int, index: int, end_ms: float) -> float:
        """Signal: an op ended at `end_ms`. Returns by how much later (below 0: earlier) than foretold.

        Raises
        ------
        IndexError
            That GPU has no such op.
        """
        at = pipeline, stage, index
        if self._schedule.ops[at] == NO_OP:
            raise IndexError(f"pipeline {pipeline}, stage {stage} has no op {index}")
        late_ms = float(end_ms - self._ms(self._timing.op_end[at]))
        self._ended[at] = True
        self._end_at(at, end_ms)
        self._retime()
        return late_ms

    def catch_up(self, now_ms: float) -> bool:
        """What should have ended and has not is taken to end now; whether there was such an op."""
        overdue = False
        for pipeline, stage in np.ndindex(self._schedule.ops.shape[:2]):
            running = (~self._ended[pipeline, stage]) & (self._schedule.ops[pipeline, stage] != NO_OP)
            if not running.any():
                continue
            at = pipeline, stage, int(np.argmax(running))
            if self._ms(self._timing.op_end[at]) < now_ms:
                self._end_at(at, now_ms)
                overdue = True
        if overdue:
            self._retime()
        return overdue

    def bubbles(self) -> list[tuple[Interval, ...]]:
        """The idle intervals of each GPU, by rank, from the iteration's begin to its end."""
        starts, ends = self._ms(self._timing.op_start), self._ms(self._timing.op_end)
        pipelines, stages, _ = ends.shape
        return [
            self._idle(joined(zip(starts[p, s].tolist(), ends[p, s].tolist(), strict=True)))
            for p in range(pipelines)
            for s in range(stages)
        ]

    def _idle(self, busy: tuple[Interval, ...]) -> tuple[Interval, ...]:
        begins = (self.begin_ms, *(end for _, end in busy))
        ends = (*(begin for begin, _ in busy), self.resume_ms)
        return tuple((b, e) for b, e in zip(begins, ends, strict=True) if e > b)

    def _end_at(self, at: tuple[int, int, int], end_ms: float) -> None:
        took_ms = end_ms - self._ms(self._timing.op_start[at])
        self._jitter.ops[at] = max(SHORTEST, took_ms / self._planned_ms[at])

    def _retime(self) -> None:
        self._timing = time_ops(self._scenario, self._schedule, self._jitter)

    def _ms(self, slots: Floats) -> Floats:
        return self.begin_ms + slots * self._slot_ms
