"""Settings that CrossPipe's greedy tries for its keys and limits, and the neighbours of a setting."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.schedule import position_kernel as kernel
from engine.schedule.position_state import Cell
from engine.schedule.scenario import RecomputeRule

Floats = NDArray[np.float64]

TEMPOS = (0.25, 0.5, 1.0, 2.0, 4.0)
PATIENCES = (0.0, 0.5, 1.0)
PUT_OFFS = (None, 0.5, 2.0)
PACES = (0.0, 0.5, 0.65, 0.8, 1.0, 1.25, 1.5, 2.0)
FINER = (0.9, 0.95, 1.05, 1.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Idea:
    """One setting of the greedy. Times are in units of the longest work of a stage per microbatch.

    tempo : interval of microbatches on the ideal path that sets the keys.
    pace : least interval at which microbatches enter the cell.
    window : most microbatches between F and the end at the first position; None: as many as the limits allow.
    put_off : delay of W behind its B; None: W runs when nothing else can, or when a limit asks for it.
    patience : share of an op for which its GPU waits for a more urgent one that is known to come.
    """

    tempo: float
    patience: float = 0.5
    pace: float = 0.0
    window: int | None = None
    put_off: float | None = None
    rule: RecomputeRule = "idle"

    def __str__(self) -> str:
        parts = [f"tempo {self.tempo:g}", f"patience {self.patience:g}"]
        parts += [f"pace {self.pace:.3g}"] if self.pace else []
        parts += [f"window {self.window}"] if self.window is not None else []
        parts += [f"W after {self.put_off:g}"] if self.put_off is not None else []
        return ", ".join(parts)

    def applied(self, cell: Cell) -> Cell:
        """The cell with this idea's keys and limits."""
        even = np.arange(cell.microbatches, dtype=np.float64)
        return self.with_turns(cell, turn=even * self.tempo, enter=even * self.pace)

    def with_turns(self, cell: Cell, *, turn: Floats, enter: Floats, behind: float = 0.0) -> Cell:
        """The cell with keys at the `turn` of each microbatch instead of a tempo.

        enter : earliest start of each microbatch, instead of a pace.  behind : added to the keys of B. All
            are in units of the longest work of a stage.
        """
        period = cell.chunks * float(cell.durations.sum(axis=0).max())
        forward, backward = path_times(cell)
        keys = np.empty((3, cell.pipelines, len(cell.stage_of), cell.microbatches))
        keys[0] = forward[:, None] + turn * period
        keys[1] = backward[:, None] + (turn + behind) * period
        keys[2] = keys[1] + (kernel.LAST if self.put_off is None else self.put_off * period)
        return cell._replace(
            keys=keys,
            patience=self.patience,
            release=enter * period,
            window=cell.microbatches if self.window is None else self.window,
        )


def path_times(cell: Cell) -> tuple[Floats, Floats]:
    """When F and B of one microbatch would start at each position without waiting, shapes (positions,)."""
    link = cell.link_of[: len(cell.stage_of) - 1]
    cross = np.where(link < 0, 0.0, (cell.transfer_time + cell.latency)[link % len(cell.transfer_time)])
    f = cell.durations[kernel.F, cell.stage_of]
    b = cell.durations[kernel.B, cell.stage_of]
    forward = np.concatenate([[0.0], np.cumsum(f[:-1] + cross)])
    back = np.concatenate([[0.0], np.cumsum((b[1:] + cross)[::-1])])[::-1]
    return forward, forward[-1] + f[-1] + back


def starts(cell: Cell, rules: tuple[RecomputeRule, ...]) -> Iterator[Idea]:
    """Settings far from each other, the most promising first."""
    for pace in (0.0, 0.5, 1.0):
        for tempo in (0.5, 1.0, 4.0):
            for rule in rules:
                yield Idea(tempo=tempo, pace=pace, rule=rule)
    at_once = int(cell.cap.min()) // cell.chunks
    if cell.chunks > 1 and at_once < cell.microbatches:
        # As many microbatches at once as fit with all their chunks: none then waits for room.
        for tempo in (0.5, 1.0, 4.0):
            for rule in rules:
                yield Idea(tempo=tempo, window=at_once, rule=rule)


def neighbours(idea: Idea, cell: Cell, rules: tuple[RecomputeRule, ...]) -> Iterator[Idea]:
    """Settings that differ from `idea` in one value."""
    yield from (replace(idea, pace=pace) for pace in PACES)
    yield from (replace(idea, pace=idea.pace * finer) for finer in FINER if idea.pace)
    most = min(int(cell.cap[0]) - cell.chunks + 1, cell.microbatches)
    windows = {most - 1, most - 2, most - 3, most // 2 + 1, most // 2, most * 3 // 4, len(cell.position_of)}
    yield from (replace(idea, window=window) for window in sorted(windows) if 0 < window < most)
    yield replace(idea, window=None)
    yield from (replace(idea, tempo=tempo) for tempo in TEMPOS)
    yield from (replace(idea, patience=patience) for patience in PATIENCES)
    yield from (replace(idea, put_off=put_off) for put_off in PUT_OFFS if cell.split)
    yield from (replace(idea, rule=rule) for rule in rules)
