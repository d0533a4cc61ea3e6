"""Splits: how many of the stages each data centre of a route takes; each takes at least one."""

import itertools
from collections.abc import Iterator, Sequence

Split = tuple[int, ...]

# Up to so many splits of a route are all tried.
MOST_EXACT = 16


def splits(capacities: Sequence[int], stages: int) -> list[Split]:
    """All splits where they are few, else some: filled from the front, from the back, and evenly."""
    few = list(itertools.islice(_all(capacities, stages), MOST_EXACT + 1))
    return few if len(few) <= MOST_EXACT else _some(capacities, stages)


def are_all(capacities: Sequence[int], stages: int) -> bool:
    """Whether :func:`splits` gives all of them."""
    return len(list(itertools.islice(_all(capacities, stages), MOST_EXACT + 1))) <= MOST_EXACT


def _some(capacities: Sequence[int], stages: int) -> list[Split]:
    front = _filled(capacities, stages)
    back = tuple(reversed(_filled(list(reversed(capacities)), stages)))
    return list(dict.fromkeys([front, back, _even(capacities, stages)]))


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
    """Each takes what it holds, leaving one stage to each that follows."""
    split, left = [], stages
    for i, capacity in enumerate(capacities):
        taken = min(capacity, left - (len(capacities) - i - 1))
        split.append(taken)
        left -= taken
    return tuple(split)


def _even(capacities: Sequence[int], stages: int) -> Split:
    """Shares that differ by one at most, but where a data centre is full."""
    split = [1] * len(capacities)
    for _ in range(stages - len(capacities)):
        open_ = [i for i, n in enumerate(split) if n < capacities[i]]
        split[min(open_, key=lambda i: (split[i], i))] += 1
    return tuple(split)
