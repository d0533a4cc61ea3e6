"""Plans on rails: the all-reduce inside HB domains and along rails, as in a run and by closed form."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cluster.all_reduce import all_reduce_s
from engine.cluster.gpus import gpu
from engine.errors import InputError
from engine.inputs import parse
from engine.plan.job import cluster_of, job_of
from engine.plan.request import PlanRequest
from tests.engine.test_all_reduce import uniform
from tests.engine.test_plan_search import answer_of

PARAMETERS = 1e9
RAILS = {"fabric": "rail-only", "hb_domain": 8}


def document(gpus: int, fabric: dict[str, Any], **more: Any) -> dict[str, Any]:
    site = {"gpus": gpus, "gpu_type": "h100", "price_per_gpu_hour": 2, "intra_gbps": 400, **fabric}
    return {
        "datacenters": [{**site, "name": "a"}, {**site, "name": "b"}],
        "links": [{"between": ["a", "b"], "latency_ms": 5, "bandwidth_gbps": 5}],
        "job": {
            "partitions": 2,
            "microbatches": 4,
            "forward_ms": 10,
            "backward_ms": 20,
            "comm_to_compute": 1.0,
            "parameters_per_stage": PARAMETERS,
        },
        "policy": "varuna",
        **more,
    }


def seconds_on_rails(n: int, hb_domain: int, gpus: int, stages: int) -> float:
    """2 bytes a gradient; the most replicas in a domain that divide all of them, each domain on one node."""
    size, inside, rail = 2 * PARAMETERS, gpu("h100").link_bytes_per_s, 400e9 / 8
    nodes = [min(hb_domain, gpus - first) for first in range(0, gpus, hb_domain)]
    sizes = [x for x in range(1, min(n, hb_domain) + 1) if n % x == 0]
    x = max(x for x in sizes if x == 1 or sum(room // x for room in nodes) * x >= n * stages)
    y = n // x
    return 2 * (x - 1) * size / (x * inside) + 2 * (y - 1) * size / (x * y * rail)


@pytest.mark.parametrize("fabric", ["rail-only", "rail-optimised"])
def test_each_number_of_cells_has_the_all_reduce_of_its_grid(fabric: str) -> None:
    data = document(24, {**RAILS, "fabric": fabric}, method="algorithm1")
    options = answer_of(data).options
    assert [option.pipelines for option in options] == list(range(1, 25))
    for option in options:
        stages = max(part.stages for part in option.partitions)
        seconds = seconds_on_rails(option.pipelines, 8, 24, stages)
        assert option.allreduce_ms == pytest.approx(1e3 * seconds)
    plain = answer_of(document(24, {}, method="algorithm1")).options
    for rails, ring in zip(options, plain, strict=True):
        assert rails.pp_time_ms == ring.pp_time_ms
        assert rails.allreduce_ms <= ring.allreduce_ms * (1 + 1e-12)


@settings(max_examples=50)
@given(n=st.integers(1, 60), hb_domain=st.integers(1, 16), tp=st.sampled_from([1, 2, 4]))
def test_a_plan_and_a_run_count_a_hierarchical_sum_alike(n: int, hb_domain: int, tp: int) -> None:
    request = parse(PlanRequest, document(64, {"fabric": "rail-only", "hb_domain": hb_domain}))
    cluster = cluster_of(request)
    job, (dc, _) = job_of(request, cluster), cluster.datacenters
    job = replace(job, layout=replace(job.layout, tp=tp))
    x = max(x for x in range(1, n + 1) if n % x == 0 and x <= max(1, hb_domain // tp))
    replicas = uniform(x, n // x, dc.gpu.link_bytes_per_s, dc.intra_bytes_per_s)
    run_s = all_reduce_s("hierarchical", 2 * PARAMETERS, replicas)
    assert job.all_reduce_in_s(n, dc) == pytest.approx(run_s)


@pytest.mark.parametrize("gpus", [18, 34])
@pytest.mark.parametrize("objective", ["throughput", "cost"])
def test_the_search_is_never_worse_than_algorithm_1(gpus: int, objective: str) -> None:
    """Nine pipelines of 18 GPUs make domains of three, eight one domain: more are not always better."""
    data = document(gpus, RAILS, objective=objective)
    listed = answer_of({**data, "method": "algorithm1"})
    search = answer_of(data)
    assert search.best is not None
    best = search.options[search.best]
    for option in listed.options:
        if not option.feasible:
            continue
        if objective == "throughput":
            assert best.throughput >= option.throughput * (1 - 1e-9)
        else:
            assert best.cost_per_iteration <= option.cost_per_iteration * (1 + 1e-9)


def test_a_plan_of_the_slowest_data_centre_counts_its_fabric() -> None:
    data = document(16, RAILS, method="algorithm1", order=["a", "b"])
    data["datacenters"][1] |= {"fabric": "any-to-any"}
    del data["datacenters"][1]["hb_domain"]
    option = answer_of(data).options[15]  # 16 pipelines: a stage in each data centre
    assert option.gpus_used == {"a": 16, "b": 16}
    assert option.allreduce_ms == pytest.approx(1e3 * 2 * 15 / 16 * 2 * PARAMETERS / 50e9)


def test_pools_of_a_data_centre_have_its_fabric() -> None:
    data = document(8, RAILS)
    site = data["datacenters"][0]
    pools = [{name: site.pop(name) for name in ("gpus", "gpu_type", "price_per_gpu_hour")}]
    site["pools"] = [*pools, {**pools[0], "gpu_type": "a100-80g"}]
    cluster = cluster_of(parse(PlanRequest, data))
    assert [(dc.name, dc.hb_domain) for dc in cluster.datacenters] == [
        ("a:h100", 8),
        ("a:a100-80g", 8),
        ("b", 8),
    ]


@pytest.mark.parametrize(
    ("fabric", "field", "allowed"),
    [
        ({"fabric": "torus"}, "datacenters[0].fabric", "rail-only"),
        ({"fabric": "rail-only"}, "datacenters[0].hb_domain", "required with rail-only"),
        ({"hb_domain": 8}, "datacenters[0].hb_domain", "leave it out with any-to-any"),
        ({**RAILS, "hb_domain": 0}, "datacenters[0].hb_domain", "1"),
        (
            {**RAILS, "gpu_type": {"peak_tflops": 100, "memory_gb": 80, "hbm_gb_s": 2000}},
            "datacenters[0].link_gb_s",
            "required with rail-only",
        ),
    ],
)
def test_a_fabric_that_says_too_little_is_refused(fabric: dict[str, Any], field: str, allowed: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(PlanRequest, document(8, fabric))
    assert refused.value.field == field
    assert allowed in refused.value.allowed
