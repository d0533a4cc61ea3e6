"""`optimal` against every order there is (tiny cases), published optima, and its limits of time and size."""

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.schedule import Progress, Scenario, Schedule, Search
from engine.schedule.check import fault_of
from engine.schedule.optimal import policy
from engine.schedule.timing import DeadlockError, time_ops
from engine.schedule.traversal import straight
from engine.simulate import lower_bound, simulate
from tests.checker import check
from tests.engine.fig6 import FIG6

FUSED = {"forward": 1, "backward": 2}
SPLIT = {"forward": 1, "backward": 1, "weight": 1}


def scenario_of(**fields: Any) -> Scenario:
    document = {"policy": "optimal", "times": FUSED, "spans": False, **fields}
    return parse(Scenario, document)


def solve(scenario: Scenario, **limits: Any) -> tuple[float, float, str | None]:
    """Makespan, proven bound and why it ended, without any bound from outside."""
    built = policy.build(scenario, Search(seconds=limits.pop("seconds", 250.0), **limits))
    assert fault_of(scenario, built.schedule) is None
    return time_ops(scenario, built.schedule).makespan, built.lower_bound, built.stopped_by


# Every order of one GPU, and of everything.

F, R, B, W = range(4)


def gpu_orders(microbatches: int, recomputes: bool, split: bool) -> list[tuple[int, ...]]:
    """Every order of the ops of one stage, as op codes, each kind in microbatch order."""
    orders: list[tuple[int, ...]] = []

    def extend(order: tuple[int, ...], count: tuple[int, ...], again: frozenset[int]) -> None:
        f, b, w = count
        if f == b == microbatches and (w == b or not split):
            orders.append(order)
            return
        if f < microbatches:
            extend((*order, f * 4 + F), (f + 1, b, w), again)
        if recomputes:
            for m in range(max(again, default=-1) + 1, f):
                if m >= b:
                    extend((*order, m * 4 + R), (f, b, w), again | {m})
        if b < f and (not recomputes or b in again or order[-1] == b * 4 + F):
            extend((*order, b * 4 + B), (f, b + 1, w), again)
        if split and w < b:
            extend((*order, w * 4 + W), (f, b, w + 1), again)

    extend((), (0, 0, 0), frozenset())
    return orders


def link_orders(scenario: Scenario) -> Iterator[dict[tuple[int, int], np.ndarray]]:
    """Every order of transfers on each shared link, each pipeline's in microbatch order."""
    if scenario.sharing != "temporal" or scenario.pipelines == 1:
        yield {}
        return
    m = scenario.microbatches
    turns = sorted(set(itertools.permutations([k for k in range(scenario.pipelines) for _ in range(m)])))
    codes = []
    for turn in turns:
        sent = [0] * scenario.pipelines
        order = []
        for k in turn:
            order.append(k * m + sent[k])
            sent[k] += 1
        codes.append(np.array(order, dtype=np.int32))
    links = [link for hop in scenario.wan_hops for link in ((hop, hop + 1), (hop + 1, hop))]
    for choice in itertools.product(codes, repeat=len(links)):
        yield dict(zip(links, choice, strict=True))


def best_of_all(scenario: Scenario) -> float:
    """The least makespan over every schedule of a tiny straight scenario."""
    split = bool(np.any(scenario.times.weight))
    recompute = scenario.per_stage("recompute") > 0
    per_stage = [gpu_orders(scenario.microbatches, bool(r), split) for r in recompute]
    best = np.inf
    for orders in itertools.product(*per_stage * scenario.pipelines):
        longest = max(map(len, orders))
        ops = np.full((scenario.pipelines, scenario.stages, longest), -1, dtype=np.int32)
        for i, order in enumerate(orders):
            ops[i // scenario.stages, i % scenario.stages, : len(order)] = order
        for links in link_orders(scenario):
            schedule = Schedule(
                microbatches=scenario.microbatches,
                traversal=straight(scenario.stages),
                ops=ops,
                sharing=scenario.sharing or "spatial",
                link_order=links,
                recompute_gate="none",
            )
            if fault_of(scenario, schedule) is None:
                try:
                    best = min(best, time_ops(scenario, schedule).makespan)
                except DeadlockError:
                    continue
    return best


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Kernels are compiled before any search has a limit of time."""
    for traversal, chunks in (("straight", 1), ("straight", 2), ("loop", 2), ("wave", 2)):
        fields = {"traversal": traversal, "chunks": chunks, "wan": {"transfer": 1}, "pipelines": 2}
        scenario = scenario_of(stages=2, dc_of_stage=[0, 1], microbatches=2, sharing="temporal", **fields)
        policy.build(scenario, Search(seconds=3600.0))


SLOTS = st.integers(1, 4)


@settings(max_examples=12, deadline=None)
@given(
    forward=st.lists(SLOTS, min_size=2, max_size=2),
    backward=st.lists(SLOTS, min_size=2, max_size=2),
    again=st.integers(0, 2),
    weight=st.integers(0, 2),
    wan=st.fixed_dictionaries({"latency": st.integers(0, 3), "transfer": st.integers(0, 4)}),
    limits=st.fixed_dictionaries(
        {
            "memory_limit": st.sampled_from([None, 1, 2, [1, 2], [2, 1], [3, 2]]),
            "full_limit": st.sampled_from([None, 1, [1, 2], [2, 1]]),
        }
    ),
)
def test_no_order_of_a_tiny_pipeline_is_better(forward, backward, again, weight, wan, limits) -> None:
    times = {"forward": forward, "backward": backward, "recompute": again, "weight": weight}
    microbatches = 3 if not again and not weight else 2
    scenario = scenario_of(
        stages=2, dc_of_stage=[0, 1], microbatches=microbatches, times=times, wan=wan, **limits
    )
    makespan, bound, stopped = solve(scenario)
    assert stopped == "proven"
    assert makespan == bound == best_of_all(scenario)


@settings(max_examples=4, deadline=None)
@given(st.lists(SLOTS, min_size=2, max_size=2), st.lists(SLOTS, min_size=2, max_size=2), st.integers(1, 4))
def test_no_order_of_two_pipelines_on_a_shared_link_is_better(forward, backward, transfer) -> None:
    scenario = scenario_of(
        stages=2,
        dc_of_stage=[0, 1],
        microbatches=2,
        pipelines=2,
        sharing="temporal",
        times={"forward": forward, "backward": backward},
        wan={"transfer": 2 * transfer},
    )
    makespan, bound, stopped = solve(scenario)
    assert (stopped, makespan, bound) == ("proven", makespan, makespan)
    assert makespan == best_of_all(scenario)


@st.composite
def small(draw: st.DrawFn) -> Scenario:
    """Any traversal, chunks, sharing and limits, small enough to prove in a moment."""
    traversal = draw(st.sampled_from(["straight", "loop", "wave"]))
    chunks = draw(st.integers(1, 2))
    stages = draw(st.integers(1, 3))
    pipelines = draw(st.integers(1, 2))
    delay, limit = st.integers(0, 2), st.integers(1, 2)
    limits = st.one_of(st.none(), limit, st.lists(limit, min_size=stages, max_size=stages))
    return scenario_of(
        stages=stages,
        dc_of_stage=list(range(stages)),
        traversal=traversal,
        chunks=chunks,
        microbatches=draw(st.integers(1, 4 - chunks)),
        pipelines=pipelines,
        times={
            "forward": chunks * draw(st.integers(1, 3)),
            "backward": chunks * draw(st.integers(1, 3)),
            "recompute": chunks * draw(delay),
            "weight": chunks * draw(delay),
        },
        wan={"latency": draw(delay), "transfer": pipelines * draw(delay)},
        sharing=draw(st.sampled_from(["spatial", "temporal"])),
        memory_limit=draw(limits),
        full_limit=draw(limits),
    )


@settings(max_examples=25, deadline=None)
@given(small())
def test_the_solver_keeps_every_rule_and_is_never_below_the_bound(scenario: Scenario) -> None:
    (frame,) = policy.frames(scenario)
    # Without the bound from outside, so that a bound that is too high shows.
    makespan, proven, stopped = solve(scenario, seconds=5.0)
    assert lower_bound(scenario, frame) <= makespan * (1 + 1e-9)
    assert proven == pytest.approx(makespan) if stopped == "proven" else proven <= makespan


@pytest.mark.parametrize(
    ("times", "full_limit", "slots"),
    [
        (FUSED, 1, 34),
        (SPLIT, 4, 26),
        pytest.param(FUSED, 2, 33, marks=pytest.mark.long),
        pytest.param(SPLIT, 1, 29, marks=pytest.mark.long),
    ],
)
def test_figure_6(times: dict[str, int], full_limit: int, slots: int) -> None:
    document = {**FIG6, "policy": "optimal", "sharing": "temporal", "full_limit": full_limit}
    result = simulate(parse(Scenario, {**document, "times": {**times, "recompute": 1}}))
    assert (result.makespan, result.optimal, result.stopped_by) == (slots, True, "proven")


@pytest.mark.parametrize(
    ("times", "limit", "latency", "transfer", "makespan"),
    [
        # Values of another model of the same problem (no-overlap and precedences only).
        (FUSED, 8, 1, 1, 78),
        (SPLIT, 8, 2, 2, 71),
        (SPLIT, 16, 0.25, 2, 57.25),
        pytest.param(FUSED, 8, 0, 0.25, 71, marks=pytest.mark.long),
        pytest.param(FUSED, 8, 2, 2, 86, marks=pytest.mark.long),
        pytest.param(FUSED, 16, 0, 0, 69, marks=pytest.mark.long),
    ],
)
def test_eight_stages_and_sixteen_microbatches(times, limit, latency, transfer, makespan) -> None:
    scenario = scenario_of(
        stages=8,
        dc_of_stage=[0] * 4 + [1] * 4,
        microbatches=16,
        times=times,
        memory_limit=limit,
        wan={"latency": latency, "transfer": transfer},
    )
    result = simulate(scenario)
    assert (result.makespan, result.optimal) == (makespan, True)


HARD = {
    "stages": 4,
    "dc_of_stage": [0, 0, 1, 2],
    "pipelines": 3,
    "microbatches": 16,
    "sharing": "temporal",
    "times": {**SPLIT, "recompute": 1},
    "wan": {"transfer": 3},
}


def test_a_search_ends_when_it_is_cancelled() -> None:
    cancelled = threading.Event()
    seen: list[Progress] = []

    def hear(progress: Progress) -> None:
        if not seen:
            threading.Timer(0.5, cancelled.set).start()  # the solver is at work by then
        seen.append(progress)

    makespan, bound, stopped = solve(
        scenario_of(**HARD), seconds=600.0, cancelled=cancelled.is_set, report=hear
    )
    assert stopped == "cancelled"
    assert bound <= makespan <= seen[-1].makespan


def test_a_search_ends_in_time() -> None:
    makespan, bound, stopped = solve(scenario_of(**HARD), seconds=0.5, bound=69.0)
    assert (stopped, bound) == ("time", 69.0)
    assert makespan >= 69


def test_what_is_too_large_for_the_solver_is_said() -> None:
    scenario = scenario_of(stages=40, microbatches=200, memory_limit=3)
    built = policy.build(scenario, Search(seconds=10, bound=1.0))
    assert built.stopped_by == "time"
    assert "pairs" in (built.chosen.idea or "")


@pytest.mark.parametrize("traversal", ["straight", "loop", "wave"])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 3), (3, 1)])
def test_one_stage_or_one_microbatch(traversal: str, stages: int, microbatches: int) -> None:
    """Nothing overlaps, or only the work of one GPU counts: the optimum is the sum."""
    scenario = scenario_of(
        stages=stages,
        dc_of_stage=list(range(stages)),
        microbatches=microbatches,
        traversal=traversal,
        chunks=2,
        memory_limit=1,
        wan={"latency": 1, "transfer": 0.5},
    )
    transfers = {"straight": 2, "loop": 5, "wave": 4}[traversal] if stages > 1 else 0
    result = simulate(scenario)
    assert (result.makespan, result.optimal) == (3 * stages * microbatches + 2 * 1.5 * transfers, True)


def test_a_limit_of_one_is_not_infeasible() -> None:
    scenario = scenario_of(
        stages=3,
        microbatches=3,
        traversal="wave",
        chunks=2,
        memory_limit=1,
        full_limit=1,
        times={"forward": 1, "backward": 2, "recompute": 1},
    )
    result = simulate(scenario)
    assert result.feasible
    assert result.optimal


def test_huge_sizes_end_in_time_with_a_bound() -> None:
    scenario = scenario_of(stages=100, microbatches=100, memory_limit=20, traversal="loop", chunks=2)
    cancelled = itertools.chain([False] * 3, itertools.repeat(True))
    built = policy.build(scenario, Search(seconds=600.0, bound=1.0, cancelled=lambda: next(cancelled)))
    assert built.stopped_by == "cancelled"
    assert built.lower_bound == 1.0


def test_durations_without_a_common_unit_are_proven_to_a_millionth() -> None:
    times = {"forward": 1.2345678, "backward": 2.3456789}
    scenario = scenario_of(
        stages=4,
        dc_of_stage=[0, 0, 1, 1],
        microbatches=6,
        times=times,
        memory_limit=3,
        wan={"latency": 0.777777, "transfer": 1.0000123},
    )
    makespan, bound, stopped = solve(scenario)
    assert stopped == "proven"
    assert bound <= makespan <= bound * (1 + 1e-5)


def test_same_input_same_answer() -> None:
    scenario = scenario_of(
        stages=6, dc_of_stage=[0] * 3 + [1] * 3, microbatches=8, memory_limit=6, wan={"transfer": 1.5}
    )
    answers = {str(policy.build(scenario, Search(seconds=30)).schedule) for _ in range(3)}
    assert len(answers) == 1


@settings(max_examples=15, deadline=None)
@given(small())
def test_an_independent_checker_finds_nothing(scenario: Scenario) -> None:
    document = {**scenario.model_dump(mode="json", exclude_unset=True, exclude_none=True), "spans": True}
    answer = simulate(parse(Scenario, document)).as_dict()
    check(document, json.loads(json.dumps(answer, allow_nan=False)))
