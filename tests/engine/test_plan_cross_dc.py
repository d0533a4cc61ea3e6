"""A plan's pipelines against data parallelism over the WAN: by hand, and by properties."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cli import cli
from engine.cluster.cluster import Cluster, DataCenter, WanLink
from engine.cluster.gpus import gpu
from engine.errors import InputError
from engine.inputs import parse
from engine.plan.cross_dc import Boundary, CrossDcJob, data_parallel
from engine.plan.cross_dc_plan import Comparison, compare_plan, default_variants
from engine.plan.cross_dc_ring import best_ring
from engine.plan.request import PlanRequest
from engine.schedule.scenario import Times

F, B, M, P = 10.0, 20.0, 8, 2  # ms, ms, microbatches, stages
G, A = 2e9, 5e6  # bytes of a stage's gradients, of an activation
GBPS, LATENCY_MS = 5.0, 10.0
RATE = GBPS * 1e9 / 8
TIMES = {
    "partitions": P,
    "microbatches": M,
    "forward_ms": F,
    "backward_ms": B,
    "comm_to_compute": A / RATE * 1e3 / F,
    "parameters_per_stage": G / 2,
    "activation_bytes": A,
}
MODEL = {"layers": 8, "hidden": 1024, "heads": 8, "vocab": 32000, "seq": 512}


def document(*gpus: int, **fields: Any) -> dict[str, Any]:
    """Data centres with so many GPUs, each linked to each, under GPipe: the first and last stage are one op
    after another, and times add up by hand."""
    names = [f"dc{i}" for i in range(len(gpus))]
    of_each = {"gpu_type": "a100-80g", "price_per_gpu_hour": 3.6, "intra_gbps": 100}
    link = {"latency_ms": LATENCY_MS, "bandwidth_gbps": GBPS, "egress_price_per_gb": 0.02}
    whole = {
        "datacenters": [
            {"name": name, "gpus": count, **of_each} for name, count in zip(names, gpus, strict=True)
        ],
        "links": [{"between": list(pair), **link} for pair in itertools.combinations(names, 2)],
        "job": TIMES,
        "policy": "gpipe",
    }
    return {**whole, **fields}


def compared(request: dict[str, Any], factor: int = 1, recompute: Any = None) -> Comparison:
    """The answer to one of the document's variants."""
    (one,) = compare_plan(parse(PlanRequest, request), [(factor, recompute)])
    return one


def test_two_data_centres_by_hand() -> None:
    # 6 and 4 GPUs hold 3 and 2 pipelines of two stages; the plan has 4 over both, or 5 in one each.
    one = compared(document(6, 4))
    data, sequences = one.data, one.sequences
    assert data.pipelines_per_dc == {"dc0": 3, "dc1": 2}
    assert one.pipeline.pipelines is not None
    assert sequences == one.pipeline.pipelines * M
    assert data.microbatches == -(-sequences // 5)
    schedule_ms = (data.microbatches + P - 1) * (F + B)
    inside_ms = 2 * G * (3 - 1) / (3 * 100e9 / 8) * 1e3  # three replicas of a stage at 100 Gbps
    lan_ms = 2 * A / (100e9 / 8) * 1e3  # an activation and a gradient are waited for once
    # Each of two steps sends half of the gradients over the node pairs of two pipelines.
    wan_ms = 2 * (G / 2 / (2 * RATE) * 1e3 + LATENCY_MS)
    assert data.wan_ms == pytest.approx(wan_ms)
    assert data.iteration_ms == pytest.approx(schedule_ms + lan_ms + inside_ms + wan_ms)
    assert (data.node_pairs, data.boundary_gbps) == (2 * P, 2 * P * GBPS)
    assert data.wan_gb == pytest.approx(2 * P * G / 1e9)
    assert data.egress_cost == pytest.approx(0.02 * data.wan_gb)
    assert data.cost_per_iteration == pytest.approx(0.02 * data.wan_gb + 10 * 3.6 * data.iteration_ms / 3.6e6)


@pytest.mark.parametrize("name", ["tp", "cp"])
def test_replicas_have_all_the_gpus_of_their_stages(name: str) -> None:
    """16 and 12 GPUs hold four and three pipelines of two stages on two GPUs each."""
    job = {"model": MODEL, "partitions": P, "microbatches": M, name: 2}
    data = compared(document(16, 12, job=job)).data
    assert data.pipelines_per_dc == {"dc0": 4, "dc1": 3}
    assert data.gpus_used == {"dc0": 16, "dc1": 12}


def test_the_pipelines_are_the_plans_best_option() -> None:
    request = document(4, 4, job={**TIMES, "partitions": 6}, policy="1f1b")
    one = compared(request).pipeline
    assert one.pipelines is not None
    assert one.wan_gb == pytest.approx(2 * M * A * one.pipelines / 1e9)
    assert one.egress_cost == pytest.approx(0.02 * one.wan_gb)
    assert one.boundary_gbps == pytest.approx(one.pipelines * GBPS)
    assert one.iteration_ms is not None
    hours = one.iteration_ms / 3.6e6
    assert one.cost_per_iteration == pytest.approx(one.egress_cost + 6 * one.pipelines * 3.6 * hours)


def test_a_data_centre_without_room_for_a_pipeline_has_none() -> None:
    one = compared(document(4, 4, job={**TIMES, "partitions": 6}, policy="1f1b"))
    assert one.pipeline.feasible
    assert not one.data.feasible
    assert one.data.reason == "fewer than two data centres have room for a whole pipeline"
    assert (one.faster, one.cheaper, one.speedup, one.break_even_gbps) == (None,) * 4


def test_missing_links_are_named() -> None:
    one = compared({**document(4, 4), "links": []})
    assert one.data.reason == "no ring of links joins dc0, dc1"
    assert one.pipeline.feasible  # inside one of them
    assert one.pipeline.boundary_gbps is None


def test_gradients_that_are_not_given_are_asked_for() -> None:
    job = {name: value for name, value in TIMES.items() if name != "parameters_per_stage"}
    one = compared(document(4, 4, job=job, allreduce=False))
    assert one.data.reason is not None
    assert one.data.reason.startswith("job.parameters_per_stage")


def test_a_limit_of_the_plan_holds_for_both() -> None:
    one = compared(document(4, 4))
    assert one.data.cost_per_iteration is not None
    limited = compared(document(4, 4, budget_per_iteration=one.data.cost_per_iteration / 2))
    assert not limited.data.feasible
    assert limited.data.reason is not None
    assert "over the budget" in limited.data.reason


@settings(max_examples=20)
@given(st.floats(0.5, 50), st.integers(1, 16), st.floats(0, 40))
def test_at_the_break_even_both_take_as_long(gbps: float, factor: int, latency_ms: float) -> None:
    """With the bandwidth of a node pair scaled to it, the ring takes what the pipelines leave."""
    request = document(4, 4)
    request["links"][0] |= {"bandwidth_gbps": gbps, "latency_ms": latency_ms}
    one = compared(request, factor)
    data, pipeline = one.data, one.pipeline
    assert data.boundary_gbps is not None
    assert data.wan_ms is not None
    assert data.iteration_ms is not None
    assert pipeline.iteration_ms is not None
    if one.break_even_gbps is None:
        assert data.iteration_ms - (data.wan_ms - 2 * latency_ms) >= pipeline.iteration_ms
        assert one.faster == "pipeline"
        return
    ring_ms = P * G / (one.break_even_gbps * 1e9 / 8) * 1e3 + 2 * latency_ms
    assert data.iteration_ms - data.wan_ms + ring_ms == pytest.approx(pipeline.iteration_ms)
    if one.faster == "data":
        assert one.break_even_gbps < data.boundary_gbps
    else:
        assert one.break_even_gbps >= data.boundary_gbps * (1 - 1e-9)


@settings(max_examples=40)
@given(st.data())
def test_the_ring_is_the_fastest_of_all(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5))
    names = [f"dc{i}" for i in range(count)]
    pipelines = {name: data.draw(st.integers(1, 4)) for name in names}
    links = {
        frozenset(pair): WanLink(
            ends=frozenset(pair),
            latency_s=data.draw(st.sampled_from([0.0, 0.01, 0.1])),
            cap_bytes_per_s=data.draw(st.sampled_from([1e8, 5e8, 1e9])),
        )
        for pair in itertools.combinations(names, 2)
        if data.draw(st.integers(0, 5))
    }
    dcs = [
        DataCenter(name=name, gpus=8, gpu=gpu("a100-80g"), price_per_gpu_hour=1, intra_bytes_per_s=1e10)
        for name in names
    ]
    seconds = []
    for order in itertools.permutations(names):
        edges = list(itertools.pairwise([*order, order[0]]))
        if all(frozenset(edge) in links for edge in edges):
            of_each = [
                (1e9 / count) / (min(pipelines[a], pipelines[b]) * links[frozenset((a, b))].bytes_per_s)
                + links[frozenset((a, b))].latency_s
                for a, b in edges
            ]
            seconds.append(2 * (count - 1) * max(of_each))
    ring = best_ring(Cluster(datacenters=tuple(dcs), links=links), pipelines, 1e9)
    if not seconds:
        assert ring is None
    else:
        assert ring is not None
        assert ring.seconds == pytest.approx(min(seconds))


def test_the_ring_is_that_of_cross_dc() -> None:
    """The same job on equal data centres, its node pairs as one boundary."""
    data = compared(document(4, 4)).data
    assert data.boundary_gbps is not None
    assert data.microbatches is not None
    job = CrossDcJob(
        stages=P,
        replicas=4,
        microbatches=data.microbatches,
        times=Times(forward=F / 1e3, backward=B / 1e3),
        gradient_bytes=P * G,
        activation_bytes=A,
    )
    wan = Boundary(bytes_per_s=data.boundary_gbps * 1e9 / 8, latency_s=LATENCY_MS / 1e3)
    free = Boundary(bytes_per_s=1e30, latency_s=0)
    crossed, alone = data_parallel(job, wan, ["gpipe"]), data_parallel(job, free, ["gpipe"])
    assert not hasattr(crossed, "reason")
    assert data.wan_ms == pytest.approx((crossed.seconds - alone.seconds) * 1e3)  # type: ignore[union-attr]
    assert data.wan_gb == pytest.approx(crossed.wan_bytes / 1e9)  # type: ignore[union-attr]


def test_a_larger_batch_sends_the_same_gradients() -> None:
    small, large = compared(document(4, 4)), compared(document(4, 4), 4)
    assert large.data.wan_gb == small.data.wan_gb
    assert large.data.wan_ms == small.data.wan_ms
    assert large.sequences == 4 * small.sequences


def test_layouts_and_recomputation_of_a_model() -> None:
    job = {
        "model": MODEL,
        "partitions": [2, 4],
        "microbatches": 8,
        "micro_batch": [1, 2],
        "recompute": "none",
    }
    request = document(8, 8, job=job, policy="1f1b")
    assert default_variants(parse(PlanRequest, request)) == [
        (1, None),
        (2, None),
        (4, None),
        (8, None),
        (1, "full"),
    ]
    none, full = compared(request), compared(request, 1, "full")
    assert full.recompute == "full"
    for one in (none, full):
        data, pipeline = one.data, one.pipeline
        assert data.stages in (2, 4)
        assert pipeline.microbatches == 8
        assert one.sequences == pipeline.pipelines * 8 * pipeline.micro_batch  # type: ignore[operator]
        assert data.pipelines == 16 // data.stages
        assert data.microbatches == -(-one.sequences // (data.pipelines * data.micro_batch))  # type: ignore[operator]
    assert none.data.iteration_ms < full.data.iteration_ms  # type: ignore[operator]
    # Every parameter twice: 2 bytes, from each of the two to the other.
    hidden, layers, vocab = 1024, 8, 32000
    parameters = layers * 12 * hidden**2 + 2 * vocab * hidden
    assert none.data.wan_gb == pytest.approx(2 * 2 * parameters / 1e9, rel=0.01)


def test_what_cannot_be_varied_is_refused() -> None:
    with pytest.raises(InputError) as error:
        compared(document(4, 4), 1, "full")
    assert error.value.field == "recompute"
    with pytest.raises(InputError) as error:
        compared(document(4, 4), 10**6)
    assert error.value.field == "batches"


def test_the_command_has_both(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(document(4, 4)))
    line = ["plan", str(tmp_path / "plan.json"), "--cross-dc", "--batches", "1,4"]
    answer = json.loads(CliRunner().invoke(cli, [*line, "--json"], standalone_mode=False).stdout)
    rows = list(compare_plan(parse(PlanRequest, document(4, 4)), [(1, None), (4, None)]))
    assert answer["cross_dc"] == json.loads(json.dumps([row.as_dict() for row in rows]))
    table = CliRunner().invoke(cli, line, standalone_mode=False).stdout
    assert "the plan's pipelines (PP) against data parallelism over the WAN (DP)" in table
    assert "DP: 2 in dc0, 2 in dc1, of 2 stages; 4 node pairs send over a boundary" in table
    result = CliRunner().invoke(cli, ["plan", line[1], "--batches", "4"], standalone_mode=False)
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == "--batches: '4': goes with --cross-dc"
