"""Which layers of a model are at which place of a pipeline, and so on which stage."""

from engine.schedule.traversal import Traversal


def layers_of_places(blocks: int, places: int) -> list[list[int]]:
    """The layers of each place in forward order: blocks evenly, the first places taking one more."""
    share, more = divmod(blocks, places)
    counts = [share + (place < more) for place in range(places)]
    firsts = [1 + sum(counts[:place]) for place in range(places)]
    numbers = [list(range(first, first + count)) for first, count in zip(firsts, counts, strict=True)]
    numbers[0].insert(0, 0)
    numbers[-1].append(blocks + 1)
    return numbers


def layers_of_stages(blocks: int, traversal: Traversal) -> list[list[int]]:
    """The layers of each stage, chunk after chunk, as `layers_of_places` numbers them."""
    places = layers_of_places(blocks, len(traversal.positions))
    positions = traversal.position_of.tolist()  # by stage and chunk
    return [[number for place in chunks for number in places[place]] for chunks in positions]
