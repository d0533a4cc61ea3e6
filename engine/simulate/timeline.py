"""The Timeline: when each op and each transfer of a Schedule runs, and what follows from that."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.simulate.spans import Span

Floats = NDArray[np.float64]
# Gaps shorter than this share of the makespan are rounding, not bubbles.
NO_GAP = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Start and end of everything in a Schedule, in the scenario's time unit; NaN where there is nothing.

    op_start, op_end : as `schedule.ops`, shape (pipelines, stages, longest).
    transfer_start, transfer_end : shape (2, pipelines, stages − 1, microbatches); index 0 the activations
        that cross hop s → s+1, 1 the gradients that cross it back. They arrive `latency[hop]` after their
        end.
    """

    schedule: Schedule
    op_start: Floats
    op_end: Floats
    transfer_start: Floats
    transfer_end: Floats
    latency: Floats
    wan_hops: tuple[int, ...]
    lan_is_free: bool

    @property
    def makespan(self) -> float:
        """End of the last op."""
        return float(np.nanmax(self.op_end))

    def busy(self) -> Floats:
        """Time in which each GPU runs an op, shape (pipelines, stages)."""
        return np.nansum(self.op_end - self.op_start, axis=2)

    def utilization(self) -> float:
        """Busy time over makespan × GPUs."""
        return float(self.busy().sum() / (self.makespan * self.busy().size))

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

    def peak_in_flight(self) -> NDArray[np.int64]:
        """Most microbatches held at once, start of F to end of B (or W), shape (pipelines, stages)."""
        kinds = np.where(self.schedule.ops == NO_OP, NO_OP, self.schedule.ops & 3)
        last = OpKind.W if self.schedule.has(OpKind.W) else OpKind.B
        begun = np.cumsum(kinds == OpKind.F, axis=2)
        done = np.cumsum(kinds == last, axis=2)
        return np.max(begun - done, axis=2)

    def spans(self) -> Iterator[Span]:
        """Every op, then every transfer, as spans; transfers inside a DC only where they take time."""
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
        shown = set(self.wan_hops) if self.lan_is_free else set(range(self.schedule.stages - 1))
        for direction, pipeline, hop, microbatch in np.argwhere(~np.isnan(self.transfer_end)).tolist():
            if hop not in shown:
                continue
            end = float(self.transfer_end[direction, pipeline, hop, microbatch])
            yield Span(
                track="wan" if hop in self.wan_hops else "lan",
                pipeline=pipeline,
                from_stage=hop + direction,
                to_stage=hop + 1 - direction,
                microbatch=microbatch,
                payload="gradient" if direction else "activation",
                start=float(self.transfer_start[direction, pipeline, hop, microbatch]),
                end=end,
                arrives=end + float(self.latency[hop]),
            )
