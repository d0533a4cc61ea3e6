"""Parts of `auto`'s search: moves, the schedules of a forward simulation, and the delay of a cancel."""

from itertools import islice
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.schedule import Frame, Scenario, Search, Traversal
from engine.schedule.searching import disjunctive_search, improve, tabu_search
from engine.schedule.searching.arrivals import bursts, rotation
from engine.schedule.searching.builder import ScheduleBuilder
from engine.schedule.searching.disjunctive_graph import graph_of, makespan_of, take_orders, time_all
from engine.schedule.searching.incumbent import Incumbent
from engine.schedule.searching.orders import limits_hold, schedule_of
from engine.schedule.searching.portfolio import Portfolio
from engine.schedule.searching.problem import SchedulingProblem
from engine.schedule.searching.starts import round_robin, starts
from engine.schedule.timing import time_ops
from engine.schedule.traversal import straight
from tests.engine.test_simulate_properties import scenarios

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@st.composite
def builders(draw: st.DrawFn) -> ScheduleBuilder:
    document = draw(scenarios(("auto",)))
    scenario = parse(Scenario, {**document, "recompute_rule": None, "spans": False})
    name = draw(st.sampled_from(["straight", "wave", "loop"]))
    chunks = 1 if name == "straight" else 2
    traversal = Traversal(name=name, stages=scenario.stages, chunks=chunks)
    frame = Frame(traversal=traversal, sharing=draw(st.sampled_from(["temporal", "spatial"])))
    split = bool(np.any(scenario.times.weight)) and draw(st.booleans())
    return ScheduleBuilder(SchedulingProblem(scenario=scenario, frame=frame, split=split))


@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
@given(builders(), st.integers(0, 9), st.integers(1, 400))
def test_moves_leave_heads_and_tails_as_computed_from_scratch(
    builder: ScheduleBuilder, seed: int, work: int
) -> None:
    arrays = builder.arrays
    builder.insert(
        round_robin(builder), np.zeros((arrays.pipelines, arrays.microbatches), np.int64), late=False
    )
    graph = graph_of(arrays, seed)
    take_orders(graph, builder.starts())
    tabu_search.improve(arrays, graph, tabu_search.FAR, 0, work)
    updated = makespan_of(graph), graph.head.copy(), graph.tail.copy()
    assert not graph.dirty.any()
    assert time_all(graph) == updated[0]
    exists = graph.machine >= 0
    assert np.array_equal(graph.head[exists], updated[1][exists])
    assert np.array_equal(graph.tail[exists], updated[2][exists])


@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
@given(builders(), st.booleans())
def test_first_come_first_served_keeps_the_limits(builder: ScheduleBuilder, forwards_first: bool) -> None:
    arrays, problem = builder.arrays, builder.problem
    release = np.zeros((arrays.pipelines, arrays.microbatches), np.int64)
    makespan = builder.serve(release, forwards_first=forwards_first)
    if makespan is None:  # several chunks may wait for each other
        assert problem.traversal.chunks > 1
        return
    schedule = schedule_of(problem, builder.starts())
    assert limits_hold(problem.scenario, schedule)
    assert time_ops(problem.scenario, schedule).makespan <= makespan * problem.tick * (1 + 1e-6)


@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
@given(builders(), st.randoms(use_true_random=False))
def test_pipelines_take_shared_links_in_the_given_turns(builder: ScheduleBuilder, random: Random) -> None:
    arrays, problem = builder.arrays, builder.problem
    turns = np.repeat(np.arange(arrays.pipelines), arrays.microbatches)
    random.shuffle(turns)
    makespan = builder.serve(np.zeros((arrays.pipelines, arrays.microbatches), np.int64), turns)
    if makespan is None:
        assert problem.traversal.chunks > 1
        return
    start = builder.starts()
    for machine in range(arrays.machines):
        rows, pipelines = np.nonzero(arrays.machine == machine)
        if arrays.pipelines > 1 and sorted(pipelines) == list(range(arrays.pipelines)):
            begins = start[rows, pipelines].ravel()
            owners = np.repeat(pipelines, arrays.microbatches)
            assert np.array_equal(owners[np.argsort(begins, kind="stable")], turns)
    assert limits_hold(problem.scenario, schedule_of(problem, start))


@given(st.integers(1, 6), st.integers(1, 30), st.integers(1, 11), st.integers(1, 9))
def test_bursts_take_every_turn_at_most_once(
    pipelines: int, microbatches: int, pace: int, burst: int
) -> None:
    try:
        turns = bursts(pipelines, microbatches, pace, burst)
    except ValueError:
        assert np.gcd(pace, burst) > 1 or pace % burst == 0
        return
    assert turns.shape == (pipelines, microbatches)
    assert len(np.unique(turns)) == turns.size
    assert np.all(np.diff(turns, axis=1) > 0)
    assert turns.max() < pipelines * (microbatches + burst)


@given(st.integers(2, 6), st.integers(1, 30), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_all_pipelines_but_one_take_turns(pipelines: int, microbatches: int, lengths: list[int]) -> None:
    at_once = pipelines - 1
    shifts = [1 + at_once * length for length in lengths]
    turns = rotation(pipelines, microbatches, shifts)
    assert np.array_equal(np.sort(turns.ravel()), np.arange(pipelines * microbatches))
    assert np.all(np.diff(turns, axis=1) > 0)
    # Until one has had its share, a pipeline comes every `at_once` turns, or has rested for a shift between.
    paces = [np.diff(own[own <= turns.max(axis=1).min()]) for own in turns]
    allowed = {at_once} | {at_once + shift for shift in shifts}
    assert set(np.concatenate(paces).tolist()) <= allowed


def test_a_rotation_needs_a_turn_to_take_over() -> None:
    with pytest.raises(ValueError, match="one more than a multiple of 3"):
        rotation(4, 60, [7, 8])


def test_starts_on_the_large_cell_are_within_one_percent_of_the_best_known() -> None:
    document = {
        **CELL,
        "stages": 60,
        "dc_of_stage": [stage // 12 for stage in range(60)],
        "pipelines": 4,
        "microbatches": 60,
        "wan": {"latency": 0, "transfer": 4},
    }
    frame = Frame(traversal=straight(60), sharing="temporal")
    builder = ScheduleBuilder(SchedulingProblem(scenario=parse(Scenario, document), frame=frame, split=False))
    makespans = [start.build(builder) for start in islice(starts(builder), 10)]
    assert min(makespan for makespan in makespans if makespan) <= 1.01 * 436  # systems.md §1


CELL = {
    "stages": 24,
    "dc_of_stage": [stage // 6 for stage in range(24)],
    "pipelines": 3,
    "microbatches": 24,
    "times": {"forward": 1, "recompute": 1, "backward": 2},
    "wan": {"latency": 0, "transfer": 3},
    "policy": "auto",
    "spans": False,
}


@pytest.mark.parametrize("calls", [1, 12, 60])
def test_a_cancel_takes_effect_within_a_slice_of_work(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[disjunctive_search.DisjunctiveSearch] = []

    def recorded(**fields) -> disjunctive_search.DisjunctiveSearch:
        searches.append(disjunctive_search.DisjunctiveSearch(**fields))
        return searches[-1]

    seen: list[int] = []

    def cancelled() -> bool:
        seen.append(sum(each.work for each in searches))
        return len(seen) > calls

    monkeypatch.setattr(improve, "DisjunctiveSearch", recorded)
    monkeypatch.setattr(disjunctive_search, "SLICE", 20_000)
    scenario = parse(Scenario, CELL)
    best = Incumbent(scenario=scenario, search=Search(cancelled=cancelled))
    frames = (Frame(traversal=straight(scenario.stages), sharing="temporal"),)
    improve.improve(Portfolio(best=best), frames, 2_000_000)
    seen.append(sum(each.work for each in searches))
    operations = searches[0].builder.operations
    # A pass over all operations, a few of which build a schedule or justify it, or a slice of moves.
    assert max(np.diff(seen)) <= 20_000 + 10 * (operations + 1_000)
    assert len(seen) <= calls + 8
