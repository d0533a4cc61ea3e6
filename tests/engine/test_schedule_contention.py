"""The best rule of contention: never slower than another, named, and of the testbed of the Atlas paper."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Infeasible
from engine.inputs import parse
from engine.plan.answer import plan
from engine.plan.cell import scenario_of, simulated
from engine.plan.request import PlanRequest
from engine.schedule import Schedule, build
from engine.schedule.contention import RULES, schedule_name
from engine.schedule.scenario import Scenario
from engine.schedule.timing import Timing, time_ops
from engine.simulate import simulate

# GPT-A on the testbed of §6.1: stages as (2, 1, 1), C = 3, M = 16.
TESTBED: dict[str, Any] = {
    "stages": 4,
    "dc_of_stage": [0, 0, 1, 2],
    "pipelines": 3,
    "microbatches": 16,
    "times": {"forward": 1, "recompute": 1, "backward": 2},
    "wan": {"transfer": 3},
    "policy": "atlas",
}


def makespan(document: dict[str, Any], **more: Any) -> float:
    return float(simulate(parse(Scenario, {**document, **more})).makespan or 0)


def test_each_rule_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def counted(scenario: Scenario, schedule: Schedule, *jitter: Any) -> Timing:
        timed.append(schedule)
        return time_ops(scenario, schedule, *jitter)

    monkeypatch.setattr("engine.schedule.timing.time_ops", counted)
    monkeypatch.setattr("engine.simulate.timeline.time_ops", counted)
    best = simulate(parse(Scenario, {**TESTBED, "contention": "best"}))
    assert len(timed) == len(RULES)
    assert best.timeline is not None
    assert best.makespan == time_ops(best.scenario, best.timeline.schedule).makespan


def test_the_testbed_is_faster_in_turns_than_by_rank() -> None:
    assert [makespan(TESTBED, contention=rule) for rule in RULES[:2]] == [102, 81]
    assert makespan(TESTBED) == 102  # the paper's rule stays Atlas's own
    best = simulate(parse(Scenario, {**TESTBED, "contention": "best"}))
    assert best.makespan == min(makespan(TESTBED, contention=rule) for rule in RULES)
    assert best.chosen is not None
    assert best.chosen.contention in RULES
    assert makespan(TESTBED, contention=best.chosen.contention) == best.makespan


@settings(max_examples=50)
@given(
    policy=st.sampled_from(["gpipe", "1f1b", "varuna", "atlas", "interleaved", "zb-h1"]),
    sharing=st.sampled_from(["temporal", "spatial"]),
    pipelines=st.integers(1, 3),
    microbatches=st.integers(1, 5),
    transfer=st.integers(1, 6),
    memory=st.integers(4, 6),
)
def test_the_best_rule_is_the_fastest_and_says_which(
    policy: str, sharing: str, pipelines: int, microbatches: int, transfer: int, memory: int
) -> None:
    document = {
        **TESTBED,
        "policy": policy,
        "sharing": sharing,
        "pipelines": pipelines,
        "microbatches": microbatches,
        "wan": {"transfer": transfer},
        "memory_limit": memory,
        "spans": False,
    }
    best = simulate(parse(Scenario, {**document, "contention": "best"}))
    each = {rule: simulate(parse(Scenario, {**document, "contention": rule})) for rule in RULES}
    makespans = [result.makespan for result in each.values() if result.makespan is not None]
    if best.makespan is None or best.chosen is None:
        assert not makespans
        return
    assert best.makespan == pytest.approx(min(makespans))
    if sharing == "spatial" or pipelines == 1:
        assert best.chosen.contention is None
    else:
        assert best.chosen.contention is not None
        assert each[best.chosen.contention].makespan == pytest.approx(best.makespan)


def test_a_policy_that_searches_tries_the_rules_itself() -> None:
    document = {**TESTBED, "microbatches": 4, "policy": "auto", "recompute_rule": "jit"}
    best, free = (build(parse(Scenario, {**document, **more})) for more in ({"contention": "best"}, {}))
    assert not isinstance(best, Infeasible)
    assert not isinstance(free, Infeasible)
    assert best.chosen == free.chosen


@pytest.mark.parametrize("method", ["algorithm1", "search"])
def test_a_plan_takes_the_best_rule_and_names_it(method: str) -> None:
    document = {
        "datacenters": [
            {"name": name, "gpus": gpus, "gpu_type": "a100-80g", "price_per_gpu_hour": 1}
            for name, gpus in (("a", 6), ("b", 3), ("c", 3))
        ],
        "links": [
            {"between": list(pair), "latency_ms": 0, "bandwidth_gbps": 5}
            for pair in (("a", "b"), ("b", "c"), ("a", "c"))
        ],
        "job": {
            "partitions": 4,
            "microbatches": 16,
            "forward_ms": 10,
            "recompute_ms": 10,
            "backward_ms": 20,
            "comm_to_compute": 3,
        },
        "allreduce": False,
        "method": method,
        "policy": "atlas",
        "max_dp_cells": 1,
    }
    request = parse(PlanRequest, document)
    by_rule = {
        rule: plan(parse(PlanRequest, {**document, "contention": rule})).options[0].iteration_ms
        for rule in RULES
    }
    option = plan(request).options[0]
    assert option.iteration_ms is not None
    assert option.iteration_ms == pytest.approx(min(ms for ms in by_rule.values() if ms is not None))
    # The option alone leads to its schedule again.
    assert simulated(request, option).makespan == pytest.approx(option.pp_time_ms)
    if option.schedule is None and option.pipelines > option.dp_cells:
        assert option.contention in RULES
        assert scenario_of(request, option).contention == option.contention
        assert schedule_name("atlas", option.contention).startswith("Atlas, links ")
    assert schedule_name("varuna", None) == "Varuna"
