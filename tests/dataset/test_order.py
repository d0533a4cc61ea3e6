"""The order of sequences: permutations, epochs and shares, against plain counting."""

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.dataset.document import WINDOW
from engine.dataset.order import Order, permuted


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 3000) | st.integers(4000, 40_000),
    key=st.tuples(st.integers(0, 2**62), st.integers(-2, 9)),
)
def test_every_index_comes_once(size: int, key: tuple[int, ...]) -> None:
    assert sorted(permuted(np.arange(size), size, key).tolist()) == list(range(size))


def test_it_looks_drawn() -> None:
    # Each of 5 numbers at each of 5 places: of 4,000 permutations 800, give or take six standard deviations.
    counts = np.zeros((5, 5), dtype=int)
    for seed in range(4000):
        counts[np.arange(5), permuted(np.arange(5), 5, (seed,))] += 1
    assert abs(counts - 800).max() < 6 * (4000 * 0.2 * 0.8) ** 0.5
    large = permuted(np.arange(100_000), 100_000, (7,))
    assert abs(np.corrcoef(large, np.arange(100_000))[0, 1]) < 0.02
    assert abs(np.corrcoef(large[1:], large[:-1])[0, 1]) < 0.02


def words(key: str) -> list[int]:
    digest = hashlib.sha512(key.encode()).digest()
    return [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 48, 8)]


def mixed(value: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ value >> shift) * factor % 2**64
    return value ^ value >> 31


def small(size: int, key: str) -> list[int]:
    first, second = words(key)[:2]
    return sorted(range(size), key=lambda n: mixed(mixed(n ^ first) ^ second))


def large(value: int, size: int, key: str) -> int:
    half = -(-(size - 1).bit_length() // 2)
    left, right = divmod(value, 2**half)
    for word in words(key):
        left, right = right, left ^ mixed(right ^ word) % 2**half
    image = left * 2**half + right
    return image if image < size else large(image, size, key)


def test_the_order_stays_for_ever() -> None:
    # Runs resume by it: another order is another format.
    assert permuted(np.arange(8), 8, (1, 2, 3)).tolist() == small(8, "1,2,3")
    assert permuted(np.arange(9), 5000, (1, -1)).tolist() == [large(n, 5000, "1,-1") for n in range(9)]
    order = Order(sizes=(5, 7), weights=(1.0, 3.0), seed=4)
    drawn = [array.tolist() for array in order.drawn(np.arange(6))]
    assert drawn == [[1, 1, 0, 1, 1, 1], [6, 1, 4, 2, 5, 4]]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 10**6),
)
def test_without_weights_an_epoch_is_every_sequence_once(sizes: list[int], seed: int, epoch: int) -> None:
    order = Order(sizes=tuple(sizes), weights=None, seed=seed)
    total = sum(sizes)
    drawn = order.drawn(np.arange(epoch * total, (epoch + 1) * total))
    everything = [(source, number) for source, size in enumerate(sizes) for number in range(size)]
    assert sorted(zip(*(array.tolist() for array in drawn), strict=True)) == everything


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=5),
    seed=st.integers(0, 99),
    window=st.integers(0, 10**6),
)
def test_shares_of_a_window_are_exact(weights: list[float], seed: int, window: int) -> None:
    order = Order(sizes=(13,) * len(weights), weights=tuple(weights), seed=seed)
    source, _ = order.drawn(np.arange(window * WINDOW, (window + 1) * WINDOW))
    shares = np.bincount(source, minlength=len(weights))
    assert abs(shares - np.array(weights) / sum(weights) * WINDOW).max() < 1
    assert shares.sum() == WINDOW


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(20, 6000), min_size=2, max_size=3),
    weights=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    seed=st.integers(0, 99),
)
def test_with_weights_each_source_has_epochs(sizes: list[int], weights: list[int], seed: int) -> None:
    order = Order(sizes=tuple(sizes), weights=tuple(map(float, weights[: len(sizes)])), seed=seed)
    source, number = order.drawn(np.arange(2 * WINDOW))
    for one, size in enumerate(sizes):
        times = Counter(number[source == one].tolist())
        drawn = int((source == one).sum())
        assert sum(times.values()) == drawn
        assert set(times) <= set(range(size))
        # Windows deal to a source in an order of their own: beyond whole windows a number may come early.
        assert drawn // size <= min(times.get(n, 0) for n in range(size)) + 1
        assert max(times.values()) <= -(-drawn // size)


def test_draws_do_not_depend_on_how_they_are_asked_for() -> None:
    order = Order(sizes=(50, 9), weights=(2.0, 1.0), seed=3)
    draws = np.random.default_rng(1).integers(0, 10**9, 300)
    together = order.drawn(draws)
    for position in range(0, 300, 37):
        alone = order.drawn(draws[position : position + 1])
        assert [int(a[0]) for a in alone] == [int(a[position]) for a in together]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_sources(size: int) -> None:
    assert {tuple(permuted(np.arange(size), size, (key,)).tolist()) for key in range(200)} == {
        (0,): {(0,)},
        (0, 1): {(0, 1), (1, 0)},
        (0, 1, 2): {(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)},
    }[tuple(range(size))]
