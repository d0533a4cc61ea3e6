"""Swap partitions against exhaustive search in exact fractions, for chains that are small enough."""

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan.swap.layers import Layer, sub_models
from engine.plan.swap.partition import Chain, Constraints, partition, smallest_accumulation
from engine.plan.swap.search import Room, find

LAYER = st.builds(
    lambda memory, forward, backward, load, cut: Layer(
        name="x",
        memory_bytes=float(memory),
        forward_s=forward / 10,
        backward_s=backward / 10,
        load_s=load / 10,
        cut_bytes=cut,
        parameter_bytes=float(load),
    ),
    memory=st.integers(0, 6),
    forward=st.integers(0, 4),
    backward=st.integers(0, 6),
    load=st.integers(0, 9),
    cut=st.integers(0, 3),
)
CHAINS = st.lists(LAYER, min_size=1, max_size=8)


def tenths(seconds: float) -> Fraction:
    return Fraction(round(seconds * 10), 10)


def cuts_of(n: int) -> Iterator[tuple[int, ...]]:
    """Every partition of n layers, by first layers."""
    for count in range(n):
        for cuts in itertools.combinations(range(1, n), count):
            yield (0, *cuts)


def allowed(layers: Sequence[Layer], firsts: tuple[int, ...], limits: Constraints) -> bool:
    """The constraints of ATOM Fig. 13, word for word, in fractions."""
    runs = [layers[i:j] for i, j in itertools.pairwise([*firsts, len(layers)])]
    memory = [sum(layer.memory_bytes for layer in run) for run in runs]
    if any(one > limits.capacity_bytes for one in memory):
        return False
    for i in range(len(runs) - 1):
        if limits.resident == 2 and memory[i] + memory[i + 1] > limits.capacity_bytes:
            return False
        if limits.accumulation is None:
            continue
        forward = sum(tenths(layer.forward_s) for layer in runs[i])
        backward = sum(tenths(layer.backward_s) for layer in runs[i + 1])
        loads = [sum(tenths(layer.load_s) for layer in run) for run in runs]
        if limits.accumulation * forward < loads[i + 1] or limits.accumulation * backward < loads[i]:
            return False
    return True


def best(layers: Sequence[Layer], limits: Constraints) -> tuple[int, ...] | None:
    """Least cut bytes, fewest sub-models, earliest cuts: by trying all."""
    choice = [firsts for firsts in cuts_of(len(layers)) if allowed(layers, firsts, limits)]
    cost = {firsts: sum(layers[i - 1].cut_bytes for i in firsts[1:]) for firsts in choice}
    return min(choice, key=lambda firsts: (cost[firsts], len(firsts), firsts), default=None)


@settings(max_examples=300, deadline=None)
@given(
    layers=CHAINS,
    capacity=st.integers(1, 20),
    resident=st.sampled_from([1, 2]),
    accumulation=st.sampled_from([1, 2, 3, 5, 9, None]),
)
def test_the_partition_is_the_one_that_trying_all_gives(
    layers: list[Layer], capacity: int, resident: int, accumulation: int | None
) -> None:
    limits = Constraints(capacity_bytes=capacity, resident=resident, accumulation=accumulation)
    assert partition(Chain(layers), limits) == best(layers, limits)


@settings(max_examples=100, deadline=None)
@given(
    layers=CHAINS.filter(lambda layers: len(layers) < 7),
    capacity=st.integers(1, 20),
    resident=st.sampled_from([1, 2]),
)
def test_the_smallest_accumulation_is_the_first_that_has_a_partition(
    layers: list[Layer], capacity: int, resident: int
) -> None:
    def limits(c: int) -> Constraints:
        return Constraints(capacity_bytes=capacity, resident=resident, accumulation=c)

    choice = smallest_accumulation(Chain(layers), limits(1))
    # loads are at most 8 · 0.9 s and a time that is not 0 at least 0.1 s: 72 mini-batches cover what can be
    first = next((c for c in range(1, 73) if best(layers, limits(c)) is not None), None)
    assert choice == first


@settings(max_examples=100, deadline=None)
@given(layers=CHAINS, capacity=st.integers(1, 20), stored=st.integers(0, 2), gradients=st.booleans())
def test_what_stays_on_the_device_is_taken_off_the_memory(
    layers: list[Layer], capacity: int, stored: int, gradients: bool
) -> None:
    stay = sum(layer.parameter_bytes for layer in layers) if gradients else 0.0
    room = Room(capacity_bytes=capacity, gradients_bytes=stay, stored_bytes=stored, resident=2)
    choice = find(Chain(layers), room, None)

    def at(c: int) -> tuple[int, ...] | None:
        left = capacity - stay - c * stored
        limits = Constraints(capacity_bytes=left, resident=2, accumulation=c)
        return best(layers, limits) if left > 0 else None

    first = next((c for c in range(1, 73) if at(c) is not None), None)
    assert (choice.accumulation if choice.firsts else None) == first
    if first is None:
        assert choice.reason
    else:
        assert choice.firsts == at(first)


@settings(max_examples=100, deadline=None)
@given(layers=CHAINS, capacity=st.integers(1, 20), more=st.integers(0, 10))
def test_more_memory_never_needs_more_mini_batches(layers: list[Layer], capacity: int, more: int) -> None:
    def needed(size: int) -> int | None:
        limits = Constraints(capacity_bytes=size, resident=2, accumulation=None)
        return smallest_accumulation(Chain(layers), limits)

    before, after = needed(capacity), needed(capacity + more)
    assert before is None or (after is not None and after <= before)


@settings(max_examples=50, deadline=None)
@given(layers=CHAINS, capacity=st.integers(1, 20), factor=st.sampled_from([1e-6, 1e-3, 1e3]))
def test_units_of_time_do_not_matter(layers: list[Layer], capacity: int, factor: float) -> None:
    scaled = [
        Layer(
            name=layer.name,
            memory_bytes=layer.memory_bytes,
            forward_s=layer.forward_s * factor,
            backward_s=layer.backward_s * factor,
            load_s=layer.load_s * factor,
            cut_bytes=layer.cut_bytes,
            parameter_bytes=layer.parameter_bytes,
        )
        for layer in layers
    ]
    limits = Constraints(capacity_bytes=capacity, resident=2, accumulation=3)
    assert partition(Chain(scaled), limits) == partition(Chain(layers), limits)


def test_the_longest_chain_with_the_widest_edges_is_counted_exactly() -> None:
    layer = Layer(
        name="x", memory_bytes=1, forward_s=1, backward_s=2, load_s=1, cut_bytes=10**12, parameter_bytes=1
    )
    choice = partition(Chain([layer] * 2000), Constraints(capacity_bytes=1, resident=1, accumulation=1))
    assert choice == tuple(range(2000)), "each layer alone: 1,999 cuts of 10^12 bytes"


def test_hundreds_of_equal_layers_are_cut_into_equal_runs() -> None:
    """600 layers, ten to a GPU's memory, five to each of its two halves."""
    layer = Layer(
        name="x", memory_bytes=1, forward_s=1, backward_s=2, load_s=1, cut_bytes=7, parameter_bytes=1
    )
    choice = partition(Chain([layer] * 600), Constraints(capacity_bytes=10, resident=2, accumulation=9))
    assert choice is not None
    subs = sub_models([layer] * 600, choice)
    # fewest: runs of a and 10 − a in turn, 9 + 1 as good as 5 + 5: 120 in any case, and no pair over 10
    assert len(subs) == 120
    assert all(a.memory_bytes + b.memory_bytes <= 10 for a, b in itertools.pairwise(subs))


@pytest.mark.parametrize(
    ("memory", "capacity", "resident", "word"),
    [
        ([5, 9, 5], 8, 2, "layer 1 (m1) needs 9 bytes"),
        ([5, 6, 5], 10, 2, "layers 0 and 1, one running and one loading, need 11 bytes"),
    ],
)
def test_what_does_not_fit_is_named(memory: list[int], capacity: int, resident: int, word: str) -> None:
    layers = [
        Layer(
            name=f"m{i}", memory_bytes=m, forward_s=1, backward_s=1, load_s=1, cut_bytes=0, parameter_bytes=1
        )
        for i, m in enumerate(memory)
    ]
    room = Room(capacity_bytes=capacity, gradients_bytes=0, stored_bytes=0, resident=resident)
    choice = find(Chain(layers), room, None)
    assert not choice.firsts
    assert choice.reason is not None
    assert word in choice.reason
