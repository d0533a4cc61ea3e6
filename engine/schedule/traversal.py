"""The path of a microbatch through stages and model chunks, and the links on it.

CrossPipe, "Traversal Patterns": unidirectional (UD; in sub-blocks UDSub), Loop and Wave.

A *position* is a model chunk on a stage. Forward, a microbatch visits the positions 0 … L−1 in order;
backward, in reverse. *Edge* v joins positions v and v + 1. It lies within a stage (free of charge) or crosses
a *hop*. Hop s joins stages s and s + 1. Hop P − 1, if a traversal has it, joins the last stage to the first.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

TraversalName = Literal["straight", "loop", "wave"]
WITHIN_STAGE = -1

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Traversal:
    """The forward order of (stage, chunk) (docs/dev/contracts.md, `traversal`).

    straight : every stage once; with several chunks these are sub-blocks that stay on their stage.
    loop : stages 0 … P−1 for chunk 0, then again for chunk 1, and so on.
    wave : 0 … P−1 for even chunks, back from P−1 to 0 for odd ones.
    """

    name: TraversalName
    stages: int
    chunks: int = 1

    @cached_property
    def positions(self) -> tuple[tuple[int, int], ...]:
        """(stage, chunk) in forward order, L = stages · chunks of them."""
        if self.name == "straight":
            return tuple((stage, chunk) for stage in range(self.stages) for chunk in range(self.chunks))
        passes = [range(self.stages)] * self.chunks
        if self.name == "wave":
            passes = [stages if chunk % 2 == 0 else stages[::-1] for chunk, stages in enumerate(passes)]
        return tuple((stage, chunk) for chunk, stages in enumerate(passes) for stage in stages)

    @property
    def ends_together(self) -> bool:
        """Whether the first and the last position lie on one stage."""
        return self.positions[0][0] == self.positions[-1][0]

    @cached_property
    def stage_of(self) -> Ints:
        """Stage of each position, shape (L,)."""
        return np.array([stage for stage, _ in self.positions], dtype=np.int64)

    @cached_property
    def chunk_of(self) -> Ints:
        """Chunk of each position, shape (L,)."""
        return np.array([chunk for _, chunk in self.positions], dtype=np.int64)

    @cached_property
    def position_of(self) -> Ints:
        """Position of each (stage, chunk), shape (stages, chunks)."""
        position = np.empty((self.stages, self.chunks), dtype=np.int64)
        position[self.stage_of, self.chunk_of] = np.arange(len(self.positions))
        return position

    @cached_property
    def hop_of(self) -> Ints:
        """The hop that each edge crosses, shape (L − 1,); −1 within a stage."""
        here, there = self.stage_of[:-1], self.stage_of[1:]
        hop = np.minimum(here, there)
        if self.name == "loop":
            hop = np.where(there < here, self.stages - 1, hop)
        return np.where(here == there, WITHIN_STAGE, hop)

    @cached_property
    def direction_of(self) -> Ints:
        """Direction in which an activation crosses each edge's hop, shape (L − 1,).

        0: from stage s to s + 1 (over the last hop: from P − 1 to 0). 1: the opposite direction. Gradients
        cross against it.
        """
        if self.name == "loop":
            return np.zeros(len(self.positions) - 1, dtype=np.int64)
        return (self.stage_of[1:] < self.stage_of[:-1]).astype(np.int64)

    @cached_property
    def link_of(self) -> Ints:
        """Link of each transfer, ``direction · P + hop``, shape (2 (L − 1),); −1 within a stage."""
        crosses = self.hop_of != WITHIN_STAGE
        there = np.where(crosses, self.direction_of * self.stages + self.hop_of, -1)
        back = np.where(crosses, (1 - self.direction_of) * self.stages + self.hop_of, -1)
        return np.concatenate([there, back])

    @cached_property
    def transfer_of(self) -> Ints:
        """Transfer that carries an output, shape (2 directions, stages hops, chunks of the producing op).

        A transfer is ``payload · (L − 1) + edge``; payload 0 is an activation, 1 a gradient. −1: nothing is
        sent.
        """
        edges = len(self.positions) - 1
        transfer_of = np.full((2, self.stages, self.chunks), -1, dtype=np.int64)
        for edge in range(edges):
            hop = int(self.hop_of[edge])
            if hop == WITHIN_STAGE:
                continue
            direction = int(self.direction_of[edge])
            transfer_of[direction, hop, self.positions[edge][1]] = edge
            transfer_of[1 - direction, hop, self.positions[edge + 1][1]] = edges + edge
        return transfer_of

    @property
    def wraps(self) -> bool:
        """Whether it uses the hop from the last stage to the first."""
        return self.name == "loop" and self.chunks > 1 and self.stages > 1


def straight(stages: int) -> Traversal:
    """Every stage once, in order: the traversal of policies without chunks."""
    return Traversal(name="straight", stages=stages)
