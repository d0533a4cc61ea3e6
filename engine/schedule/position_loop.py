"""Prepares the event loop over positions and reads its result as a Schedule."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.schedule import position_kernel as kernel
from engine.schedule.ir import NO_OP, Schedule
from engine.schedule.position_state import Cell, State
from engine.schedule.rules import GATES, Gate, Tie
from engine.schedule.scenario import Contention, RecomputeRule, Scenario
from engine.schedule.search import Frame
from engine.schedule.timing import durations
from engine.schedule.wake_tree import sleeping

# Two events closer than this share of the longest op are one instant.
SAME_INSTANT = 1e-9

Floats = NDArray[np.float64]
_NO_KEYS = np.zeros((3, 1, 1, 1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionLoop:
    """The event loop for one scenario in one frame; it can run any number of times.

    cell : input of the kernel; `cell._replace` makes variants of it.
    kinds : number of kinds of ops.
    queues : whether messages wait at any link.
    """

    scenario: Scenario
    frame: Frame
    rule: RecomputeRule
    cell: Cell
    kinds: int
    queues: bool

    @classmethod
    def of(
        cls, scenario: Scenario, frame: Frame, *, split: bool, rule: RecomputeRule, contention: Contention
    ) -> "PositionLoop":
        """The loop within both limits of `scenario`; its keys are not set yet."""
        traversal = frame.traversal
        transfer_time = scenario.hop_times(frame.sharing)
        used = (traversal.transfer_of >= 0).sum(axis=2)
        takes_turns = scenario.hop_is_wan & (frame.sharing == "temporal") & (scenario.pipelines > 1)
        shared = takes_turns & (used.sum(axis=0) > 0)
        length = durations(scenario, traversal.chunks, split=split)
        queued = ((used > 1) & (transfer_time > 0) | shared).reshape(-1)
        return cls(
            scenario=scenario,
            frame=frame,
            rule=rule,
            kinds=2 + bool(length[kernel.R].any()) + split,
            queues=bool(queued.any()),
            cell=Cell(
                pipelines=scenario.pipelines if shared.any() else 1,
                microbatches=scenario.microbatches,
                chunks=traversal.chunks,
                durations=length,
                transfer_time=transfer_time,
                latency=scenario.hop_delays(frame.sharing),
                stage_of=traversal.stage_of,
                chunk_of=traversal.chunk_of,
                position_of=traversal.position_of,
                link_of=traversal.link_of,
                transfer_of=traversal.transfer_of,
                shared=np.tile(shared, 2),
                queued=queued,
                cap=traversal.chunks * scenario.limits("memory_limit"),
                full_cap=traversal.chunks * scenario.limits("full_limit"),
                window=scenario.microbatches,
                release=np.zeros(scenario.microbatches),
                backwards=np.arange(scenario.microbatches),
                keys=_NO_KEYS,
                patience=0.0,
                split=split,
                gate=int(Gate[rule.upper()]),
                tie=int(Tie[contention.replace("-", "_").upper()]),
                fixed=False,
                instant=SAME_INSTANT * float(length.max()),
            ),
        )

    def state(self, order: NDArray[np.int32] | None = None, *, log: bool = False) -> State:
        """A fresh state. order : shape (stages, longest), if the order of ops is given."""
        cell = self.cell
        n, micro, positions = cell.pipelines, cell.microbatches, len(cell.stage_of)
        stages, transfers = len(cell.position_of), len(cell.link_of)
        kinds, queued = self.kinds, int(self.queues)
        if order is None:
            ops = np.full((n, stages, kinds * cell.chunks * micro), NO_OP, dtype=np.int32)
        else:
            ops = np.broadcast_to(order, (n, *order.shape)).copy()
        logged = (kinds * positions + transfers) * n * micro if log else 0
        return State(
            started=np.zeros((4, n, positions), dtype=np.int64),
            free=np.zeros((n, stages)),
            last=np.full((n, stages), NO_OP, dtype=np.int64),
            held=np.zeros((n, stages), dtype=np.int64),
            full=np.zeros((n, stages), dtype=np.int64),
            activation=np.full((n, positions, micro), np.inf),
            gradient=np.full((n, positions, micro), np.inf),
            produced_at=np.full((queued * transfers, n, micro), np.inf),
            sent=np.zeros((transfers, n), dtype=np.int64),
            link_free=np.zeros((2 * stages, n)),
            link_last=np.full(2 * stages, n - 1, dtype=np.int64),
            wake=sleeping(3 * stages * n),
            order=ops,
            length=np.zeros((n, stages), dtype=np.int64),
            link_order=np.zeros((2 * stages, queued * n * cell.chunks * micro), dtype=np.int32),
            link_length=np.zeros((2 * stages, n), dtype=np.int64),
            log=np.zeros(logged, dtype=np.int64),
            logged=np.zeros(1, dtype=np.int64),
        )

    def schedule(self, state: State) -> Schedule:
        """The schedule in `state`, for all pipelines of the cell."""
        order = state.order
        if len(order) < self.scenario.pipelines:
            # Pipelines that share no link all do the same.
            order = np.broadcast_to(order, (self.scenario.pipelines, *order.shape[1:])).copy()
        return Schedule(
            microbatches=self.scenario.microbatches,
            traversal=self.frame.traversal,
            ops=order,
            sharing=self.frame.sharing,
            link_order=self._link_order(state),
            recompute_gate=GATES[self.rule],
        )

    def _link_order(self, state: State) -> dict[tuple[int, int], NDArray[np.int32]]:
        orders = {}
        stages = self.scenario.stages
        for link in np.flatnonzero(self.cell.queued).tolist():
            direction, hop = divmod(link, stages)
            ends = (hop + 1, hop) if direction else (hop, hop + 1)
            step = self.cell.chunks * self.cell.microbatches
            begins = enumerate(state.link_length[link])
            parts = [state.link_order[link, k * step :][:sent] for k, sent in begins]
            if self.cell.pipelines < self.scenario.pipelines:
                parts = [parts[0] + k * step for k in range(self.scenario.pipelines)]
            orders[ends] = np.concatenate(parts).astype(np.int32)
        return orders
