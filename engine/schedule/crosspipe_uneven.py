"""Uneven tempos of CrossPipe's greedy: each microbatch enters at a time of its own.

If a memory limit and a long path leave a stage waiting, the best schedules are uneven: a burst of as many
microbatches as the memory allows, then one for each that has ended, then the next burst. Small random changes
of a good even setting find them.
"""

from dataclasses import dataclass, replace

import numpy as np

from engine.schedule.crosspipe_ideas import Floats, Idea
from engine.schedule.position_state import Cell

# Sizes of a change, in units of the longest work of a stage per microbatch.
STEPS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
PATIENCES = (0.0, 0.25, 0.5, 0.75, 1.0)
PUT_OFFS = (None, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Uneven:
    """An idea with its tempo and pace replaced by one number per microbatch, shape (microbatches,).

    turn : of its keys.  enter : its earliest start, ascending.  behind : added to the keys of its B.
    """

    idea: Idea
    turn: Floats
    enter: Floats
    behind: float = 0.0

    @classmethod
    def of(cls, idea: Idea, microbatches: int) -> "Uneven":
        """The same as `idea`."""
        even = np.arange(microbatches, dtype=np.float64)
        return cls(idea=idea, turn=even * idea.tempo, enter=even * idea.pace)

    def __str__(self) -> str:
        return f"{self.idea}, then uneven"

    def applied(self, cell: Cell) -> Cell:
        """The cell with its keys and limits."""
        return self.idea.with_turns(cell, turn=self.turn, enter=self.enter, behind=self.behind)

    def changed(self, random: np.random.Generator) -> "Uneven":
        """One to three small changes."""
        result = self
        for _ in range(random.choice((1, 1, 2, 3))):
            result = result._changed_once(random)
        return result

    def _changed_once(self, random: np.random.Generator) -> "Uneven":
        step = float(random.choice(STEPS) * random.choice((-1, 1)))
        first = int(random.integers(len(self.turn)))
        # From one microbatch on, or that one alone.
        which = slice(first, None) if random.random() < 0.6 else slice(first, first + 1)
        kind = random.random()
        if kind < 0.5:
            enter = self.enter.copy()
            enter[which] += step
            return replace(self, enter=np.maximum.accumulate(np.maximum(enter, 0.0)))
        if kind < 0.75:
            turn = self.turn.copy()
            turn[which] += step
            return replace(self, turn=turn)
        if kind < 0.8:
            return replace(self, behind=self.behind + 2 * step)
        return replace(self, idea=self._other_idea(random))

    def _other_idea(self, random: np.random.Generator) -> Idea:
        kind = random.integers(3)
        if kind == 0:
            return replace(self.idea, patience=PATIENCES[random.integers(len(PATIENCES))])
        if kind == 1:
            return replace(self.idea, put_off=PUT_OFFS[random.integers(len(PUT_OFFS))])
        most = len(self.turn)
        return replace(self.idea, window=int(random.integers(max(1, most // 4), most + 1)))
