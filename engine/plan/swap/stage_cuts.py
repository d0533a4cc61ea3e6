"""Cuts of a pipeline into stages: shortest beat, then least bytes, then balance; exact.

Dynamic programmes over the stages, from the last one back, with all pairs of ends in one matrix:
O(stages · l²) for l layers.
"""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from engine.plan.swap.partition import ROUNDING, Chain, Floats, Ints

# More than any sum of cut bytes.
NEVER = 1 << 61


class StageCuts:
    """Cuts of one chain into `stages` stages, for networks of any rate.

    Matrices are indexed by the first layer of a stage and by its last.
    """

    def __init__(self, chain: Chain, stages: int) -> None:
        self.chain, self.stages = chain, stages
        sums = chain.forward + chain.backward
        layers = len(chain)
        is_stage = np.triu(np.ones((layers, layers), dtype=bool))
        self.work_s: Floats = np.where(is_stage, sums[None, 1:] - sums[:-1, None], np.inf)
        self.edge: Ints = np.append(chain.cut[:-1], 0)
        self.lengths_s: Floats = np.unique(self.work_s[is_stage])

    def firsts(self, bytes_per_s: float) -> tuple[int, ...]:
        """First layers of the stages: shortest beat (forward and backward of a stage; one transfer of a hop),
        then least cut bytes, then shortest longest stage, then earliest cuts.
        """
        hop_s = self.edge / bytes_per_s
        beat_s = self._shortest_beat(hop_s) * (1 + ROUNDING)
        usable = hop_s <= beat_s
        least = self._cut_bytes(usable, beat_s)[self.stages, 0]

        def is_enough(length: int) -> bool:
            """Whether no stage longer than this length is needed for the least cut bytes."""
            return bool(self._cut_bytes(usable, self._longest(length))[self.stages, 0] == least)

        most = int(np.searchsorted(self.lengths_s, beat_s, "right")) - 1
        return self._earliest(usable, self._longest(bisect_left(range(most), True, key=is_enough)))

    def _longest(self, index: int) -> float:
        return float(self.lengths_s[index]) * (1 + ROUNDING)

    def _shortest_beat(self, hop_s: Floats) -> float:
        """Of the whole chain: its longest stage or hop, were it cut to make that short."""
        alone = np.maximum(self.work_s, hop_s[None, :])
        beat = np.append(np.full(len(self.chain), np.inf), 0.0)  # of layers i… in no stage
        for _ in range(self.stages):
            beat = np.append(np.min(np.maximum(alone, beat[None, 1:]), axis=1), np.inf)
        return float(beat[0])

    def _cut_bytes(self, usable: NDArray[np.bool_], longest_s: float) -> Ints:
        """Least bytes on the cuts of layers i… in s stages of at most `longest_s`, at [s, i]."""
        fits = usable[None, :] & (self.work_s <= longest_s)
        cost = np.full((self.stages + 1, len(self.chain) + 1), NEVER, dtype=np.int64)
        cost[0, -1] = 0
        for s in range(1, self.stages + 1):
            after = np.minimum(cost[s - 1, 1:] + self.edge, NEVER)
            cost[s, :-1] = np.min(np.where(fits, after[None, :], NEVER), axis=1)
        return cost

    def _earliest(self, usable: NDArray[np.bool_], longest_s: float) -> tuple[int, ...]:
        cost = self._cut_bytes(usable, longest_s)
        firsts, i = [0], 0
        for s in range(self.stages, 1, -1):
            reached = cost[s - 1, 1:] + self.edge == cost[s, i]
            fits = usable & (self.work_s[i] <= longest_s)
            i = 1 + int(np.flatnonzero(reached & fits)[0])
            firsts.append(i)
        return tuple(firsts)
