"""Lower bounds: proven figures, tight where they should be, and never above what anybody makes."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.schedule import Frame, Scenario, Search, Traversal, policy_of
from engine.schedule.registry import MODULES
from engine.schedule.timing import time_ops
from engine.schedule.traversal import TraversalName
from engine.simulate import lower_bound
from tests.engine.fig6 import FIG6

FUSED = {"forward": 1, "backward": 2, "recompute": 1}
SPLIT = {"forward": 1, "backward": 1, "weight": 1, "recompute": 1}
BED = {"stages": 4, "dc_of_stage": [0, 0, 1, 2], "pipelines": 3, "wan": {"transfer": 3}}


def wide(pipelines: int) -> dict[str, Any]:
    """60 stages in five data centres; a transfer over one share takes one slot per pipeline."""
    return {
        "stages": 60,
        "dc_of_stage": [s // 12 for s in range(60)],
        "pipelines": pipelines,
        "microbatches": 60,
        "wan": {"transfer": pipelines},
    }


def bound_of(document: dict[str, Any], name: TraversalName = "straight", chunks: int = 1) -> float:
    document = {"policy": "varuna", "sharing": "temporal", "spans": False, **document}
    scenario = parse(Scenario, document)
    traversal = Traversal(name=name, stages=scenario.stages, chunks=chunks)
    return lower_bound(scenario, Frame(traversal=traversal, sharing=scenario.sharing or "spatial"))


@pytest.mark.parametrize(
    ("case", "times", "full_limit", "bound"),
    [
        (FIG6, FUSED, 1, 34),
        (FIG6, FUSED, 2, 33),
        (FIG6, SPLIT, 1, 29),
        (FIG6, SPLIT, 4, 26),
        ({**BED, "microbatches": 4}, FUSED, None, 28),
        ({**BED, "microbatches": 16}, FUSED, None, 76),
        ({**BED, "microbatches": 4}, FUSED, 1, 29),
        ({**BED, "microbatches": 16}, FUSED, 1, 77),
        ({**BED, "microbatches": 4}, SPLIT, None, 24),
        ({**BED, "microbatches": 16}, SPLIT, None, 69),
        (wide(2), FUSED, None, 423),
        (wide(4), FUSED, None, 427),
        (wide(2), SPLIT, None, 306),
        (wide(4), SPLIT, None, 368),
    ],
)
def test_proven_bounds(case, times, full_limit, bound) -> None:
    # Of those that are known, one more for the wide split cells and one less for C = 4 (427 for 428).
    assert bound_of({**case, "times": times, "full_limit": full_limit}) == bound


@pytest.mark.parametrize(
    ("fields", "name", "chunks", "best"),
    [
        # Proven by the solver without these bounds.
        ({"times": {"forward": 1, "backward": 2}, "memory_limit": 4}, "wave", 2, 34.5),
        ({"times": {"forward": 1, "backward": 2}, "memory_limit": 8}, "loop", 2, 31.5),
        (
            {
                "stages": 8,
                "dc_of_stage": [0] * 4 + [1] * 4,
                "microbatches": 16,
                "memory_limit": 8,
                "times": {"forward": 1, "backward": 2},
            },
            "straight",
            1,
            78,
        ),
    ],
)
def test_tight_where_memory_is_short(fields, name, chunks, best) -> None:
    cell = {"stages": 4, "dc_of_stage": [0, 0, 1, 1], "microbatches": 6, "wan": {"latency": 1, "transfer": 1}}
    assert bound_of({**cell, **fields}, name, chunks) == best


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(1, 6))
def test_without_delay_the_bound_is_1f1b(stages, microbatches, forward, backward) -> None:
    document = {
        "stages": stages,
        "microbatches": microbatches,
        "times": {"forward": forward, "backward": backward},
    }
    assert bound_of(document) == (microbatches + stages - 1) * (forward + backward)


@given(st.integers(2, 8), st.integers(1, 8), st.integers(0, 9), st.integers(0, 9))
def test_one_at_a_time_the_bound_is_the_round_trips(stages, microbatches, latency, transfer) -> None:
    document = {
        "stages": stages,
        "dc_of_stage": list(range(stages)),
        "microbatches": microbatches,
        "memory_limit": 1,
        "times": {"forward": 2, "backward": 3},
        "wan": {"latency": latency, "transfer": transfer},
    }
    round_trip = stages * 5 + 2 * (stages - 1) * (latency + transfer)
    assert bound_of(document) == microbatches * round_trip


def test_a_loop_crosses_back_over_its_own_link() -> None:
    cell = {"stages": 2, "dc_of_stage": [0, 1], "microbatches": 1, "times": {"forward": 2, "backward": 2}}
    # Four places, three hops there and three back, of 1 + 4 each.
    assert bound_of({**cell, "wan": {"latency": 1, "transfer": 4}}, "loop", 2) == 4 * 2 + 2 * 3 * 5
    # A wave turns round on the last stage.
    assert bound_of({**cell, "wan": {"latency": 1, "transfer": 4}}, "wave", 2) == 4 * 2 + 2 * 2 * 5


def test_a_link_that_both_directions_of_a_wave_load() -> None:
    cell = {"stages": 2, "dc_of_stage": [0, 1], "microbatches": 20, "times": {"forward": 2, "backward": 2}}
    # To the second stage go 20 activations of chunk 0 and 20 gradients of chunk 1.
    assert bound_of({**cell, "wan": {"transfer": 10}}, "wave", 2) >= 2 * 20 * 10


@pytest.mark.parametrize("pipelines", [1, 3])
def test_large_and_extreme_scenarios_have_finite_bounds(pipelines: int) -> None:
    document = {
        "stages": 1000,
        "dc_of_stage": [s // 250 for s in range(1000)],
        "microbatches": 400,
        "pipelines": pipelines,
        "times": SPLIT,
        "wan": {"latency": 1e6, "transfer": 1e-6},
        "memory_limit": 7,
        "full_limit": 1,
    }
    assert math.isfinite(bound_of(document))


def limits(numbers: st.SearchStrategy[int], stages: int) -> st.SearchStrategy[Any]:
    """None, one number, or one per stage."""
    return st.one_of(st.none(), numbers, st.lists(numbers, min_size=stages, max_size=stages))


@st.composite
def frames_and_scenarios(draw: st.DrawFn) -> dict[str, Any]:
    stages = draw(st.integers(1, 6))
    per_stage = st.one_of(st.integers(1, 5), st.lists(st.integers(1, 5), min_size=stages, max_size=stages))
    return {
        "stages": stages,
        "dc_of_stage": [s // draw(st.integers(1, 3)) for s in range(stages)],
        "pipelines": draw(st.integers(1, 4)),
        "microbatches": draw(st.integers(1, 9)),
        "times": {
            "forward": draw(per_stage),
            "backward": draw(per_stage),
            "recompute": draw(st.one_of(st.just(0), per_stage)),
            "weight": draw(st.one_of(st.just(0), per_stage)),
        },
        "wan": {"latency": draw(st.integers(0, 6)), "transfer": draw(st.sampled_from([0, 1, 2, 3.5, 12]))},
        "lan": draw(st.sampled_from([{}, {"latency": 1, "transfer": 1}])),
        "sharing": draw(st.sampled_from(["spatial", "temporal"])),
        "memory_limit": draw(limits(st.sampled_from([1, 2, 3, 6]), stages)),
        "full_limit": draw(limits(st.sampled_from([1, 2]), stages)),
    }


@settings(max_examples=10, deadline=None)
@given(frames_and_scenarios())
def test_nothing_that_any_policy_makes_is_below_the_bound_of_its_frame(document: dict[str, Any]) -> None:
    assert_no_policy_is_below_its_bound(document)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(frames_and_scenarios())
def test_nor_is_anything_over_a_hundred_scenarios(document: dict[str, Any]) -> None:
    assert_no_policy_is_below_its_bound(document)


def assert_no_policy_is_below_its_bound(document: dict[str, Any]) -> None:
    for name in MODULES:
        if name in ("optimal", "auto"):
            continue
        scenario = parse(Scenario, {**document, "policy": name, "spans": False})
        try:
            built = policy_of(name).build(scenario, Search(seconds=2.0))
        except InputError:
            continue
        if isinstance(built, Infeasible):
            continue
        schedule = built.schedule
        bound = lower_bound(scenario, Frame(traversal=schedule.traversal, sharing=schedule.sharing))
        assert bound <= time_ops(scenario, schedule).makespan * (1 + 1e-9), name
