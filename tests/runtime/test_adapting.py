"""Runs that re-plan: the judge, the planning, the way to all ranks, and a whole run."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.job.adapt.judge import Judge
from engine.job.adapt.measured import (
    LATENCY,
    LEAST_DRIFT_MS,
    as_rows,
    planned,
    scenario_as_measured,
    slowest,
    summary,
)
from engine.job.adapt.replan import LEAST_GAIN, as_taken, replan
from engine.job.adapt.sentences import described
from engine.job.events.incidents import Adapted
from engine.job.launch import Disturbance, single_machine
from engine.job.planned import schedule_of
from engine.job.predict import predict
from engine.job.result import completed
from engine.schedule.timing import time_ops
from engine.simulate import time_schedule
from engine.simulate.spans import Span
from engine.train.adapt.follow import Follower
from engine.train.adapt.lead import WARM_UP, Leader
from tests.events import EXAMPLES, as_dicts
from tests.runtime import swap_jobs
from tests.runtime.jobs import Run, job
from tests.runtime.machines import Machines
from tests.runtime.test_boundary import Store
from tests.runtime.test_training_equals_single import reference

LIMIT = 0.1
TIMES = ("start", "end", "arrives")
PLANNED = {("F", 0): 20.0, ("B", 0): 40.0, ("F", 1): 20.0, ("link", 0, 1): 16.0}
EMULATED: dict[str, Any] = {
    "device": "emulated",
    "times_ms": {"forward": 10, "recompute": 10, "backward": 20},
    "recompute": None,
    "activation_bytes": 1_000_000,
    "policy": "atlas",
    "microbatches": 4,
    "sharing": "temporal",
    "links": [{"between": ["north", "south"], "latency_ms": 10, "bandwidth_gbps": 0.4}],
    "adapt": {},
}
factors = st.fixed_dictionaries({name: st.floats(1 - LIMIT + 1e-6, 1 + LIMIT - 1e-6) for name in PLANNED})


def times(by: dict[Any, float]) -> dict[Any, float]:
    return {name: PLANNED[name] * factor for name, factor in by.items()}


@given(st.lists(factors, max_size=40), st.integers(1, 5))
def test_noise_below_the_limit_is_no_deviation(noise: list[dict[Any, float]], iterations: int) -> None:
    judge = Judge(PLANNED, limit=LIMIT, iterations=iterations)
    assert not any(judge.observe(times(each)) for each in noise)


@given(
    before=st.lists(factors, max_size=6),
    what=st.sampled_from(sorted(PLANNED, key=str)),
    data=st.data(),
    iterations=st.integers(1, 5),
    slower=st.booleans(),
)
def test_a_lasting_deviation_is_found_with_its_last_iteration(
    before: list[Any], what: Any, data: Any, iterations: int, slower: bool
) -> None:
    judge = Judge(PLANNED, limit=LIMIT, iterations=iterations)
    assert not any(judge.observe(times(each)) for each in before)
    off = st.floats(1 + LIMIT + 1e-6, 5) if slower else st.floats(0.1, 1 - LIMIT - 1e-6)
    verdicts = [judge.observe(times({**data.draw(factors), what: data.draw(off)})) for _ in range(iterations)]
    assert not any(verdicts[:-1])
    assert verdicts[-1] is not None
    (deviation,) = verdicts[-1].deviations
    assert (deviation.quantity, deviation.planned_ms) == (what, PLANNED[what])
    judge.expect(verdicts[-1].measured)
    again = [judge.observe(verdicts[-1].measured) for _ in range(2 * iterations)]
    assert not any(again), "what is expected now is no deviation"


@given(planned_ms=st.floats(0.01, 200), off_ms=st.floats(-300, 300), iterations=st.integers(1, 4))
def test_a_latency_counts_beyond_the_limit_and_a_millisecond(
    planned_ms: float, off_ms: float, iterations: int
) -> None:
    way = (LATENCY, 0, 1)
    judge = Judge({way: planned_ms}, limit=LIMIT, iterations=iterations)
    measured_ms = max(0.001, planned_ms + off_ms)
    verdicts = [judge.observe({way: measured_ms}) for _ in range(iterations)]
    beyond = abs(measured_ms - planned_ms) > max(LIMIT * planned_ms, LEAST_DRIFT_MS[LATENCY])
    assert (verdicts[-1] is not None) == beyond
    assert not any(verdicts[:-1])


def test_a_longer_way_is_said_in_words() -> None:
    way = {"what": "latency", "at": [1, 2], "planned_ms": 10.0, "measured_ms": 30.0}
    event = Adapted.model_validate({**EXAMPLES["adapted"], "kind": "adapted", "deviations": [way]})
    assert "the latency between S2 and S3 is 30.0 ms instead of 10.0" in described(event)


def test_a_longer_way_is_planned_for_as_one() -> None:
    of = job(**{**EMULATED, "microbatches": 8, "sharing": "spatial"})
    schedule = schedule_of(of)
    expected = planned(of.scenario, schedule)
    assert expected[LATENCY, 1, 2] == 10.0
    plan = replan(of, schedule, expected, {**expected, (LATENCY, 1, 2): 30.0})
    far = job(
        **{
            **EMULATED,
            "microbatches": 8,
            "sharing": "spatial",
            "links": [{"between": ["north", "south"], "latency_ms": 30, "bandwidth_gbps": 0.4}],
        }
    )
    assert far.scenario.hop_transfer[1] == pytest.approx(of.scenario.hop_transfer[1], rel=0.01)
    assert plan.schedule is not None
    assert plan.after_s == pytest.approx(predict(far).iteration_s, rel=0.01)
    assert plan.before_s == pytest.approx(predict(far, schedule=schedule).iteration_s, rel=0.01)
    assert plan.after_s < 0.8 * plan.before_s


@given(st.lists(st.sampled_from([0.5, 1.5]), max_size=20))
def test_what_swings_is_no_deviation(swings: list[float]) -> None:
    judge = Judge(PLANNED, limit=LIMIT, iterations=3)
    for at, factor in enumerate(swings):
        deviation = judge.observe(times({("F", 0): factor}))
        assert (deviation is not None) == (at >= 2 and len(set(swings[at - 2 : at + 1])) == 1)


def test_a_summary_has_what_the_schedule_counts_on_where_all_runs_as_planned() -> None:
    for changes in ({}, {"sharing": "spatial"}, {"policy": "varuna", "pipelines": 1}):
        of = job(**{**EMULATED, **changes})
        schedule = schedule_of(of)
        spans = time_schedule(of.scenario, schedule).spans()
        in_seconds = [
            Span(**{name: at / 1e3 if name in TIMES else at for name, at in s.as_dict().items()})
            for s in spans
        ]
        measured = slowest(json.loads(json.dumps([summary(in_seconds)])))
        assert measured == pytest.approx(planned(of.scenario, schedule))
        assert planned(scenario_as_measured(of, schedule.sharing, {}), schedule) == pytest.approx(measured)


def slow_gpu(of: Any, stage: int, factor: float) -> tuple[Any, dict[Any, float], dict[Any, float]]:
    schedule = schedule_of(of)
    expected = planned(of.scenario, schedule)
    return schedule, expected, {q: ms * (factor if q[1:] == (stage,) else 1) for q, ms in expected.items()}


def test_planning_anew_is_worth_it_or_the_plan_stays() -> None:
    of = job(**EMULATED)
    schedule, expected, measured = slow_gpu(of, 0, 1.3)
    plan = replan(of, schedule, expected, measured)
    assert plan.schedule is not None
    assert plan.planned_s < plan.after_s < plan.before_s * (1 - LEAST_GAIN)
    scenario = scenario_as_measured(of, schedule.sharing, {("F", 0): 1.3, ("R", 0): 1.3, ("B", 0): 1.3})
    slower_by = plan.before_s - plan.after_s
    makespans = [time_ops(scenario, each).makespan / 1e3 for each in (schedule, plan.schedule)]
    assert slower_by == pytest.approx(makespans[0] - makespans[1], abs=2e-3)
    same = replan(of, plan.schedule, measured, measured)
    assert same.schedule is None
    assert same.planned_s == same.before_s == same.after_s == pytest.approx(plan.after_s)


def test_a_search_keeps_to_the_shape_of_the_present_schedule() -> None:
    of = job(**{**EMULATED, "adapt": {"policy": "auto"}, "time_limit_s": 1.0, "accumulation": 2})
    schedule, expected, measured = slow_gpu(of, 2, 2.0)
    plan = replan(of, schedule, expected, measured)
    assert plan.policy == "auto"
    assert plan.schedule is not None
    assert (plan.schedule.traversal, plan.schedule.sharing) == (schedule.traversal, schedule.sharing)
    assert plan.schedule.microbatches == schedule.microbatches


class Reports(Store):
    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key] for key in keys]


@settings(max_examples=15, deadline=None)
@given(slow_from=st.integers(0, 8), seed=st.integers(0, 2**32))
def test_all_ranks_go_over_at_the_same_iteration(slow_from: int, seed: int) -> None:
    """Ranks in any order; nobody ends an iteration that the first has not begun, nobody is two ahead."""
    with patch("engine.train.adapt.lead.AT_ONCE_S", 60):  # planning takes longer on a busy machine
        _go_over_in_any_order(slow_from, random.Random(seed))


def _go_over_in_any_order(slow_from: int, chance: random.Random) -> None:
    of = job(**EMULATED)
    schedule, expected, slow = slow_gpu(of, 0, 1.5)
    store, lines, steps = Reports(), [], slow_from + WARM_UP + 9
    leader = Leader(
        store, spec=single_machine(of, run="test", log_dir=""), schedule=schedule, emit=as_dicts(lines)
    )
    ranks: list[Follower] = [leader, *(Follower(store, rank=rank) for rank in range(1, 6))]
    at, inside = [0] * 6, [False] * 6
    switched: list[list[int]] = [[] for _ in ranks]
    texts: list[list[str]] = [[] for _ in ranks]

    def may(rank: int) -> bool:
        if inside[rank]:
            return at[0] + inside[0] > at[rank]
        return at[rank] <= min(at) + 1

    while min(at) < steps:
        can = [rank for rank in range(6) if at[rank] < steps and may(rank)]
        rank = chance.choice(can)
        if not inside[rank]:
            if (new := ranks[rank].before(at[rank])) is not None:
                switched[rank].append(at[rank])
                texts[rank].append(str(new))
            inside[rank] = True
            continue
        taken = slow if at[rank] >= slow_from else expected
        rows = [[*name, ms] for name, ms in taken.items()] if rank in (0, 3) else []
        store.set(f"adapt/report/{at[rank] % 4}/{rank}", json.dumps([at[rank], rows]))
        inside[rank], at[rank] = False, at[rank] + 1
    assert [e["iteration"] for e in lines] == switched[0]
    assert len(switched[0]) == 1
    assert all(own == switched[0] for own in switched)
    assert all(own == texts[0] for own in texts)
    assert switched[0][0] <= max(slow_from, WARM_UP) + 5


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"adapt": {"deviation": 0}}, "adapt.deviation"),
        ({"adapt": {"iterations": 0}}, "adapt.iterations"),
        ({"adapt": {"policy": "atlas"}}, "adapt.policy"),
        ({"adapt": {"every": 3}}, "adapt.every"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        job(**changes)


def test_with_strategy_swap_it_is_refused() -> None:
    with pytest.raises(InputError, match=r"adapt: .* must be left out with strategy swap"):
        swap_jobs.job(adapt={})


def check_switched(run: Run, result: dict[str, Any]) -> None:
    """Every rank has one order of ops between two new plans, and all change theirs where it is said."""
    begins = [change["iteration"] for change in result["adaptations"] if change["replanned"]]
    assert begins
    orders: dict[int, dict[int, list[tuple[str, int]]]] = {}
    for event in run.of_kind("spans"):
        ops = sorted(
            (s["start"], s["op"], s["microbatch"]) for s in event["spans"] if s.get("op") in [*"FRB"]
        )
        orders.setdefault(event["rank"], {})[event["iteration"]] = [op[1:] for op in ops]
    changed: set[int] = set()
    for by_iteration in orders.values():
        assert sorted(by_iteration) == list(range(run.job.optimizer.steps))
        own = {after for (_, a), (after, b) in pairwise(sorted(by_iteration.items())) if a != b}
        assert own <= set(begins)
        changed |= own
    assert begins[0] in changed


def test_a_slow_gpu_changes_the_plan_on_all_ranks_and_no_loss(tmp_path: Path) -> None:
    of = job(**{**EMULATED, "dtype": "fp64", "steps": 12, "adapt": {"deviation": 0.25}})
    run = Run(of, str(tmp_path), Disturbance(gpu_factor=((0, 0, 1.6),), since=2))
    result = run.result()
    check_switched(run, result)
    assert [e["iteration"] for e in run.of_kind("adapted")] == [e["iteration"] for e in result["adaptations"]]
    assert any(d["what"] == "F" and d["at"] == [0] for d in result["adaptations"][0]["deviations"])
    assert not {"schedule", "times"} & set(result["adaptations"][0]), "a schedule is long"
    losses, norms, _ = reference(of)
    assert result["losses"] == pytest.approx(losses, rel=1e-9)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-9)


def test_a_latency_that_grows_during_a_run_is_measured_and_planned_for(tmp_path: Path) -> None:
    changes = {"microbatches": 8, "sharing": "spatial", "steps": 18, "adapt": {"deviation": 0.5}}
    of = job(**{**EMULATED, **changes, "dtype": "fp64"})
    run = Run(of, str(tmp_path), Disturbance(between=((0, 1, 1.0, 3.0),), since=2))
    result = run.result()
    check_switched(run, result)
    # On a busy machine other times deviate, too.
    deviations = [each for one in result["adaptations"] for each in one["deviations"]]
    deviation = next(each for each in deviations if each["what"] == "latency")
    assert (deviation["at"], deviation["planned_ms"]) == ([1, 2], 10)
    assert deviation["measured_ms"] == pytest.approx(30, rel=0.1)
    between = [row["latency_ms"] for row in result["wan"] if row["from_stage"] != row["to_stage"]]
    assert between == pytest.approx([30, 30], rel=0.1)
    assert result["losses"] == pytest.approx(reference(of)[0], rel=1e-9)


def test_each_iteration_of_a_result_counts_with_the_plan_that_held_in_it() -> None:
    of = job(**EMULATED)
    schedule, _, slow = slow_gpu(of, 0, 2.0)
    ends = {"all_reduce": 0.0, "optimizer": 0.0}
    event = {"iteration": 10, "schedule": str(schedule), "times": as_rows(slow), "replanned": False}
    lasts = [
        predict(of, schedule=schedule, scenario=scenario, allreduce_s=(0.0,) * 3, optimizer_s=(0.0,) * 3)
        for scenario in (of.scenario, as_taken(of, schedule, slow))
    ]
    assert lasts[1].iteration_s > 1.3 * lasts[0].iteration_s

    def of_window(first: int, end: int, *events: Any) -> dict[str, Any]:
        measured = {"iteration_ms": {"median": 1.0}, "utilization": {}, "adaptations": list(events)}
        return completed(of, schedule, {**measured, "median_s_of_stage": [ends] * 3, "counted": (first, end)})

    for first, end, plan in [(2, 10, 0), (2, 17, 0), (2, 19, 1), (10, 20, 1), (15, 20, 1), (2, 5, 0)]:
        row = of_window(first, end, event)
        assert row["iteration_ms"]["simulated"] == pytest.approx(1e3 * lasts[plan].iteration_s)
        assert row["deviation"] == pytest.approx(1e-3 / lasts[plan].iteration_s - 1)
    half = of_window(0, 20, event)["utilization"]["simulated"]
    busy = sum(each.utilization * each.iteration_s for each in lasts)
    assert half == pytest.approx(busy / sum(each.iteration_s for each in lasts))
    again = {**event, "iteration": 30, "times": as_rows({q: 3 * ms for q, ms in slow.items()})}
    assert of_window(2, 10, event, again) == {
        **of_window(2, 10, event),
        "adaptations": [{"iteration": 10, "replanned": False}, {"iteration": 30, "replanned": False}],
    }, "what never held counts for nothing"


@pytest.mark.long
def test_a_run_that_adapts_recovers_with_the_losses_of_one_process(tmp_path: Path) -> None:
    """On a CPU without `times_ms` every time is off, so that both lives judge and plan at once."""
    train_job = {"deviation": 0.01, "iterations": 1}
    of = job(dtype="fp64", steps=14, recovery={}, adapt=train_job)
    with Machines(of, tmp_path, [range(6)]) as run:
        run.at_step(6)
        run.kill_rank(4)
        result = run.result()
    losses, norms, _ = reference(of)
    assert result["losses"] == pytest.approx(losses, rel=1e-9)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-9)
    assert len(result["recoveries"]) == 1
