"""Gradients of a tied embedding between the first and the last stage of a pipeline."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.cluster.all_reduce import ring_s
from engine.plan.result import Option, PlanResult
from engine.plan.search.bound import ends_together
from engine.schedule.scenario import POLICIES
from tests.engine.test_plan_search import answer_of, document

CASE = json.loads((Path(__file__).parents[1] / "golden/cases/plan/tied_over_wan.json").read_text())
MATRIX_BYTES = 51_200 * 2048 * 2
BYTES_PER_S = 100e9 / 8


def best(data: dict[str, Any]) -> Option:
    result: PlanResult = answer_of(data)
    assert result.best is not None
    return result.options[result.best]


def test_of_the_case_0_21_gb_cross_each_way_beside_the_activations() -> None:
    option = best({**CASE, "method": "search"})
    assert option.tied_egress_gb == pytest.approx(2 * MATRIX_BYTES / 1e9)
    assert option.egress_gb == pytest.approx(0.134217728 + 2 * MATRIX_BYTES / 1e9)
    assert option.tied_ms == pytest.approx(1e3 * MATRIX_BYTES / BYTES_PER_S + 2 * 5)
    assert option.allreduce_ms == pytest.approx(option.tied_ms)  # one pipeline has no other
    assert option.iteration_ms == pytest.approx(option.pp_time_ms + option.tied_ms)


def test_algorithm_1_has_all_reduce_and_egress_as_printed_and_the_gradients_in_time_and_cost() -> None:
    option, untied = best(CASE), best({**CASE, "allreduce": False})
    assert (option.allreduce_ms, option.egress_gb) == (untied.allreduce_ms, untied.egress_gb)
    assert untied.tied_ms is None
    assert option.iteration_ms == pytest.approx(untied.iteration_ms + option.tied_ms)
    more = 0.02 * option.tied_egress_gb + 2.0 * 24 * option.tied_ms / 3.6e6
    assert option.cost_per_iteration == pytest.approx(untied.cost_per_iteration + more)


def test_it_takes_as_long_as_a_ring_of_two() -> None:
    seconds = ring_s(np.full(2, 5e-3), np.full(2, MATRIX_BYTES / 2 / BYTES_PER_S))
    assert best(CASE).tied_ms == pytest.approx(1e3 * seconds)


def test_every_pipeline_exchanges_its_own_over_its_own_node_pair() -> None:
    data = {**CASE, "max_dp_cells": 4, "datacenters": [{**dc, "gpus": 48} for dc in CASE["datacenters"]]}
    three, four = answer_of(data).options[2:]
    assert (three.pipelines, four.pipelines) == (3, 4)
    assert four.tied_ms == three.tied_ms == best(CASE).tied_ms
    assert four.tied_egress_gb == pytest.approx(4 * 2 * MATRIX_BYTES / 1e9)
    assert three.tied_egress_gb == pytest.approx(3 * 2 * MATRIX_BYTES / 1e9)


def test_inside_a_data_centre_it_takes_the_network_there_and_is_no_egress() -> None:
    job = {"partitions": 2, "microbatches": 2, "model": CASE["job"]["model"]}
    data = document([2], [], job, max_dp_cells=1)
    data["datacenters"][0] |= {"intra_gbps": 50.0, "intra_latency_ms": 0.5}
    option = best(data)
    assert option.tied_ms == pytest.approx(MATRIX_BYTES * 8 / 50e9 * 1e3 + 1.0)
    assert (option.tied_egress_gb, option.egress_gb) == (0.0, 0.0)


@pytest.mark.parametrize("direct", [True, False])
def test_without_a_link_of_their_own_the_ends_talk_along_the_pipeline(direct: bool) -> None:
    joined = [(0, 1, 3.0, 10.0), (1, 2, 4.0, 5.0), *([(0, 2, 50.0, 1.0)] if direct else [])]
    job = {"partitions": 3, "microbatches": 2, "model": CASE["job"]["model"], "mfu": 0.01}
    data = document([1, 1, 1], joined, job, max_dp_cells=1, policy="1f1b", order=["dc0", "dc1", "dc2"])
    for link, price in zip(data["links"], (1.0, 2.0, 8.0), strict=False):
        link["egress_price_per_gb"] = price
    option = best({**data, "method": "algorithm1"})
    gb = 2 * MATRIX_BYTES / 1e9
    latency_ms, gbps, crossings, price = (50, 1, 1, 8) if direct else (3 + 4, 5, 2, 1 + 2)
    assert option.tied_ms == pytest.approx(2 * latency_ms + 1e3 * MATRIX_BYTES * 8 / (gbps * 1e9))
    assert option.tied_egress_gb == pytest.approx(crossings * gb)
    hourly = sum(dc["price_per_gpu_hour"] for dc in data["datacenters"])
    activations = option.egress_gb / 2 * (1 + 2)
    assert option.cost_per_iteration == pytest.approx(
        option.iteration_ms / 3.6e6 * hourly + activations + price * gb
    )


def test_nothing_crosses_where_one_gpu_has_both_ends() -> None:
    """A wave begins and ends on the first stage; a single stage has both matrices, which are one."""
    assert [policy for policy in POLICIES if ends_together(policy)] == ["zb-v", "crosspipe-wave"]
    for policy in ("zb-v", "1f1b"):
        for method in ("search", "algorithm1"):
            option = best({**CASE, "policy": policy, "method": method})
            assert (option.tied_ms is None) == (policy == "zb-v")
    alone = {**CASE, "job": {**CASE["job"], "partitions": 1}}
    assert best(alone).tied_ms is None


def test_two_matrices_are_not_summed() -> None:
    model = {**CASE["job"]["model"], "family": "llama"}
    option = best({**CASE, "job": {**CASE["job"], "model": model}})
    assert option.tied_ms is None
    assert "tied_ms" not in option.as_dict()
