"""The Timeline: start and end of each op and transfer of a Schedule, and figures from them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.schedule.scenario import Scenario
from engine.schedule.search import Built
from engine.schedule.timing import Jitter, Timing, time_ops
from engine.simulate.spans import Span

Floats = NDArray[np.float64]
# Gaps shorter than this share of the makespan are rounding, not bubbles.
NO_GAP = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline(Timing):
    """A Schedule and its timing on a scenario. Transfers arrive `hop_delay[hop]` after their end.

    hop_delay, hop_is_wan : of each hop, shape (stages,), the last one from the last stage to the first.
    """

    schedule: Schedule
    hop_delay: Floats
    hop_is_wan: NDArray[np.bool_]
    lan_is_free: bool

    @classmethod
    def of(cls, scenario: Scenario, schedule: Schedule, timing: Timing) -> "Timeline":
        """The timeline of a schedule that has been timed on its scenario."""
        return cls(
            schedule=schedule,
            op_start=timing.op_start,
            op_end=timing.op_end,
            transfer_start=timing.transfer_start,
            transfer_end=timing.transfer_end,
            hop_delay=scenario.hop_delays(schedule.sharing),
            hop_is_wan=scenario.hop_is_wan,
            lan_is_free=not any(link.latency or link.transfer for link in scenario.lan_links),
        )

    def busy(self) -> Floats:
        """Time in which each GPU runs an op, shape (pipelines, stages)."""
        return np.nansum(self.op_end - self.op_start, axis=2)

    def utilization(self) -> float:
        """Busy time over makespan × GPUs."""
        busy = self.busy()
        return float(busy.sum() / (self.makespan * busy.size))

    def stage_spans(self) -> Floats:
        """Last end minus first start of each GPU, shape (pipelines, stages)."""
        return np.nanmax(self.op_end, axis=2) - np.nanmin(self.op_start, axis=2)

    def bubbles(self) -> tuple[NDArray[np.int64], Floats]:
        """Count and mean length (0 where none) of each GPU's idle intervals within [0, makespan]."""
        edges = self.op_end[:, :, :1]
        starts = np.where(np.isnan(self.op_start), self.makespan, self.op_start)
        ends = np.where(np.isnan(self.op_end), self.makespan, self.op_end)
        before = np.concatenate([np.zeros_like(edges), ends], axis=2)
        after = np.concatenate([starts, np.full_like(edges, self.makespan)], axis=2)
        gaps = after - before
        is_gap = gaps > NO_GAP * self.makespan
        count = is_gap.sum(axis=2)
        total = np.where(is_gap, gaps, 0.0).sum(axis=2)
        return count, total / np.maximum(count, 1)

    def peak_in_flight(self) -> NDArray[np.int64] | Floats:
        """Most microbatches held at once, start of F to end of B (or W), shape (pipelines, stages).

        Counted in whole stages: a chunk is 1/chunks of one.
        """
        kinds = np.where(self.schedule.ops == NO_OP, NO_OP, self.schedule.ops & 3)
        last = OpKind.W if self.schedule.has(OpKind.W) else OpKind.B
        begun = np.cumsum(kinds == OpKind.F, axis=2)
        done = np.cumsum(kinds == last, axis=2)
        peak = np.max(begun - done, axis=2)
        return peak if self.schedule.chunks == 1 else peak / self.schedule.chunks

    def spans(self) -> Iterator[Span]:
        """Every op, then every transfer, as spans; transfers inside a DC only if they take time."""
        yield from self._op_spans()
        yield from self._transfer_spans()

    def _op_spans(self) -> Iterator[Span]:
        for pipeline, stage, i in np.argwhere(self.schedule.ops != NO_OP).tolist():
            op = self.schedule.decode(int(self.schedule.ops[pipeline, stage, i]))
            yield Span(
                track="gpu",
                pipeline=pipeline,
                stage=stage,
                op=op.kind.name,  # type: ignore[arg-type]
                microbatch=op.microbatch,
                chunk=op.chunk,
                start=float(self.op_start[pipeline, stage, i]),
                end=float(self.op_end[pipeline, stage, i]),
            )

    def _transfer_spans(self) -> Iterator[Span]:
        traversal = self.schedule.traversal
        for payload, edge, pipeline, microbatch in np.argwhere(~np.isnan(self.transfer_end)).tolist():
            hop = int(traversal.hop_of[edge])
            is_wan = bool(self.hop_is_wan[hop])
            if self.lan_is_free and not is_wan:
                continue
            ends = traversal.positions[edge], traversal.positions[edge + 1]
            (from_stage, chunk), (to_stage, _) = ends[::-1] if payload else ends
            end = float(self.transfer_end[payload, edge, pipeline, microbatch])
            yield Span(
                track="wan" if is_wan else "lan",
                pipeline=pipeline,
                from_stage=from_stage,
                to_stage=to_stage,
                microbatch=microbatch,
                chunk=chunk,
                payload="gradient" if payload else "activation",
                start=float(self.transfer_start[payload, edge, pipeline, microbatch]),
                end=end,
                arrives=end + float(self.hop_delay[hop]),
            )


def timeline_of(scenario: Scenario, built: Built) -> Timeline:
    """The timeline of what a policy built for `scenario`, timed unless it was timed to be chosen."""
    timing = built.timing or time_ops(scenario, built.schedule)
    return Timeline.of(scenario, built.schedule, timing)


def time_schedule(scenario: Scenario, schedule: Schedule, jitter: Jitter | None = None) -> Timeline:
    """The timeline of `schedule`, as `time_ops` times it. Raises what that raises."""
    return Timeline.of(scenario, schedule, time_ops(scenario, schedule, jitter))
