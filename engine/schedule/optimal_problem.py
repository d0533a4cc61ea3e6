"""What the solver is asked: one frame of a scenario in whole numbers, and which ops have their order already.

An op is (kind, pipeline, place, microbatch). Each kind of op runs in microbatch order at a place. That costs
nothing without recomputation: relabel the ops of a kind at a place by the order in which they start; the
i-th to be ready is ready no later than the i-th that starts, so all waits and counts still hold. (With
recomputation, which microbatch elides its R may depend on it: there the order is a rule of the contract.)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import OpKind
from engine.schedule.optimal_units import common_unit
from engine.schedule.scenario import Scenario
from engine.schedule.search import Frame
from engine.schedule.timing import durations
from engine.schedule.traversal import WITHIN_STAGE, Traversal

Ints = NDArray[np.int64]
# Durations without a common unit are rounded down to this share of the longest.
GRID = 1e-6
NEVER = 1 << 40

OpKey = tuple[OpKind, int, int, int]
TransferKey = tuple[int, int, int, int]  # payload (0 activation, 1 gradient), edge, pipeline, microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One frame of a scenario in whole units.

    pipelines : that meet on shared links; 1 where each does the same on links of its own.
    exact : every duration is a whole number of units; else durations are rounded down, and what is proven of
        them is a lower bound.
    durations : of one chunk, shape (4 kinds, stages).  transfer, latency : of each hop, shape (stages,).
    shared, is_wan : which hops, shape (stages,).
    held, full : most chunks a stage may hold (docs/dev/contracts.md); None: no limit.
    """

    traversal: Traversal
    pipelines: int
    microbatches: int
    split: bool
    temporal: bool
    unit: float
    exact: bool
    durations: Ints
    transfer: Ints
    latency: Ints
    shared: NDArray[np.bool_]
    is_wan: NDArray[np.bool_]
    held: int | None
    full: int | None

    @classmethod
    def of(cls, scenario: Scenario, frame: Frame) -> "Problem":
        """The problem of one frame. B is split where it can be: with W right after, it is a whole B."""
        chunks = frame.traversal.chunks
        split = bool(np.any(scenario.times.weight))
        lengths = durations(scenario, chunks, split=split)
        temporal = frame.sharing == "temporal" and scenario.pipelines > 1
        transfer = scenario.hop_times("temporal" if temporal else "spatial")
        crossed = np.isin(np.arange(scenario.stages), frame.traversal.hop_of)
        shared = scenario.hop_is_wan & crossed & (transfer > 0) & temporal
        everything = np.concatenate([lengths.ravel(), transfer[crossed], scenario.hop_latency[crossed]])
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
            transfer=np.where(crossed, units(transfer), 0),
            latency=np.where(crossed, units(scenario.hop_latency), 0),
            shared=shared,
            is_wan=scenario.hop_is_wan,
            held=_chunks(scenario.memory_limit, scenario, chunks),
            full=_chunks(scenario.full_limit, scenario, chunks),
        )

    @property
    def kinds(self) -> tuple[OpKind, ...]:
        """Kinds of op that every place has."""
        return (OpKind.F, OpKind.B, OpKind.W) if self.split else (OpKind.F, OpKind.B)

    @property
    def closing(self) -> OpKind:
        """The kind of op after which a stage no longer holds the microbatch."""
        return self.kinds[-1]

    @property
    def places(self) -> int:
        return len(self.traversal.places)

    def stage(self, place: int) -> int:
        return int(self.traversal.stage_of[place])

    def length(self, kind: OpKind, place: int) -> int:
        return int(self.durations[kind, self.stage(place)])

    def recomputes(self, place: int) -> bool:
        return self.length(OpKind.R, place) > 0

    def places_on(self, stage: int) -> tuple[int, ...]:
        """The places of one stage in forward order."""
        return tuple(int(v) for v in np.flatnonzero(self.traversal.stage_of == stage))

    def crosses(self, edge: int) -> bool:
        return int(self.traversal.hop_of[edge]) != WITHIN_STAGE

    def lag(self, payload: int, edge: int) -> int:
        """Least time from the end of the op that makes a payload to its arrival over `edge`."""
        hop = int(self.traversal.hop_of[edge])
        return 0 if hop == WITHIN_STAGE else int(self.transfer[hop] + self.latency[hop])

    def maker(self, transfer: TransferKey) -> OpKey:
        """The op whose output a transfer carries."""
        payload, edge, pipeline, m = transfer
        return (OpKind.B, pipeline, edge + 1, m) if payload else (OpKind.F, pipeline, edge, m)

    def taker(self, transfer: TransferKey) -> OpKey:
        """The op that needs what a transfer carries."""
        payload, edge, pipeline, m = transfer
        return (OpKind.B, pipeline, edge, m) if payload else (OpKind.F, pipeline, edge + 1, m)

    def ordered_by_ops(self, hop: int) -> bool:
        """Whether a hop's links send in the order of ops: temporal sharing lists only shared ones."""
        return self.temporal and not self.is_wan[hop]

    @property
    def pairs(self) -> int:
        """Pairs of ops on one GPU and of transfers on one link: the size of the model."""
        kinds = len(self.kinds) + bool(self.durations[OpKind.R].any())
        ops = self.traversal.chunks * kinds * self.microbatches
        on_gpus = self.pipelines * self.traversal.stages * ops * (ops - 1) // 2
        crossing = np.sum(self.traversal.crossings >= 0, axis=2)
        classes = np.where(self.transfer == 0, 0, crossing * np.where(self.shared, self.pipelines, 1))
        on_links = int(np.sum(classes * (classes - 1) // 2)) * self.microbatches**2
        return on_gpus + on_links

    def precedes(self, first: OpKey, second: OpKey) -> bool | None:
        """Whether `first` runs before `second` in every schedule, or after it; None: either may be.

        Both are ops of one GPU. A microbatch visits the steps 0 … 2L − 1: F at its places, then B back.
        """
        if self._surely(first, second):
            return True
        return False if self._surely(second, first) else None

    def _surely(self, first: OpKey, second: OpKey) -> bool:
        (kind, _, place, m), (other, _, elsewhere, n) = first, second
        if kind == other and place == elsewhere:
            return m < n
        if m <= n and self._until(kind, place) <= self._since(other, elsewhere):
            return True
        # A place alone must not hold more than its stage may; full sets are held from R on.
        limit = {OpKind.F: self.held, OpKind.R: self.full}.get(other)
        return place == elsewhere and limit is not None and kind != OpKind.F and n - m >= limit

    def _since(self, kind: OpKind, place: int) -> int:
        """The last step that is over, or begins, when an op starts."""
        return place if kind in (OpKind.F, OpKind.R) else 2 * self.places - 1 - place

    def _until(self, kind: OpKind, place: int) -> int:
        """The first step that has not begun, or is over, when an op ends."""
        if kind == OpKind.W:
            return NEVER
        return place if kind == OpKind.F else 2 * self.places - 1 - place


def _chunks(limit: int | None, scenario: Scenario, chunks: int) -> int | None:
    """A limit in chunks; None where it cannot matter."""
    return None if limit is None or limit >= scenario.microbatches else limit * chunks
