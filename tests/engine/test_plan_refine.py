"""`refine`: `auto` on the best shapes of a plan. Never worse, in the same order, and with orders that run."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.plan import choose
from engine.plan.answer import plan
from engine.plan.cell import scenario_of, simulated
from engine.plan.request import PlanRequest
from engine.plan.result import Partition, PlanResult
from engine.plan.search.refine import Refined, refine
from engine.schedule.check import fault_of
from engine.schedule.text import parse_schedule


def request_of(gpus: list[int], **more: Any) -> PlanRequest:
    """Data centres in a row of links; two slots for a transfer, F = R = 1, B = 2."""
    names = [f"dc{i}" for i in range(len(gpus))]
    document = {
        "datacenters": [
            {"name": name, "gpus": n, "gpu_type": "a100-80g", "price_per_gpu_hour": 1}
            for name, n in zip(names, gpus, strict=True)
        ],
        "links": [
            {"between": list(pair), "latency_ms": 0, "bandwidth_gbps": 5}
            for pair in itertools.combinations(names, 2)
        ],
        "job": {
            "partitions": 4,
            "microbatches": 4,
            "forward_ms": 1,
            "recompute_ms": 1,
            "backward_ms": 2,
            "comm_to_compute": 2,
        },
        "allreduce": False,
        **more,
    }
    return parse(PlanRequest, document)


def score(result: PlanResult) -> float:
    return -1e300 if result.best is None else choose.score(result.options[result.best], result.objective)


def until_faster(reports: list[Refined], makespan_ms: float) -> Callable[[], bool]:
    """Cancels once the search at work has reported something as fast as this."""
    return lambda: any(
        refined.progress is not None and (refined.progress.makespan or 1e300) <= makespan_ms
        for refined in reports
    )


def test_auto_beats_the_fast_policies_and_its_orders_are_kept() -> None:
    request = request_of([2, 2])
    before = plan(request, budget_s=0.0)
    assert before.best is not None
    assert before.options[before.best].refining
    assert before.options[before.best].pp_time_ms == 28
    reports: list[Refined] = []
    after = refine(request, before, report=reports.append, cancelled=until_faster(reports, 27))
    assert after.best is not None
    option = after.options[after.best]
    assert option.pp_time_ms is not None
    assert option.pp_time_ms <= 27
    assert option.bound_ms == option.lower_bound_ms == 26
    assert option.refining  # the search was cancelled before its end
    assert option.schedule is not None
    assert fault_of(scenario_of(request, option), parse_schedule(option.schedule)) is None
    assert simulated(request, option).makespan == option.pp_time_ms
    assert option.throughput == pytest.approx(option.pipelines / option.pp_time_ms * 1e3)
    # Once more, with hardly any time: what is there stays, and the search has ended.
    reports.clear()
    again = refine(request, after, report=reports.append, seconds=1e-3)
    assert again.options == tuple(replace(option, refining=False) for option in after.options)
    assert (reports[-1].done, reports[-1].of, reports[-1].result) == (1, 1, again)


def test_a_limit_that_only_a_better_schedule_meets_is_met() -> None:
    """28 ms are too late for a deadline of 27.5."""
    late = request_of([2, 2], deadline_h=27.5 / 3.6e6, iterations=1)
    before = plan(late, budget_s=0.0)
    assert before.best is None
    assert before.options[0].refining
    reports: list[Refined] = []
    after = refine(late, before, report=reports.append, cancelled=until_faster(reports, 27))
    assert after.best == 0
    assert after.options[0].feasible
    assert after.options[0].reason is None
    assert after.reason is None


def test_cancelled_before_it_began_nothing_changes() -> None:
    request = request_of([4, 4])
    before = plan(request)
    assert refine(request, before, cancelled=lambda: True) == before


def test_what_a_cancel_leaves_undone_stays_marked() -> None:
    request = request_of([3, 3])
    result = plan(request, budget_s=0.0)
    slow = replace(result.options[0], pp_time_ms=100.0, lower_bound_ms=1.0, refining=True)
    two_shapes = tuple(
        replace(slow, partitions=(Partition(dc="dc0", stages=n), Partition(dc="dc1", stages=4 - n)))
        for n in (1, 2)
    )
    reports: list[Refined] = []
    after = refine(
        request,
        replace(result, options=two_shapes),
        report=reports.append,
        seconds=1e-3,
        cancelled=lambda: bool(reports) and reports[-1].done == 1,
    )
    assert (reports[-1].done, reports[-1].of) == (1, 2)
    assert [option.refining for option in after.options] == [False, True]


@settings(max_examples=4, deadline=None)
@given(
    gpus=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    objective=st.sampled_from(["throughput", "cost"]),
    budget=st.sampled_from([None, 1e-5]),
)
def test_no_option_gets_worse(gpus: list[int], objective: str, budget: float | None) -> None:
    more = {} if budget is None else {"budget_per_iteration": budget}
    request = request_of(gpus, objective=objective, **more)
    before = plan(request)
    after = refine(request, before, seconds=0.05)
    assert score(after) >= score(before)
    for was, now in zip(before.options, after.options, strict=True):
        assert now.feasible >= was.feasible
        if was.pp_time_ms is None:
            assert now == was
            continue
        assert now.lower_bound_ms <= now.pp_time_ms <= was.pp_time_ms
        assert simulated(request, now).makespan == now.pp_time_ms
        placed = {"partitions", "pipelines", "dp_cells", "gpus_used", "gpus_idle", "tp", "micro_batch"}
        assert all(getattr(was, name) == getattr(now, name) for name in placed)
    used = set(after.options[after.best].gpus_used) if after.best is not None else set()
    assert {dc.dc for dc in after.excluded} == set(request.names) - used


def test_a_policy_that_was_asked_for_is_kept() -> None:
    request = request_of([2, 2], policy="varuna")
    result = plan(request)
    assert not any(option.refining for option in result.options)
    assert refine(request, result) == result
