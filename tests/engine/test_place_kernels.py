"""The inner solve of placement against independent solutions: matching, path, and costs after swaps."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.plan.placement import kernel_moves, kernel_path
from engine.plan.placement.kernel_cost import TOTAL, finish_swap, swap, unswap
from engine.plan.placement.kernel_matching import bottleneck, match_room
from engine.plan.placement.partition_search import PartitionSearch
from engine.plan.placement.problem import problem

Floats = NDArray[np.float64]

SEEDS = st.integers(0, 2**32 - 1)


def symmetric(rng: np.random.Generator, size: int, kind: str) -> Floats:
    """Costs with many ties, with none, or of places in a plane; 0 on the diagonal."""
    if kind == "plane":
        x = rng.random((size, 2))
        return np.hypot(*(x[:, None] - x[None]).transpose(2, 0, 1))
    costs = rng.integers(1, 6, (size, size)).astype(float) if kind == "ties" else rng.random((size, size))
    upper = np.triu(costs, 1)
    return upper + upper.T


def least_bottleneck(costs: Floats) -> float:
    """By bisection over the costs: is there a perfect matching of pairs that cost no more?"""
    from scipy.optimize import linear_sum_assignment  # here: every test process would import it

    values = np.unique(costs)
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        dear = (costs > values[middle]).astype(float)
        if dear[linear_sum_assignment(dear)].sum() == 0:
            high = middle
        else:
            low = middle + 1
    return float(values[low])


@given(seed=SEEDS, size=st.integers(1, 80), kind=st.sampled_from(["ties", "none"]))
@settings(max_examples=60, deadline=None)
def test_matching_is_the_least_bottleneck(seed: int, size: int, kind: str) -> None:
    costs = symmetric(np.random.default_rng(seed), 2 * size, kind)
    room = match_room(size)
    length = bottleneck(costs, np.arange(2 * size).reshape(2, size), 0, 1, 0.0, room)
    between = costs[:size, size:]
    assert sorted(room.column_of) == list(range(size))
    assert length == between[np.arange(size), room.column_of].max() == least_bottleneck(between)


@given(seed=SEEDS, groups=st.integers(2, 7), kind=st.sampled_from(["ties", "none", "plane"]))
@settings(max_examples=60, deadline=None)
def test_held_karp_is_the_best_permutation(seed: int, groups: int, kind: str) -> None:
    between = symmetric(np.random.default_rng(seed), groups, kind)
    room, order = kernel_path.path_room(groups), np.arange(groups)
    length = kernel_path.held_karp(between, room)
    kernel_path.trace(between, order, room)
    best = min(
        sum(between[a, b] for a, b in itertools.pairwise(path))
        for path in itertools.permutations(range(groups))
    )
    assert length == pytest.approx(best, rel=1e-12)
    assert kernel_moves.length(between, order) == pytest.approx(best, rel=1e-12)


@given(seed=SEEDS, groups=st.integers(11, 13), kind=st.sampled_from(["ties", "none", "plane"]))
@settings(max_examples=40, deadline=None)
def test_branch_and_bound_matches_held_karp(seed: int, groups: int, kind: str) -> None:
    between = symmetric(np.random.default_rng(seed), groups, kind)
    room, order = kernel_path.path_room(groups), np.arange(groups)
    best = kernel_path.held_karp(between, room)
    length = kernel_path.shortest(between, order, np.inf, True, room)
    assert length == pytest.approx(best, rel=1e-12)
    assert sorted(order) == list(range(groups))
    assert kernel_moves.length(between, order) == pytest.approx(best, rel=1e-12)
    # A limit just above the answer lets it through, one just below does not.
    assert kernel_path.shortest(between, np.arange(groups), best * 1.001, True, room) <= best * (1 + 1e-9)
    assert kernel_path.shortest(between, np.arange(groups), best * 0.999, True, room) > best * 0.999


@given(seed=SEEDS, shape=st.sampled_from([(2, 5), (3, 3), (8, 2), (4, 70), (12, 3), (20, 2)]))
@settings(max_examples=25, deadline=None)
def test_costs_after_swaps_are_those_of_a_fresh_evaluation(seed: int, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    stages, replicas = shape
    devices = stages * replicas
    kind = "ties" if seed % 2 else "none"
    task = problem(symmetric(rng, devices, kind), 1 + symmetric(rng, devices, "ties"), stages, 3.0, 5.0)
    search = PartitionSearch(problem=task, limit=10**6)
    search.score(search.shuffled())
    for _ in range(12):
        one, other = (int(device) for device in rng.choice(devices, 2, replace=False))
        if search.state.group[one] == search.state.group[other]:
            continue
        before = [np.copy(array) for array in search.state]
        assert swap(search.costs, search.state, one, other, np.inf, search.room)
        after = finish_swap(search.costs, search.state, one, other, np.inf, search.room)
        if rng.random() < 0.5:
            unswap(search.state, one, other, search.room)
            assert all(np.array_equal(x, y) for x, y in zip(before, search.state, strict=True))
            continue
        before_swap = [np.copy(x) for x in (search.state.inside, search.state.between, search.state.nearest)]
        fresh = PartitionSearch(problem=task, limit=1)
        exact = fresh.score(search.state.members)
        again = (fresh.state.inside, fresh.state.between, fresh.state.nearest)
        assert all(np.array_equal(x, y) for x, y in zip(before_swap, again, strict=True))
        if stages <= kernel_path.EXACT:
            assert after >= exact * (1 - 1e-12)
        if stages <= kernel_path.DIRECT:
            assert after == pytest.approx(exact, rel=1e-12)


@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_bounds_only_rule_out_what_is_above_the_limit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = problem(symmetric(rng, 24, "none"), 1 + symmetric(rng, 24, "none"), 6, 3.0, 5.0)
    search = PartitionSearch(problem=task, limit=10**6)
    search.score(search.shuffled())
    one, other = int(search.state.members[0, 0]), int(search.state.members[3, 1])
    swap(search.costs, search.state, one, other, np.inf, search.room)
    true = finish_swap(search.costs, search.state, one, other, np.inf, search.room)
    unswap(search.state, one, other, search.room)
    assert swap(search.costs, search.state, one, other, true, search.room)
    assert finish_swap(search.costs, search.state, one, other, true, search.room) == true
    assert search.state.cost[TOTAL] == true
