"""The search for sub-models: least bytes on the cut edges, then fewest, then earliest cuts; exact.

ATOM Algorithm 1 looks for feasible partitions by exhaustive search, layer by layer. This finds the best of
all. Its lines 1–7 (ValidConstraints) are `_followers`; as printed they check the memory of one sub-model at a
time (`resident` 1), and their test is inverted.

Of the feasible partitions, ATOM "selects the one that minimizes the total tensor sizes between sub-models"
(§III-D). The other half of its objective, the time of all sub-models forward and backward, never differs.

Every constraint joins two adjacent sub-models only (ATOM §III-D, Fig. 13). So the best cuts of the remaining
layers depend only on the sub-model before them: a dynamic programme over sub-models [i, j], from the last
layer back. All quantities are sums of non-negative terms. Hence the sub-models that may follow [i, j] end in
one interval of layers, and the best of them is a range minimum: O(l² log l) for l layers.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.plan.swap.layers import Layer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_LAYERS = 2_000
MOST_CUT_BYTES = 10**12  # MOST_LAYERS of these above the count of sub-models are less than 2^62
MOST_ACCUMULATION = 1_000_000

# Sums of seconds that are equal but for rounding count as equal.
ROUNDING = 1e-9
_CUT_BYTE = np.int64(2048)  # in sub-models: more than there can be
_NONE = np.int64(1) << np.int64(62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Constraints of a partition.

    capacity_bytes : of the device, less its permanent contents.
    resident : sub-models that must fit together: 2, the running and the loading one; 1 as ATOM prints it.
    accumulation : C; None ignores the overlap of running and loading.
    """

    capacity_bytes: float
    resident: int
    accumulation: int | None


class Chain:
    """The layers as prefix sums: the total of layers [i, j) is ``x[j] − x[i]``."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self.memory = _prefix([layer.memory_bytes for layer in layers])
        self.forward = _prefix([layer.forward_s for layer in layers])
        self.backward = _prefix([layer.backward_s for layer in layers])
        self.load = _prefix([layer.load_s for layer in layers])
        self.cut: Ints = np.array([layer.cut_bytes for layer in layers], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def whole_bytes(self) -> float:
        """Memory of all layers."""
        return float(self.memory[-1])


def partition(chain: Chain, constraints: Constraints) -> tuple[int, ...] | None:
    """First layers of the sub-models, or None if no partition keeps the constraints."""
    best = _table(chain, constraints)
    return _first_layers(chain, constraints, best) if best[0].min() < _NONE else None


def smallest_accumulation(chain: Chain, constraints: Constraints) -> int | None:
    """Least C up to `MOST_ACCUMULATION` for which a partition exists; None if there is none.

    If C suffices, so does C + 1: it is doubled until it suffices, then bisected.
    """
    if not _exists(chain, constraints, MOST_ACCUMULATION):
        return None
    enough = 1
    while not _exists(chain, constraints, min(enough, MOST_ACCUMULATION)):
        enough *= 2
    return bisect_left(
        range(MOST_ACCUMULATION),
        True,
        lo=enough // 2 + 1,
        hi=min(enough, MOST_ACCUMULATION),
        key=lambda accumulation: _exists(chain, constraints, accumulation),
    )


def _exists(chain: Chain, constraints: Constraints, accumulation: int) -> bool:
    return bool(_table(chain, replace(constraints, accumulation=accumulation))[0].min() < _NONE)


def _table(chain: Chain, constraints: Constraints) -> Ints:
    """Cost of the best partition of layers i… whose first sub-model is [i, j]; shape (layers, layers).

    A cost is one number: cut bytes · 2,048 + sub-models; `_NONE` if there is no such partition.
    """
    n = len(chain)
    best = np.full((n, n), _NONE, dtype=np.int64)
    alone = np.flatnonzero(chain.memory[-1] - chain.memory[:-1] <= constraints.capacity_bytes)
    best[alone, n - 1] = 1
    for cut in range(n - 1, 0, -1):  # [i, cut) before, [cut, k] after it
        first = np.searchsorted(chain.memory, chain.memory[cut] - constraints.capacity_bytes, "left")
        before = np.arange(min(int(first), cut), cut)
        if before.size == 0:
            continue
        low, high = _followers(chain, constraints, before, cut)
        after = _range_minimum(best[cut], low, high)
        best[before, cut - 1] = np.minimum(after + chain.cut[cut - 1] * _CUT_BYTE + 1, _NONE)
    return best


def _followers(chain: Chain, constraints: Constraints, before: Ints, cut: int) -> tuple[Ints, Ints]:
    """The least and the greatest k for which [cut, k] may follow [i, cut), for each i of `before`.

    Both fit (memory); C·t^f of [i, cut) covers loading [cut, k] in the forward pass; C·t^b of [cut, k]
    covers loading [i, cut) in the backward pass (ATOM §III-D).
    """
    memory = chain.memory
    resident_bytes = memory[cut] - memory[before] if constraints.resident == 2 else np.zeros(len(before))
    high = _greatest(memory, memory[cut] + constraints.capacity_bytes - resident_bytes)
    low = np.full(len(before), cut, dtype=np.int64)
    if constraints.accumulation is not None:
        c = constraints.accumulation
        covered = c * (chain.forward[cut] - chain.forward[before]) * (1 + ROUNDING)
        high = np.minimum(high, _greatest(chain.load, chain.load[cut] + covered + _noise(chain.load)))
        needed = (chain.load[cut] - chain.load[before]) / c * (1 - ROUNDING)
        reached = chain.backward[cut] + needed - _noise(chain.backward)
        low = np.maximum(low, np.searchsorted(chain.backward, reached, "left").astype(np.int64) - 1)
    return low, high


def _greatest(sums: Floats, most: Floats) -> Ints:
    """The greatest k with ``sums[k + 1] <= most``, for each of `most`."""
    return np.searchsorted(sums, most, "right").astype(np.int64) - 2


def _noise(sums: Floats) -> float:
    """Bound on the rounding of a difference of two prefix sums."""
    return float(4 * np.finfo(np.float64).eps * sums[-1])


def _range_minimum(row: Ints, low: Ints, high: Ints) -> Ints:
    """Least of ``row[low…high]`` for each pair; `_NONE` if the range is empty."""
    minima = np.full(len(low), _NONE, dtype=np.int64)
    at = np.flatnonzero(low <= high)
    if at.size == 0:
        return minima
    start = int(low[at].min())
    low, high = low[at] - start, high[at] - start
    level = np.frexp((high - low + 1).astype(np.float64))[1] - 1  # floor of the binary logarithm
    table = [row[start : start + int(high.max()) + 1]]
    for exponent in range(int(level.max())):
        half = 1 << exponent
        table.append(np.minimum(table[-1][:-half], table[-1][half:]))
    for exponent in np.unique(level):
        of = level == exponent
        spans = table[exponent]
        minima[at[of]] = np.minimum(spans[low[of]], spans[high[of] - (1 << int(exponent)) + 1])
    return minima


def _first_layers(chain: Chain, constraints: Constraints, best: Ints) -> tuple[int, ...]:
    """The partition of least cost with the earliest cuts: each time the first end that still reaches it."""
    firsts, start = [0], 0
    end = int(np.argmin(best[0]))
    while end < len(chain) - 1:
        left = best[start, end] - chain.cut[end] * _CUT_BYTE - 1
        low, high = _followers(chain, constraints, np.array([start], dtype=np.int64), end + 1)
        start = end + 1
        choices = best[start, low[0] : high[0] + 1]
        end = int(low[0] + np.flatnonzero(choices == left)[0])
        firsts.append(start)
    return tuple(firsts)


def _prefix(values: Sequence[float]) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
