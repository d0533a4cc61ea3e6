"""The order of sequences by counter: which one the n-th draw is follows from seed and n alone.

Nothing is stored and nothing is drawn before it is needed, so that a resumed run, another layout and every
replica read the same.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.dataset.document import WINDOW

ROUNDS = 6
SMALL = 4096  # up to it a permutation is sorted out: a small Feistel network knows few of them

Draws = NDArray[np.int64]


def permuted(index: Draws, size: int, key: tuple[int, ...]) -> Draws:
    """Where a pseudorandom permutation of range(size) puts some indexes.

    A small range is sorted by a hash of its numbers. Others go through a Feistel network over the next even
    power of two; an image beyond `size` is permuted again until it is within (cycle walking: Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002). Hash and round function are the finaliser of
    SplitMix64 (Steele, Lea and Flood, 2014).

    Parameters
    ----------
    index : each from 0 to size − 1.
    """
    digest = hashlib.sha512(",".join(map(str, key)).encode()).digest()
    keys = np.frombuffer(digest, dtype="<u8")[:ROUNDS]
    if size <= SMALL:
        hashes = _mixed(_mixed(np.arange(size, dtype=np.uint64) ^ keys[0]) ^ keys[1])
        return np.argsort(hashes, kind="stable")[index]
    half = np.uint64(((size - 1).bit_length() + 1) // 2)
    image = _network(index.astype(np.uint64), half, keys)
    while (beyond := image >= size).any():
        image[beyond] = _network(image[beyond], half, keys)
    return image.astype(np.int64)


def _network(value: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = value >> half, value & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True, slots=False, kw_only=True)
class Order:
    """The order in which sequences of sources are drawn.

    sizes : sequences of each source.
    weights : of the sources; None: an epoch is all sequences of all sources, each once. With weights each
        source has epochs of its own, and gets its share in every WINDOW draws, to one draw.
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...] | None
    seed: int

    def drawn(self, draws: Draws) -> tuple[Draws, Draws]:
        """Source and number of the sequence of some draws, counted from 0 over the whole run."""
        if self.weights is None:
            total = sum(self.sizes)
            place = self._in_epochs(draws, total, source=-1)
            source = np.searchsorted(self._ends, place, side="right")
            return source, place - (self._ends[source] - np.array(self.sizes)[source])
        source, turn = self._dealt(draws)
        number = np.empty_like(draws)
        for one in np.unique(source):
            of_one = source == one
            number[of_one] = self._in_epochs(turn[of_one], self.sizes[one], source=int(one))
        return source, number

    def _dealt(self, draws: Draws) -> tuple[Draws, Draws]:
        """Source of some draws, and how many draws that source had before."""
        source, turn = np.empty_like(draws), np.empty_like(draws)
        for window in np.unique(draws // WINDOW):
            inside = draws // WINDOW == window
            slot = permuted(draws[inside] % WINDOW, WINDOW, (self.seed, -2, int(window)))
            own = np.searchsorted(np.cumsum(self.shares), slot, side="right")
            source[inside] = own
            turn[inside] = window * self.shares[own] + slot - (np.cumsum(self.shares) - self.shares)[own]
        return source, turn

    def _in_epochs(self, turns: Draws, size: int, *, source: int) -> Draws:
        """The number that each turn has in the permutation of its epoch."""
        number = np.empty_like(turns)
        for epoch in np.unique(turns // size):
            inside = turns // size == epoch
            number[inside] = permuted(turns[inside] % size, size, (self.seed, source, int(epoch)))
        return number

    @cached_property
    def shares(self) -> Draws:
        """Draws of each source in a window: weights by largest remainders, each at least one."""
        assert self.weights is not None
        exact = np.array(self.weights) / sum(self.weights) * WINDOW
        shares = np.floor(exact).astype(np.int64)
        missing = WINDOW - int(shares.sum())
        shares[np.argsort(-(exact - shares), kind="stable")[:missing]] += 1
        return shares

    @cached_property
    def _ends(self) -> Draws:
        return np.cumsum(self.sizes)
