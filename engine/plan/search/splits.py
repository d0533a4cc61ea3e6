"""Splits: the number of stages that each data centre of a route takes, at least one each."""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

Split = tuple[int, ...]

# Up to this many splits of a route are all tried.
MOST_EXACT = 16


def splits(capacities: Sequence[int], stages: int) -> tuple[list[Split], bool]:
    """All splits if they are few; else those filled from the front, from the back, and evenly.

    Also whether these are all.
    """
    if _are_few(tuple(sorted(capacities)), stages):
        return list(_all(capacities, stages)), True
    front = _filled(capacities, stages)
    back = tuple(reversed(_filled(list(reversed(capacities)), stages)))
    return list(dict.fromkeys([front, back, _even(capacities, stages)])), False


@lru_cache(maxsize=10_000)  # routes through the same data centres have the same number
def _are_few(capacities: Split, stages: int) -> bool:
    return len(list(itertools.islice(_all(capacities, stages), MOST_EXACT + 1))) <= MOST_EXACT


def _all(capacities: Sequence[int], stages: int) -> Iterator[Split]:
    if len(capacities) == 1:
        if 1 <= stages <= capacities[0]:
            yield (stages,)
        return
    later = sum(capacities[1:])
    for taken in range(max(1, stages - later), min(capacities[0], stages - len(capacities) + 1) + 1):
        for rest in _all(capacities[1:], stages - taken):
            yield (taken, *rest)


def _filled(capacities: Sequence[int], stages: int) -> Split:
    """Each data centre takes as many stages as it holds, but leaves one to each that follows."""
    split, left = [], stages
    for i, capacity in enumerate(capacities):
        taken = min(capacity, left - (len(capacities) - i - 1))
        split.append(taken)
        left -= taken
    return tuple(split)


def _even(capacities: Sequence[int], stages: int) -> Split:
    """Shares that differ by at most one, unless a data centre is full; the first take the odd stages."""
    level = 1
    split = [1] * len(capacities)
    while (taken := sum(min(capacity, level + 1) for capacity in capacities)) <= stages:
        level += 1
        split = [min(capacity, level) for capacity in capacities]
        if taken == stages:
            break
    left = stages - sum(split)
    for i, capacity in enumerate(capacities):
        if left and capacity > level:
            split[i] += 1
            left -= 1
    return tuple(split)
