"""How busy the workers of a trace are, and when each step begins and ends."""

from dataclasses import dataclass

import numpy as np

from engine.analyze.trace import BUSY, Floats, Ints, Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Idle:
    """What the workers do in the time of the steps.

    steps : their numbers.  step_s : last end minus first start of each step, shape (steps,).
    busy_s : seconds in which each worker computes, over all steps, shape (replicas, stages).
    """

    steps: Ints
    step_s: Floats
    busy_s: Floats

    def utilization(self) -> float:
        """Busy time over time × workers, as `Timeline.utilization`."""
        return float(self.busy_s.sum() / (self.step_s.sum() * self.busy_s.size))

    def by_worker(self) -> Floats:
        """Utilization of each worker, shape (replicas, stages)."""
        return self.busy_s / self.step_s.sum()

    def bubbles_s(self) -> float:
        """Seconds in which workers compute nothing, over all steps and workers."""
        return float(self.step_s.sum() * self.busy_s.size - self.busy_s.sum())


def idle_of(trace: Trace) -> Idle:
    """Busy and idle time of a trace. Ops that keep a worker busy do not overlap on it."""
    steps, step = np.unique(trace.step, return_inverse=True)
    first, last = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(first, step, trace.start)
    np.maximum.at(last, step, trace.end)
    layout = trace.layout
    computes = trace.is_kind(*BUSY)
    worker = trace.replica[computes] * layout.stages + trace.stage[computes]
    busy: Floats = np.zeros(layout.workers)
    np.add.at(busy, worker, trace.duration[computes])
    return Idle(steps=steps, step_s=last - first, busy_s=busy.reshape(layout.replicas, layout.stages))
