"""Which layers of a model are on which stage of a pipeline, and in which of its chunks."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from engine.schedule.traversal import Traversal


def layers_of_stages(
    blocks: int, traversal: Traversal, per_stage: Sequence[int] | None = None
) -> list[list[list[int]]]:
    """The layers by stage and chunk: 0 is the embedding, 1 to `blocks` the blocks, then the head.

    per_stage : blocks of each stage, which its chunks share; by default all chunks of the pipeline share
        them. Shares are as even as possible; the first chunks take one more.
    """
    positions = traversal.positions
    if per_stage is None:
        counts = _shares(blocks, len(positions))
    else:
        shares = [_shares(count, traversal.chunks) for count in per_stage]
        counts = [shares[stage][chunk] for stage, chunk in positions]
    ends = [*accumulate(counts, initial=1)]
    numbers = [list(range(first, end)) for first, end in pairwise(ends)]
    numbers[0].insert(0, 0)
    numbers[-1].append(blocks + 1)
    return [[numbers[position] for position in chunks] for chunks in traversal.position_of.tolist()]


def _shares(count: int, parts: int) -> list[int]:
    share, more = divmod(count, parts)
    return [share + (part < more) for part in range(parts)]
