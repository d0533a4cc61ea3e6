"""Bottleneck perfect matching between two groups of devices (DT-FM §3.3, Eq. 3), compiled.

Rows are matched one after the other along augmenting paths over the pairs that cost at most a threshold. The
threshold starts at a lower bound. If no augmenting path exists, it rises to the cheapest pair that leaves the
alternating tree: by Hall's theorem no perfect matching exists below that, so the final threshold is the
bottleneck. The columns that a row may take are a set of bits, 64 to a word: O(D³/64) while it is not raised.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bits = NDArray[np.uint64]
FREE = -1

ONE, NONE = np.uint64(1), np.uint64(0)
# Position of the lowest bit of a word by multiplication with a de Bruijn sequence (Leiserson et al. 1998).
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
_SHIFT = np.uint64(58)
_POSITION = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    _POSITION[((int(_SEQUENCE) << _bit) & (2**64 - 1)) >> 58] = _bit


class MatchRoom(NamedTuple):
    """Working memory for groups of D devices."""

    edge: Floats  # (D, D), cost of each pair
    allowed: Bits  # (D, words): columns that a row may take
    row_of: Ints  # (D,), row matched with a column, or FREE
    column_of: Ints  # (D,), column matched with a row, or FREE
    parent: Ints  # (D,), row through which a column was reached
    unseen: Bits  # (words,): columns not reached yet
    queue: Ints  # (D,), rows of the alternating tree


def match_room(size: int) -> MatchRoom:
    """Working memory for groups of `size` devices."""
    words = -(-size // 64)
    return MatchRoom(
        edge=np.empty((size, size)),
        allowed=np.empty((size, words), dtype=np.uint64),
        row_of=np.empty(size, dtype=np.int64),
        column_of=np.empty(size, dtype=np.int64),
        parent=np.empty(size, dtype=np.int64),
        unseen=np.empty(words, dtype=np.uint64),
        queue=np.empty(size, dtype=np.int64),
    )


@compiled
def bottleneck(cost: Any, members: Any, a: int, b: int, bound: float, room: Any) -> float:
    """The least possible largest cost of a perfect matching between groups `a` and `b` of `members`.

    bound : no perfect matching is cheaper than this.

    Leaves the matching in ``room.column_of``: slot i of `a` goes with slot ``column_of[i]`` of `b`.
    """
    size = members.shape[1]
    for row in range(size):
        device = members[a, row]
        for column in range(size):
            room.edge[row, column] = cost[device, members[b, column]]
        room.column_of[row] = FREE
        room.row_of[row] = FREE
    _allow(bound, room)
    for row in range(size):
        while not _augment(row, room):
            bound = _cheapest_exit(room)
            _allow(bound, room)
    return bound


@compiled
def _allow(threshold: float, room: Any) -> None:
    """Lets each row take the columns that cost at most `threshold`."""
    size, words = room.edge.shape[0], room.allowed.shape[1]
    for row in range(size):
        for word in range(words):
            bits = NONE
            for column in range(word * 64, min(size, word * 64 + 64)):
                if room.edge[row, column] <= threshold:
                    bits |= ONE << np.uint64(column & 63)
            room.allowed[row, word] = bits


@compiled
def _augment(root: int, room: Any) -> bool:
    """Matches row `root` along an augmenting path; False if none exists.

    Then ``queue`` up to FREE holds the rows of the alternating tree, ``unseen`` the columns outside.
    """
    size, words = room.edge.shape[0], room.allowed.shape[1]
    for word in range(words):
        room.unseen[word] = ~NONE
    room.queue[0] = root
    first, last = 0, 1
    while first < last:
        row = room.queue[first]
        first += 1
        for word in range(words):
            bits = room.allowed[row, word] & room.unseen[word]
            room.unseen[word] &= ~bits
            while bits:
                lowest = bits & (~bits + ONE)
                bits ^= lowest
                column = 64 * word + _POSITION[(lowest * _SEQUENCE) >> _SHIFT]
                room.parent[column] = row
                if room.row_of[column] == FREE:
                    _flip(column, room)
                    return True
                room.queue[last] = room.row_of[column]
                last += 1
    if last < size:
        room.queue[last] = FREE
    return False


@compiled
def _cheapest_exit(room: Any) -> float:
    """The least cost of a pair of a row inside the alternating tree and a column outside."""
    size = room.edge.shape[0]
    least = np.inf
    for i in range(size):
        row = room.queue[i]
        if row == FREE:
            break
        for column in range(size):
            if (room.unseen[column >> 6] >> np.uint64(column & 63)) & ONE:
                least = min(least, room.edge[row, column])
    return least


@compiled
def _flip(column: int, room: Any) -> None:
    """Turns the alternating path that ends in the free `column` into matched pairs."""
    while column != FREE:
        row = room.parent[column]
        before = room.column_of[row]
        room.row_of[column] = row
        room.column_of[row] = column
        column = before
