"""The memory of stages whose layers are in several chunks."""

from collections.abc import Callable, Collection, Sequence

from engine.model.memory import StageMemory
from engine.schedule.layers import layers_of_stages
from engine.schedule.traversal import Traversal

# The memory of each stage, and of each stage what each of its chunks holds of a microbatch.
ByChunk = tuple[tuple[StageMemory, ...], list[list[StageMemory]]]


def memory_by_chunk(
    blocks: int,
    traversal: Traversal,
    per_stage: Sequence[int] | None,
    of_layers: Callable[[Collection[int]], StageMemory],
) -> ByChunk:
    """The memory of each stage and each chunk: a wave has the head on the GPU of the embedding, and keeps it
    of the microbatches of its chunk alone.

    blocks, per_stage : as in `layers_of_stages`.  of_layers : the memory of a GPU with these layers, numbered
        as there.
    """
    stages = layers_of_stages(blocks, traversal, per_stage)
    whole = tuple(of_layers({number for chunk in chunks for number in chunk}) for chunks in stages)
    return whole, [[of_layers(set(chunk)) for chunk in chunks] for chunks in stages]
