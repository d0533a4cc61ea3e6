"""Algorithm 1 against an independent version written from the paper's print (§4.5)."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.inputs import parse
from engine.plan.answer import plan
from engine.plan.cell import scenario_of
from engine.plan.request import PlanRequest
from engine.plan.result import PlanResult
from engine.simulate import simulate


def printed_algorithm_1(
    d_max: int, dcs: list[str], num_gpu: dict[str, int], c: int, p: int
) -> dict[int, dict[str, int] | None]:
    """Lines 1–13 as printed: Partitions by D, None where part_left > 0 (PP_time = ∞)."""
    answer: dict[int, dict[str, int] | None] = {}
    for d in range(1, d_max + 1):
        part_left = p
        partitions = {}
        for dc in dcs:
            pp_gpu = math.floor(num_gpu[dc] / (d * c))
            part_assigned = min(part_left, pp_gpu)
            partitions[dc] = part_assigned
            part_left -= part_assigned
            if part_left == 0:
                break
        answer[d] = None if part_left > 0 else {dc: n for dc, n in partitions.items() if n}
    return answer


def document(gpus: list[int], **changes: Any) -> dict[str, Any]:
    """Data centres dc0, dc1 … of `gpus` GPUs, all joined."""
    names = [f"dc{i}" for i in range(len(gpus))]
    job = {
        "partitions": 4,
        "microbatches": 3,
        "forward_ms": 10,
        "backward_ms": 20,
        "recompute_ms": 10,
        "comm_to_compute": 2,
        "parameters_per_stage": 1e8,
        "activation_bytes": 1e7,
        "tokens_per_microbatch": 1000,
    }
    return {
        "datacenters": [
            {"name": name, "gpus": n, "gpu_type": "a100-80g", "price_per_gpu_hour": 1 + i}
            for i, (name, n) in enumerate(zip(names, gpus, strict=True))
        ],
        "links": [
            {"between": [a, b], "latency_ms": 5 + i, "bandwidth_gbps": 5, "egress_price_per_gb": 0.02}
            for i, a in enumerate(names)
            for b in names[i + 1 :]
        ],
        "job": job | changes.pop("job", {}),
        "method": "algorithm1",
        **changes,
    }


def planned(given: dict[str, Any]) -> PlanResult:
    return plan(parse(PlanRequest, given))


requests = st.builds(
    lambda gpus, ratio, stages, price, extra: document(
        gpus,
        job={"comm_to_compute": ratio, "partitions": stages, "microbatches": 2},
        order="price" if price else "gpus",
        max_dp_cells=extra,
    ),
    gpus=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    ratio=st.floats(0, 5),
    stages=st.integers(1, 8),
    price=st.booleans(),
    extra=st.one_of(st.none(), st.integers(1, 12)),
)


@settings(max_examples=60, deadline=None)
@given(requests)
def test_it_does_what_the_paper_prints(given: dict[str, Any]) -> None:
    result = planned(given)
    ratio, stages = given["job"]["comm_to_compute"], given["job"]["partitions"]
    c = max(1, math.floor(ratio + 0.5))
    gpus = {dc["name"]: dc["gpus"] for dc in given["datacenters"]}
    names = list(gpus)
    # Prices rise as listed; `sorted` is stable, so ties stay as listed.
    order = names if given["order"] == "price" else sorted(names, key=lambda name: -gpus[name])
    d_max = given["max_dp_cells"] or max(1, sum(gpus.values()) // (c * stages))
    expected = printed_algorithm_1(d_max, order, gpus, c, stages)
    assert result.cell_pipelines == c
    assert [option.dp_cells for option in result.options] == list(expected)
    for option in result.options:
        partitions = expected[option.dp_cells]
        assert option.feasible == (partitions is not None)
        assert option.pipelines == option.dp_cells * c
        if partitions is None:
            assert option.reason
            assert option.iteration_ms is None
            continue
        assert [(part.dc, part.stages) for part in option.partitions] == list(partitions.items())
        assert option.gpus_used == {dc: n * option.pipelines for dc, n in partitions.items()}
        assert all(used <= gpus[dc] for dc, used in option.gpus_used.items())


@settings(max_examples=30, deadline=None)
@given(requests)
def test_every_figure_of_an_option_follows_from_its_parts(given: dict[str, Any]) -> None:
    request = parse(PlanRequest, given)
    result = plan(request)
    prices = {dc["name"]: dc["price_per_gpu_hour"] for dc in given["datacenters"]}
    for option in result.options:
        if not option.feasible:
            continue
        n, m = option.pipelines, given["job"]["microbatches"]
        makespan = simulate(scenario_of(request, option)).makespan
        assert option.pp_time_ms == makespan
        assert option.lower_bound_ms is not None
        assert option.lower_bound_ms <= option.pp_time_ms * (1 + 1e-9)
        allreduce_ms = 1000 * 4 * 1e8 * (n - 1) / (n * 100e9 / 8)
        assert option.allreduce_ms == pytest.approx(allreduce_ms)
        assert option.iteration_ms == pytest.approx(makespan + allreduce_ms)
        assert option.throughput == pytest.approx(n / (option.iteration_ms / 1e3))
        assert option.tokens_per_s == pytest.approx(option.throughput * m * 1000)
        hops = len(option.partitions) - 1
        assert option.egress_gb == pytest.approx(2 * m * 1e7 * n * hops / 1e9)
        gpu_cost = (
            sum(prices[dc] * used for dc, used in option.gpus_used.items()) * option.iteration_ms / 3.6e6
        )
        assert option.cost_per_iteration == pytest.approx(gpu_cost + 0.02 * option.egress_gb)
        assert option.cost_per_million_tokens == pytest.approx(
            option.cost_per_iteration / (n * m * 1000) * 1e6
        )


@settings(max_examples=40, deadline=None)
@given(requests, st.sampled_from(["throughput", "cost", "cost_per_token"]))
def test_best_and_pareto_by_comparing_all_pairs(given: dict[str, Any], objective: str) -> None:
    result = planned(given | {"objective": objective})
    feasible = {i: option for i, option in enumerate(result.options) if option.feasible}
    points = {i: (option.iteration_ms, option.cost_per_iteration) for i, option in feasible.items()}
    front = [
        i
        for i, (time, cost) in points.items()
        if not any(t <= time and k <= cost and (t, k) != (time, cost) for t, k in points.values())
    ]
    assert list(result.pareto) == front
    if not feasible:
        assert result.best is None
        assert result.reason
        return
    scores = {
        i: {
            "throughput": -(option.throughput or 0),
            "cost": option.cost_per_iteration,
            "cost_per_token": option.cost_per_million_tokens,
        }[objective]
        for i, option in feasible.items()
    }
    assert scores[result.best] == pytest.approx(min(scores.values()))
    used = result.options[result.best].gpus_used
    left_out = {dc["name"] for dc in given["datacenters"]} - set(used)
    assert {excluded.dc for excluded in result.excluded} == left_out
    assert all(excluded.reason for excluded in result.excluded)


def test_a_second_data_centre_that_is_too_small_is_forgone() -> None:
    # §4.5's own example: 1,000 GPUs here and 10 there.
    result = planned(document([1000, 10], job={"partitions": 10, "microbatches": 10, "comm_to_compute": 2}))
    best = result.options[result.best or 0]
    assert best.gpus_used == {"dc0": 1000}
    assert [dc.dc for dc in result.excluded] == ["dc1"]
    assert "10 GPUs" in result.excluded[0].reason


@pytest.mark.parametrize(("ratio", "pipelines"), [(0.2, 1), (1.49, 1), (1.5, 2), (2.5, 3), (3.49, 3), (4, 4)])
def test_pipelines_in_a_cell_round_half_up(ratio: float, pipelines: int) -> None:
    assert planned(document([40], job={"comm_to_compute": ratio})).cell_pipelines == pipelines


def test_a_missing_link_makes_an_option_infeasible_and_says_so() -> None:
    # Stages go (5, 5, 2); only dc0 and dc1 are joined.
    given = document([10, 10, 10], job={"partitions": 12})
    assert planned(given).options[0].feasible
    given["links"] = given["links"][:1]
    option = planned(given).options[0]
    assert not option.feasible
    assert "no link between dc1 and dc2" in (option.reason or "")
    assert option.iteration_ms is None


def test_limits_keep_the_figures_and_name_the_excess() -> None:
    free = planned(document([40, 40]))
    cheapest = free.options[0].cost_per_iteration
    assert cheapest is not None
    result = planned(document([40, 40], budget_per_iteration=cheapest))
    assert [option.feasible for option in result.options] == [True] + [False] * (len(result.options) - 1)
    assert result.best == 0
    assert "over the budget" in (result.options[1].reason or "")
    assert planned(document([40, 40], budget_per_iteration=cheapest * (1 - 1e-9))).best is None
    assert result.options[1].iteration_ms == free.options[1].iteration_ms
    late = planned(document([40, 40], deadline_h=1e-9, iterations=100))
    assert late.best is None
    assert "past the deadline" in (late.reason or "")


def test_whole_data_centres_are_billed_whole() -> None:
    used, whole = (planned(document([50, 40], bill=bill)).options[0] for bill in ("used", "whole"))
    assert used.gpus_used == {"dc0": 8}
    assert whole.cost_per_iteration == pytest.approx(used.cost_per_iteration * 50 / 8)


def test_allowed_leaves_the_others_out_with_that_reason() -> None:
    result = planned(document([40, 80], allowed=["dc0"]))
    assert all(set(option.gpus_used) <= {"dc0"} for option in result.options)
    assert [(dc.dc, dc.reason) for dc in result.excluded] == [("dc1", "not among the allowed data centres")]


def test_an_order_by_name_is_kept() -> None:
    result = planned(document([40, 80, 8], order=["dc2", "dc0", "dc1"]))
    assert [part.dc for part in result.options[0].partitions] == ["dc2"]
    assert result.order == ("dc2", "dc0", "dc1")


def test_the_model_of_the_paper_gives_c_3() -> None:
    given = document([12], allreduce=True)
    given["datacenters"].append(given["datacenters"][0] | {"name": "dc1", "gpus": 6})
    given["links"] = [{"between": ["dc0", "dc1"], "latency_ms": 40, "bandwidth_gbps": 5}]
    given["job"] = {"partitions": 4, "microbatches": 4, "model": "gpt-a", "mfu": 0.65}
    result = planned(given)
    assert result.comm_to_compute == pytest.approx(3, abs=0.03)
    assert result.cell_pipelines == 3
    assert result.transfer_ms == pytest.approx(53.687, rel=1e-4)
    assert result.options[0].tokens_per_s == pytest.approx(result.options[0].throughput * 4 * 4096)
    # One connection gives 299 Mbps: C is then 16.7 times as large.
    given["links"][0]["connections"] = 1
    assert planned(given).comm_to_compute == pytest.approx(result.comm_to_compute * 5000 / 298.75, rel=1e-6)


def test_a_stage_of_a_tensor_parallel_model_takes_that_many_gpus() -> None:
    given = document([64])
    given["job"] = {"partitions": 8, "microbatches": 4, "model": "llama-3-8b", "tp": 4}
    result = planned(given)
    assert result.cell_pipelines == 1  # no link: nothing to overlap
    assert result.options[0].gpus_used == {"dc0": 32}
    assert [option.feasible for option in result.options] == [True, True] + [False] * 6


def test_slower_gpus_compute_longer_in_their_own_stages() -> None:
    given = document([4, 4])
    given["datacenters"][1]["gpu_type"] = "v100"
    given["job"] = {"partitions": 8, "microbatches": 4, "model": "gpt-a", "mfu": 0.5}
    given["links"][0]["bandwidth_gbps"] = 100
    request = parse(PlanRequest, given)
    forward = scenario_of(request, plan(request).options[0]).per_stage("forward")
    assert forward[4:] == pytest.approx(forward[:4] * 312 / 125)


def test_more_dp_cells_than_can_be_listed_are_refused_with_the_remedy() -> None:
    given = document([10**7], job={"partitions": 1})
    with pytest.raises(InputError, match=r"^max_dp_cells: .*at most 100,000"):
        planned(given)
    assert len(planned({**given, "max_dp_cells": 3}).options) == 3


def test_same_input_same_output() -> None:
    assert planned(document([40, 30, 20])).as_dict() == planned(document([40, 30, 20])).as_dict()
