"""Times of the next decision of each actor, in a tree of minima, for the event loops; compiled.

An array of 2 n times, n a power of two: the root at 1, children of i at 2 i and 2 i + 1, actor a at n + a.
Numba does not see that a cached kernel uses this file; `compiled` keys its cache by the contents of all
files.
"""

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled


def sleeping(actors: int) -> NDArray[np.float64]:
    """A tree for `actors` actors without a decision to take."""
    return np.full(2 << (actors - 1).bit_length(), np.inf)


@compiled
def set_wake(wake, actor, time):
    """Sets the time at which `actor` wakes."""
    i = actor + len(wake) // 2
    wake[i] = time
    while i > 1:
        i //= 2
        least = min(wake[2 * i], wake[2 * i + 1])
        if wake[i] == least:
            return
        wake[i] = least


@compiled
def wakes_at(wake, actor):
    """The time at which `actor` wakes."""
    return wake[actor + len(wake) // 2]


@compiled
def latest_up_to(wake, horizon):
    """The actor with the highest number that wakes at or before `horizon`."""
    half = len(wake) // 2
    i = 1
    while i < half:
        i = 2 * i + 1 if wake[2 * i + 1] <= horizon else 2 * i
    return i - half


@compiled
def first_up_to(wake, horizon):
    """The actor with the lowest number that wakes at or before `horizon`."""
    half = len(wake) // 2
    i = 1
    while i < half:
        i = 2 * i if wake[2 * i] <= horizon else 2 * i + 1
    return i - half
