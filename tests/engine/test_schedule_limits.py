"""Limits by stage: as many equal numbers are one number, and no stage holds more than its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.schedule import Built, Scenario, Search, build
from engine.schedule.registry import MODULES, SEARCHING
from engine.schedule.search import Frame
from engine.schedule.searching.problem import SchedulingProblem
from engine.schedule.timing import time_ops
from engine.schedule.traversal import Traversal, straight
from engine.simulate import simulate
from engine.simulate.bounds import lower_bound
from tests.engine.test_optimal import best_of_all

POLICIES = [name for name in MODULES if name not in SEARCHING]
# Their greedy, without its search, is enough here and takes no time.
MOST_STARTED = "engine.schedule.crosspipe.MOST_STARTED"


@pytest.fixture(autouse=True)
def _less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MOST_STARTED, 2_000)


def scenario(policy: str, stages: int, micro: int, **fields: object) -> Scenario:
    document = {
        "stages": stages,
        "dc_of_stage": [2 * stage // stages for stage in range(stages)],
        "microbatches": micro,
        "times": {"forward": 2, "backward": 2, "recompute": 1, "weight": 2},
        "wan": {"latency": 3, "transfer": 1},
        "policy": policy,
        **fields,
    }
    return parse(Scenario, document)


def schedule_text(given: Scenario) -> str:
    built = build(given, Search(seconds=5.0))
    return built.reason if isinstance(built, Infeasible) else str(built.schedule)


@pytest.mark.parametrize("policy", [*POLICIES, "optimal"])
@pytest.mark.parametrize(("limit", "full"), [(2, 1), (3, None)])
def test_equal_numbers_are_one_number(policy: str, limit: int, full: int | None) -> None:
    stages = 2 if policy == "optimal" else 4
    one, each = both_ways(policy, stages, limit, full)
    assert schedule_text(one) == schedule_text(each)


@pytest.mark.parametrize("traversal", [straight(4), Traversal(name="wave", stages=4, chunks=2)])
@pytest.mark.parametrize(("limit", "full"), [(2, 1), (3, None)])
def test_equal_numbers_are_one_number_to_bounds_and_to_the_search(
    traversal: Traversal, limit: int, full: int | None
) -> None:
    # What `auto` finds depends on time, and follows from its problem.
    one, each = both_ways("auto", 4, limit, full)
    frame = Frame(traversal=traversal, sharing="temporal")
    assert lower_bound(one, frame) == lower_bound(each, frame)
    problems = (SchedulingProblem(scenario=given, frame=frame, split=True).arrays for given in (one, each))
    for ours, theirs in zip(*problems, strict=True):
        assert np.array_equal(ours, theirs)


def both_ways(policy: str, stages: int, limit: int, full: int | None) -> tuple[Scenario, Scenario]:
    lists = {"memory_limit": [limit] * stages, "full_limit": full and [full] * stages}
    numbers = {"memory_limit": limit, "full_limit": full}
    one, each = (scenario(policy, stages, 4, pipelines=2, **limits) for limits in (numbers, lists))
    return one, each


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POLICIES), st.integers(1, 6), st.integers(1, 9), st.data())
def test_no_stage_holds_more_than_its_limit(
    policy: str, stages: int, micro: int, data: st.DataObject
) -> None:
    per_stage = st.lists(st.integers(1, 7), min_size=stages, max_size=stages)
    limits, full = data.draw(per_stage), data.draw(per_stage)
    result = simulate(scenario(policy, stages, micro, memory_limit=limits, full_limit=full))
    if result.timeline is None:
        assert policy in ("gpipe", "zb-v")
        assert result.reason.startswith("memory_limit: ")
        return
    assert np.all(result.timeline.peak_in_flight().max(axis=0) <= limits)


@pytest.mark.parametrize("policy", ["1f1b", "zb-h1", "interleaved", "varuna", "atlas"])
def test_no_limits_of_stages_deadlock(policy: str) -> None:
    draw = np.random.default_rng(1)
    for stages in range(1, 6):
        for micro in (1, 4, 9):
            for _ in range(6):
                limits = draw.integers(1, 6, stages).tolist()
                result = simulate(scenario(policy, stages, micro, memory_limit=limits))
                assert np.all(result.timeline.peak_in_flight().max(axis=0) <= limits)


def test_a_stage_that_needs_less_than_the_first_may_have_less_room() -> None:
    # 1F1B holds P − s microbatches on stage s: these limits leave it as published.
    free, limited = (
        schedule_text(scenario("1f1b", 4, 8, memory_limit=limit)) for limit in (None, [4, 3, 2, 1])
    )
    assert free == limited
    assert free != schedule_text(scenario("1f1b", 4, 8, memory_limit=[4, 3, 1, 1]))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=2), st.integers(0, 1), st.integers(0, 3))
def test_more_room_on_a_stage_never_takes_longer_at_best(limits: list[int], stage: int, latency: int) -> None:
    # `optimal` is enumeration on these cells, so its answers are the best there are.
    more = [limit + (i == stage) for i, limit in enumerate(limits)]
    best = []
    for each in (limits, more):
        tiny = scenario(
            "optimal",
            2,
            3,
            times={"forward": 1, "backward": 2},
            wan={"latency": latency, "transfer": 1},
            memory_limit=each,
        )
        built = build(tiny, Search(seconds=20.0))
        assert isinstance(built, Built)
        best.append(time_ops(tiny, built.schedule).makespan)
        assert best[-1] == best_of_all(tiny)
    assert best[1] <= best[0]


@pytest.mark.parametrize("name", ["memory_limit", "full_limit"])
def test_a_list_has_one_number_per_stage(name: str) -> None:
    with pytest.raises(InputError) as error:
        scenario("varuna", 4, 4, **{name: [1, 2]})
    assert error.value.field == name
    assert "one number or one per stage: 4 expected, 2 given" in str(error.value)
    with pytest.raises(InputError) as error:
        scenario("varuna", 2, 4, **{name: [1, 0]})
    assert error.value.field.startswith(name)


def test_a_policy_that_cannot_obey_names_the_stage() -> None:
    assert schedule_text(scenario("gpipe", 3, 4, memory_limit=[4, 4, 2])).endswith("; 2 allowed on stage 2")
    assert schedule_text(scenario("zb-v", 3, 8, memory_limit=[8, 2, 8])).endswith("; 2 allowed on stage 1")
