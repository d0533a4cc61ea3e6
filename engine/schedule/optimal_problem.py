"""The solver's problem: one frame of a scenario in whole numbers, and the known order of ops.

An op is (kind, pipeline, position, microbatch). Each kind of op runs in microbatch order at a position. That
costs nothing without recomputation. Relabel the ops of a kind at a position by the order in which they start:
the i-th to be ready is ready no later than the i-th that starts, so all waits and counts still hold. With
recomputation, which microbatch elides its R may depend on the order; there the contract prescribes it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import OpKind, Sharing
from engine.schedule.scenario import Scenario
from engine.schedule.search import Frame
from engine.schedule.timing import durations
from engine.schedule.traversal import WITHIN_STAGE, Traversal
from engine.schedule.units import common_unit

Ints = NDArray[np.int64]
# Durations without a common unit are rounded down to this share of the longest.
GRID = 1e-6
NEVER = 1 << 40

OpKey = tuple[OpKind, int, int, int]
TransferKey = tuple[int, int, int, int]  # payload (0 activation, 1 gradient), edge, pipeline, microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One frame of a scenario in whole units.

    pipelines : that share links; 1 if each has links of its own and all do the same.
    exact : every duration is a whole number of units; else durations are rounded down, and a proof gives a
        lower bound only.
    durations : of one chunk, shape (4 kinds, stages).  transfer_time, latency : of each hop, shape (stages,).
    shared, is_wan : of each hop, shape (stages,).
    held, full : most chunks each stage may hold (docs/dev/contracts.md), shape (stages,).
    """

    traversal: Traversal
    pipelines: int
    microbatches: int
    split: bool
    temporal: bool
    unit: float
    exact: bool
    durations: Ints
    transfer_time: Ints
    latency: Ints
    shared: NDArray[np.bool_]
    is_wan: NDArray[np.bool_]
    held: Ints
    full: Ints

    @classmethod
    def of(cls, scenario: Scenario, frame: Frame) -> "Problem":
        """The problem of one frame. B is split if it can be: with W right after, it is a whole B."""
        chunks = frame.traversal.chunks
        split = bool(np.any(scenario.times.weight))
        lengths = durations(scenario, chunks, split=split)
        temporal = frame.sharing == "temporal" and scenario.pipelines > 1
        sharing: Sharing = "temporal" if temporal else "spatial"
        transfer_time, delay = scenario.hop_times(sharing), scenario.hop_delays(sharing)
        crossed = np.isin(np.arange(scenario.stages), frame.traversal.hop_of)
        shared = scenario.hop_is_wan & crossed & (transfer_time > 0) & temporal
        everything = np.concatenate([lengths.ravel(), transfer_time[crossed], delay[crossed]])
        unit = common_unit(everything)
        exact = unit is not None
        unit = unit or float(everything.max()) * GRID

        def units(times: NDArray[np.float64]) -> Ints:
            return (np.round if exact else np.floor)(times / unit).astype(np.int64)

        return cls(
            traversal=frame.traversal,
            pipelines=scenario.pipelines if shared.any() else 1,
            microbatches=scenario.microbatches,
            split=split,
            temporal=temporal,
            unit=unit,
            exact=exact,
            durations=units(lengths),
            transfer_time=np.where(crossed, units(transfer_time), 0),
            latency=np.where(crossed, units(delay), 0),
            shared=shared,
            is_wan=scenario.hop_is_wan,
            held=chunks * scenario.limits("memory_limit"),
            full=chunks * scenario.limits("full_limit"),
        )

    @property
    def kinds(self) -> tuple[OpKind, ...]:
        """Kinds of op that every position has."""
        return (OpKind.F, OpKind.B, OpKind.W) if self.split else (OpKind.F, OpKind.B)

    @property
    def closing(self) -> OpKind:
        """The kind of op after which a stage no longer holds the microbatch."""
        return self.kinds[-1]

    @property
    def positions(self) -> int:
        return len(self.traversal.positions)

    def stage(self, position: int) -> int:
        return int(self.traversal.stage_of[position])

    def limits_of(self, stage: int) -> tuple[int, int]:
        """Most chunks that a stage may hold, and most of them with their full activations."""
        return int(self.held[stage]), int(self.full[stage])

    def length(self, kind: OpKind, position: int) -> int:
        return int(self.durations[kind, self.stage(position)])

    def recomputes(self, position: int) -> bool:
        return self.length(OpKind.R, position) > 0

    def positions_on(self, stage: int) -> tuple[int, ...]:
        """The positions of one stage in forward order."""
        return tuple(int(v) for v in np.flatnonzero(self.traversal.stage_of == stage))

    def crosses(self, edge: int) -> bool:
        return int(self.traversal.hop_of[edge]) != WITHIN_STAGE

    def lag(self, payload: int, edge: int) -> int:
        """Least time from the end of the producing op to the arrival of its payload over `edge`."""
        hop = int(self.traversal.hop_of[edge])
        return 0 if hop == WITHIN_STAGE else int(self.transfer_time[hop] + self.latency[hop])

    def producer(self, transfer: TransferKey) -> OpKey:
        """The op whose output a transfer carries."""
        payload, edge, pipeline, m = transfer
        return (OpKind.B, pipeline, edge + 1, m) if payload else (OpKind.F, pipeline, edge, m)

    def consumer(self, transfer: TransferKey) -> OpKey:
        """The op that needs the payload of a transfer."""
        payload, edge, pipeline, m = transfer
        return (OpKind.B, pipeline, edge, m) if payload else (OpKind.F, pipeline, edge + 1, m)

    def ordered_by_ops(self, hop: int) -> bool:
        """Whether a hop's links send in the order of ops: temporal sharing lists only shared links."""
        return self.temporal and not self.is_wan[hop]

    @property
    def pairs(self) -> int:
        """Pairs of ops on one GPU and of transfers on one link: the size of the model."""
        kinds = len(self.kinds) + bool(self.durations[OpKind.R].any())
        ops = self.traversal.chunks * kinds * self.microbatches
        on_gpus = self.pipelines * self.traversal.stages * ops * (ops - 1) // 2
        transfers = np.sum(self.traversal.transfer_of >= 0, axis=2)
        classes = np.where(self.transfer_time == 0, 0, transfers * np.where(self.shared, self.pipelines, 1))
        on_links = int(np.sum(classes * (classes - 1) // 2)) * self.microbatches**2
        return on_gpus + on_links

    def precedes(self, first: OpKey, second: OpKey) -> bool | None:
        """Whether `first` runs before `second` in every schedule, or after it; None: the order is open.

        Both are ops of one GPU. A microbatch visits the steps 0 … 2L − 1: F at its positions, then B back.
        """
        if self._surely(first, second):
            return True
        return False if self._surely(second, first) else None

    def _surely(self, first: OpKey, second: OpKey) -> bool:
        (kind, _, position, m), (other, _, elsewhere, n) = first, second
        if kind == other and position == elsewhere:
            return m < n
        if m <= n and self._until(kind, position) <= self._since(other, elsewhere):
            return True
        # One position must not hold more than its stage may; full sets are held from R on.
        if position != elsewhere or kind == OpKind.F or other not in (OpKind.F, OpKind.R):
            return False
        held, full = self.limits_of(self.stage(position))
        return n - m >= (held if other == OpKind.F else full)

    def _since(self, kind: OpKind, position: int) -> int:
        """The last step that is over, or begins, when an op starts."""
        return position if kind in (OpKind.F, OpKind.R) else 2 * self.positions - 1 - position

    def _until(self, kind: OpKind, position: int) -> int:
        """The first step that has not begun, or is over, when an op ends."""
        if kind == OpKind.W:
            return NEVER
        return position if kind == OpKind.F else 2 * self.positions - 1 - position
