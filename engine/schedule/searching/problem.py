"""A scenario in one frame as a job-shop problem: operations, machines that they share, and precedence.

Machines are GPUs, and links whose transfers take time. An operation is a node (row, pipeline, microbatch). A
row is an op at one position or a transfer over one edge (`Rows`). Four facts keep the problem small at no
loss:

- Microbatches of one pipeline are alike, so each row runs in microbatch order. Limits then become precedence:
  with at most h microbatches held at a position, F(m) follows the op that releases m − h there.
- F at the last position serves only its own B: the two are one operation, and no R is needed between.
- Pipelines with links of their own do not interact: one of them is scheduled, the others do the same.
- Times are whole ticks of a unit that all durations share, or else of a very fine one.

With several chunks on a stage, `memory_limit` is divided among its positions, more to those that hold longer.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import Sharing
from engine.schedule.scenario import Scenario
from engine.schedule.search import Frame
from engine.schedule.timing import durations
from engine.schedule.traversal import WITHIN_STAGE, Traversal
from engine.schedule.units import common_unit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NONE = -1
# If durations share no unit, the longest one counts this many ticks.
FINE_TICKS = 1e8


class Rows(NamedTuple):
    """Numbers of the rows: position v has F at v, then R, B and W; edge v has two transfers."""

    positions: int

    @property
    def recompute(self) -> int:
        return self.positions

    @property
    def backward(self) -> int:
        return 2 * self.positions

    @property
    def weight(self) -> int:
        return 3 * self.positions

    @property
    def transfer(self) -> int:
        return 4 * self.positions

    @property
    def total(self) -> int:
        return 6 * self.positions - 2


class ProblemArrays(NamedTuple):
    """The problem as arrays for the kernels. A row that does not exist has machine −1."""

    pipelines: int
    microbatches: int
    positions: int
    machines: int
    longest: int  # most operations on one machine
    duration: Ints  # (rows,) ticks
    machine: Ints  # (rows, pipelines)
    before: Ints  # (rows, 2), predecessors of the same microbatch, −1: none
    before_lag: Ints  # (rows, 2), ticks from their end
    after: Ints  # (rows, 2), the inverse of `before`
    after_lag: Ints
    gate: Ints  # (rows,), the row whose microbatch m − behind must have ended, −1: none
    behind: Ints  # (rows,)
    opens: Ints  # (rows, 2), the inverse of `gate`: rows of microbatch m + behind that wait for it
    opens_behind: Ints
    stage: Ints  # (rows,), −1 for transfers
    takes: Ints  # (rows,), chunks that the stage holds from the start of this op
    frees: Ints  # (rows,), chunks that the stage no longer holds from the end of this op
    full_takes: Ints  # the same for full activations
    full_frees: Ints
    room: Ints  # (stages,), most chunks held
    full_room: Ints  # (stages,)


@dataclass(frozen=True, kw_only=True, eq=False)
class SchedulingProblem:
    """A scenario in one frame; B whole or split."""

    scenario: Scenario
    frame: Frame
    split: bool

    @property
    def traversal(self) -> Traversal:
        return self.frame.traversal

    @cached_property
    def shared(self) -> NDArray[np.bool_]:
        """Which hops the pipelines share, shape (stages,)."""
        is_shared = self.frame.sharing == "temporal" and self.scenario.pipelines > 1
        return self.scenario.hop_is_wan & is_shared

    @cached_property
    def pipelines(self) -> int:
        """Pipelines that must be scheduled: 1 if they share no link."""
        hops = self.traversal.hop_of
        meet = np.any(
            self.shared[hops[hops != WITHIN_STAGE]] & (self._transfer_time()[hops != WITHIN_STAGE] > 0)
        )
        return self.scenario.pipelines if meet else 1

    def _transfer_time(self) -> Floats:
        """Duration of a transfer over each edge, shape (L − 1,); 0 within a stage."""
        hops = self.traversal.hop_of
        return np.where(hops == WITHIN_STAGE, 0.0, self.scenario.hop_times(self._sharing)[hops])

    def _transfer_lag(self) -> Floats:
        hops = self.traversal.hop_of
        return np.where(hops == WITHIN_STAGE, 0.0, self.scenario.hop_delays(self._sharing)[hops])

    @property
    def _sharing(self) -> Sharing:
        return "temporal" if self.shared.any() else "spatial"

    @cached_property
    def rows(self) -> Rows:
        return Rows(len(self.traversal.positions))

    @cached_property
    def row_times(self) -> Floats:
        """Duration of each row in the scenario's unit, shape (rows,)."""
        stage = self.traversal.stage_of
        per_op = durations(self.scenario, self.traversal.chunks, split=self.split)[:, stage]
        per_op[2, -1] += per_op[0, -1]
        transfer = self._transfer_time()
        return np.concatenate([per_op.ravel(), transfer, transfer])

    @cached_property
    def tick(self) -> float:
        """Length of a tick in the scenario's unit."""
        times = np.concatenate([self.row_times, self._transfer_lag()])
        return common_unit(times) or float(times.max()) / FINE_TICKS

    def ticks(self, times: Floats) -> Ints:
        return np.round(times / self.tick).astype(np.int64)

    @cached_property
    def exists(self) -> NDArray[np.bool_]:
        """Which rows are operations, shape (rows,)."""
        positions = self.rows.positions
        every = np.ones(positions, dtype=np.bool_)
        inner = np.arange(positions) < positions - 1  # F of the last one is part of its B
        recomputes = inner & (self.row_times[positions : 2 * positions] > 0)
        crosses = np.tile(self._transfer_time() > 0, 2)
        return np.concatenate([inner, recomputes, every, every & self.split, crosses])

    @cached_property
    def machine_count(self) -> int:
        return self.pipelines * self.scenario.stages * 3

    def _machines(self) -> Ints:
        """GPUs are k · P + s; links follow, one per direction, hop and pipeline (shared: pipeline 0)."""
        n, stages = self.pipelines, self.scenario.stages
        k = np.arange(n)
        gpus = k * stages + np.tile(self.traversal.stage_of, 4)[:, None]
        hop, direction = self.traversal.hop_of, self.traversal.direction_of
        owner = np.where(self.shared[hop][:, None], 0, k)
        there = (stages * n) + (direction * stages + hop)[:, None] * n + owner
        back = (stages * n) + ((1 - direction) * stages + hop)[:, None] * n + owner
        machine = np.concatenate([gpus, there, back]) if len(hop) else gpus
        machine[~self.exists] = NONE
        return machine

    @cached_property
    def held(self) -> Ints:
        """Most microbatches held at each position, shape (L,).

        A stage's limit is divided among its positions by how long each holds a microbatch.
        """
        positions, m = self.rows.positions, self.scenario.microbatches
        held = np.full(positions, m, dtype=np.int64)
        limits = self.scenario.limits("memory_limit")
        for stage in np.flatnonzero(limits < m).tolist():
            own = self.traversal.position_of[stage]
            held[own] = np.minimum(_dealt(len(own) * int(limits[stage]), 2 * positions - 2 * own + 1), m)
        return held

    @cached_property
    def full(self) -> Ints:
        """Most microbatches whose full activations are held at each position, shape (L,)."""
        limits = self.scenario.limits("full_limit")[self.traversal.stage_of]
        recomputes = self.row_times[self.rows.positions : 2 * self.rows.positions] > 0
        return np.where(recomputes, limits, self.scenario.microbatches)

    @cached_property
    def arrays(self) -> ProblemArrays:
        """The arrays for the kernels."""
        rows, exists = self.rows, self.exists
        before, lag = self._before()
        after, after_lag = _inverse(before, lag)
        gate, behind = self._gates()
        opens, opens_behind = _inverse(gate[:, None], behind[:, None])
        machine = self._machines()
        per_machine = np.bincount(machine[exists].ravel(), minlength=self.machine_count)
        stage = np.concatenate([np.tile(self.traversal.stage_of, 4), np.full(2 * rows.positions - 2, NONE)])
        takes, frees, full_takes, full_frees = self._changes()
        chunks, m = self.traversal.chunks, self.scenario.microbatches
        return ProblemArrays(
            pipelines=self.pipelines,
            microbatches=m,
            positions=rows.positions,
            machines=self.machine_count,
            longest=int(per_machine.max()) * m,
            duration=self.ticks(self.row_times),
            machine=machine,
            before=before,
            before_lag=lag,
            after=after,
            after_lag=after_lag,
            gate=gate,
            behind=behind,
            opens=opens,
            opens_behind=opens_behind,
            stage=stage,
            takes=takes,
            frees=frees,
            full_takes=full_takes,
            full_frees=full_frees,
            room=chunks * self.scenario.limits("memory_limit"),
            full_room=chunks * self.scenario.limits("full_limit"),
        )

    def _before(self) -> tuple[Ints, Ints]:
        rows, exists = self.rows, self.exists
        before = np.full((rows.total, 2), NONE, dtype=np.int64)
        lag = np.zeros((rows.total, 2), dtype=np.int64)
        delay = self.ticks(self._transfer_lag())
        last = rows.positions - 1
        for v in range(rows.positions):
            own, forward = rows.backward + v, v if v < last else rows.backward + v
            if v > 0:
                transfer = rows.transfer + v - 1
                before[forward, 0] = transfer if exists[transfer] else v - 1
                lag[forward, 0] = delay[v - 1]
                if exists[transfer]:
                    before[transfer, 0] = v - 1
            if v < last:
                transfer = rows.transfer + last + v
                before[own, 0] = transfer if exists[transfer] else own + 1
                lag[own, 0] = delay[v]
                if exists[transfer]:
                    before[transfer, 0] = own + 1
            if exists[rows.recompute + v]:
                before[rows.recompute + v, 0] = v
                before[own, 1] = rows.recompute + v
            before[rows.weight + v, 0] = own if self.split else NONE
        return before, lag

    def _gates(self) -> tuple[Ints, Ints]:
        rows, m = self.rows, self.scenario.microbatches
        gate = np.full(rows.total, NONE, dtype=np.int64)
        behind = np.full(rows.total, m, dtype=np.int64)
        release = rows.weight if self.split else rows.backward
        last = rows.positions - 1
        for v in range(rows.positions):
            row, limit = (
                (v, self.held[v]) if v < last else (rows.backward + v, min(self.held[v], self.full[v]))
            )
            wants = [(row, limit)]
            if self.exists[rows.recompute + v]:
                wants.append((rows.recompute + v, self.full[v]))
            for which, most in wants:
                if most < m and which != release + v:
                    gate[which], behind[which] = release + v, most
        return gate, behind

    def _changes(self) -> Ints:
        rows = self.rows
        changes = np.zeros((4, rows.total), dtype=np.int64)
        takes, frees, full_takes, full_frees = changes
        release = rows.weight if self.split else rows.backward
        last = rows.positions - 1
        for v in range(rows.positions):
            takes[v if v < last else rows.backward + v] = 1
            frees[release + v] = 1
            if self.row_times[rows.recompute + v] > 0:
                full_takes[rows.recompute + v if v < last else rows.backward + v] = 1
                full_frees[release + v] = 1
        return changes


def _dealt(most: int, lives: Ints) -> Ints:
    """Divides `most` chunks among a stage's positions in the ratio of `lives`, at least one each."""
    shares = most * lives / lives.sum()
    dealt = np.maximum(1, np.floor(shares).astype(np.int64))
    for at in np.argsort(dealt - shares, kind="stable")[: max(0, most - int(dealt.sum()))]:
        dealt[at] += 1
    while dealt.sum() > most:
        dealt[np.argmax(dealt)] -= 1
    return dealt


def _inverse(of: Ints, value: Ints) -> tuple[Ints, Ints]:
    inverse = np.full((len(of), 2), NONE, dtype=np.int64)
    values = np.zeros((len(of), 2), dtype=np.int64)
    used = np.zeros(len(of), dtype=np.int64)
    for row, slot in np.argwhere(of != NONE).tolist():
        to = int(of[row, slot])
        inverse[to, used[to]] = row
        values[to, used[to]] = value[row, slot]
        used[to] += 1
    return inverse, values
