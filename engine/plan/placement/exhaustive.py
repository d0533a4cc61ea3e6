"""Every partition of the devices into groups, for problems small enough to score them all."""

from collections.abc import Iterator
from itertools import combinations
from math import factorial

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.partition_search import PartitionSearch

Ints = NDArray[np.int64]


def count(groups: int, size: int) -> int:
    """Partitions of groups·size devices into unordered groups of `size`: (P·D)! / (D!^P · P!)."""
    return factorial(groups * size) // (factorial(size) ** groups * factorial(groups))


def partitions(groups: int, size: int) -> Iterator[Ints]:
    """Each of them once, shape (P, D); the first device not placed yet opens the next group."""
    for chosen in _split(tuple(range(groups * size)), size):
        yield np.array(chosen, dtype=np.int64)


def _split(devices: tuple[int, ...], size: int) -> Iterator[list[tuple[int, ...]]]:
    if not devices:
        yield []
        return
    first, rest = devices[0], devices[1:]
    for others in combinations(rest, size - 1):
        taken = set(others)
        for more in _split(tuple(device for device in rest if device not in taken), size):
            yield [(first, *others), *more]


def score_all(search: PartitionSearch) -> bool:
    """Scores every partition; False if a limit stopped it before the last."""
    for members in partitions(search.problem.stages, search.problem.replicas):
        if search.spent % 256 == 0 and search.is_over:
            return False
        search.score(members)
    return True
