"""`meridian cross-dc`: figures by hand, crossovers against a closed form, and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.cli import cli
from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import parse
from engine.plan.cross_dc_compare import CrossDcResult, compare_cross_dc
from engine.plan.cross_dc_request import CrossDcRequest

F, B, M, R = 10.0, 20.0, 4, 2
G, A = 4e9, 1e6  # bytes: gradients of two stages of 10^9 parameters; an activation
JOB = {
    "partitions": 2,
    "microbatches": M,
    "forward_ms": F,
    "backward_ms": B,
    "comm_to_compute": 1,
    "parameters_per_stage": 1e9,
    "activation_bytes": A,
}


def datacenters(count: int, gpus: int = 8) -> list[dict[str, Any]]:
    """Equal data centres."""
    of_each = {"gpus": gpus, "gpu_type": "a100-80g", "price_per_gpu_hour": 3.6, "intra_gbps": 100}
    return [{"name": f"dc{i}", **of_each} for i in range(count)]


def document(**fields: Any) -> dict[str, Any]:
    """Two data centres, one stage of two pipelines in each or one whole pipeline, under GPipe."""
    boundary = {"bandwidth_gbps": 100, "latency_ms": 5, "egress_price_per_gb": 0.02}
    whole = {"datacenters": datacenters(2), "boundary": boundary, "job": JOB, "replicas": R}
    return {**whole, "policies": ["gpipe"], **fields}


def compared(**fields: Any) -> CrossDcResult:
    """The answer for a document."""
    return compare_cross_dc(parse(CrossDcRequest, document(**fields)))


def test_two_data_centres_by_hand() -> None:
    (point,) = compared().points
    rate = 100e9 / 8
    schedule_ms = (M + 1) * (F + B)
    # Half the gradients there and half back. A data centre has one pipeline: nothing to sum inside.
    data_ms = schedule_ms + G / rate * 1e3 + 2 * 5
    assert point.data.iteration_ms == pytest.approx(data_ms)
    assert point.data.bubble_fraction == pytest.approx(1 - M * (F + B) / data_ms)
    assert point.data.wan_gb == pytest.approx(2 * G / 1e9)
    # The first activation and the last gradient are waited for. Two replicas of a stage sum 2 GB.
    pipeline_ms = schedule_ms + 2 * (5 + R * A / rate * 1e3) + 2e9 / rate * 1e3
    assert point.pipeline.iteration_ms == pytest.approx(pipeline_ms)
    assert point.pipeline.bubble_fraction == pytest.approx(1 - M * (F + B) / pipeline_ms)
    assert point.pipeline.wan_gb == pytest.approx(2 * M * R * A / 1e9)
    assert point.better == "pipeline"
    assert point.speedup == pytest.approx(data_ms / pipeline_ms)
    for figures in (point.data, point.pipeline):
        assert figures.egress_cost == pytest.approx(0.02 * figures.wan_gb)
        gpus = 4 * 3.6 * figures.iteration_ms / 3.6e6
        assert figures.cost_per_iteration == pytest.approx(0.02 * figures.wan_gb + gpus)


def test_three_data_centres_by_hand() -> None:
    job = {**JOB, "partitions": 3, "recompute_ms": 0}
    (point,) = compared(datacenters=datacenters(3), job=job, replicas=3).points
    rate, gradients = 100e9 / 8, 6e9
    assert point.data.wan_gb == pytest.approx(2 * 2 * (4 / 3 * gradients) / 1e9)
    # Four steps; a step passes at most two boundaries.
    wan_ms = 4 / 3 * gradients / rate * 1e3 + 4 * 2 * 5
    assert point.data.iteration_ms == pytest.approx((M + 2) * (F + B) + wan_ms)
    assert point.pipeline.wan_gb == pytest.approx(2 * 2 * M * 3 * A / 1e9)


def test_a_wave_crosses_every_boundary_twice_each_way() -> None:
    (wave,) = compared(policies=["crosspipe-wave"]).points
    assert wave.pipeline.wan_gb == pytest.approx(2 * 2 * M * R * A / 1e9)
    (first,) = compared(policies=["gpipe", "crosspipe-wave"]).points
    best = min(wave.pipeline.iteration_ms, compared().points[0].pipeline.iteration_ms)
    assert first.pipeline.iteration_ms == best


def test_the_crossover_over_bandwidth_is_where_the_times_are_equal() -> None:
    boundary = {"bandwidth_gbps": [1000, 10, 100], "latency_ms": [0, 5]}
    result = compared(boundary=boundary)
    assert [(p.latency_ms, p.bandwidth_gbps) for p in result.points] == [
        (latency, bandwidth) for latency in (0, 5) for bandwidth in (10, 100, 1000)
    ]
    # G / b = 2 · R · A / b + all-reduce of two replicas inside a data centre; the latencies are equal.
    rate = (G - 2 * R * A) / (2e9 / (100e9 / 8))
    for crossover, latency in zip(result.crossovers, (0, 5), strict=True):
        assert crossover.axis == "bandwidth_gbps"
        assert crossover.latency_ms == latency
        assert crossover.bandwidth_gbps == pytest.approx(rate * 8 / 1e9, rel=0.01)
        assert (crossover.before, crossover.after) == ("pipeline", "data")


def test_the_crossover_over_latency_is_where_the_better_one_changes() -> None:
    # 1F1B waits for the latency in every turn, a ring of two only twice.
    job = {**JOB, "microbatches": 12, "parameters_per_stage": 5e8}
    boundary = {"bandwidth_gbps": 100, "latency_ms": [0, 200]}
    (crossover,) = compared(boundary=boundary, job=job, policies=["1f1b"]).crossovers
    assert crossover.axis == "latency_ms"
    assert 0 < crossover.latency_ms < 200
    for factor, better in ((0.98, crossover.before), (1.02, crossover.after)):
        near = {"bandwidth_gbps": 100, "latency_ms": factor * crossover.latency_ms}
        (point,) = compared(boundary=near, job=job, policies=["1f1b"]).points
        assert point.better == better


def test_a_larger_batch_and_recomputation_are_jobs_of_their_own() -> None:
    model = {"layers": 4, "hidden": 512, "heads": 8, "seq": 128, "vocab": 1000}
    job = {"model": model, "partitions": 2, "microbatches": 4, "recompute": "none"}
    result = compared(job=job, batches=[1, 3], recompute=["none", "full"])
    assert [(v.batch_factor, v.recompute) for v in result.variants] == [(3, None), (1, "full"), (3, "full")]
    for variant in result.variants:
        alone = {**job, "microbatches": 4 * variant.batch_factor, "recompute": variant.recompute or "none"}
        assert variant.points == compared(job=alone).points
    (first,), (third,) = result.points, result.variants[0].points
    assert third.data.wan_gb == pytest.approx(first.data.wan_gb)
    assert third.pipeline.wan_gb == pytest.approx(3 * first.pipeline.wan_gb)
    assert "variants" not in compared(job=job).as_dict()


def test_sends_that_block_hold_a_stage_for_each_message() -> None:
    (free,), (held,) = compared().points, compared(sends="blocking").points
    assert held.data == free.data  # a pipeline that lies in one data centre sends nothing over the WAN
    delay_ms = 5 + R * A / (100e9 / 8) * 1e3
    longer_ms = 2 * M * delay_ms - 2 * delay_ms  # of GPipe's two stages, where overlapped sends cost 2 delays
    assert held.pipeline.iteration_ms - free.pipeline.iteration_ms == pytest.approx(longer_ms)


def test_without_an_egress_price_there_are_no_costs() -> None:
    (point,) = compared(boundary={"bandwidth_gbps": 100, "latency_ms": 5}).points
    assert point.data.egress_cost is None
    assert point.pipeline.cost_per_iteration is None


MODEL = {"model": "llama-3-405b", "partitions": 2, "microbatches": 4}


def test_a_job_without_memory_is_infeasible_with_the_figure() -> None:
    result = compared(job=MODEL)
    assert result.points == ()
    assert result.reason is not None
    assert "GB per GPU for one microbatch" in result.reason
    assert result.as_dict()["feasible"] is False


def test_a_policy_that_holds_too_many_microbatches_is_infeasible() -> None:
    job = {"model": "llama-3-8b", "partitions": 4, "microbatches": 64, "recompute": False}
    result = compared(job=job, policies=["gpipe"])
    assert result.reason is not None
    assert result.reason.startswith("memory_limit: every forward runs before the first backward")
    assert compared(job=job, policies=["gpipe", "1f1b"]).points[0].data.policy == "1f1b"


def test_a_stage_of_one_layer_is_not_cut_in_two() -> None:
    model = {"layers": 4, "hidden": 512, "heads": 8, "seq": 128, "vocab": 1000}
    job = {"model": model, "partitions": 4, "microbatches": 4, "recompute": False}
    policies = ["zb-v", "1f1b", "crosspipe-wave"]
    (point,) = compared(job=job, policies=policies).points
    assert (point.data.policy, point.pipeline.policy) == ("1f1b", "1f1b")
    assert compared(job=job, policies=["zb-v"]).reason == "a stage has 1 layer; zb-v cut each stage in two"
    (point,) = compared(job={**job, "model": {**model, "layers": 8}}, policies=policies).points
    assert point.data.policy in ("zb-v", "crosspipe-wave")


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"replicas": 3}, "replicas", "must be a multiple of 2"),
        ({"job": {**JOB, "partitions": 3}}, "job.partitions", "must be a multiple of 2"),
        ({"job": {**MODEL, "tp": [1, 2]}}, "job.tp", "must be one number here"),
        ({"job": {**JOB, "activation_bytes": None}}, "job.activation_bytes", "how much crosses the WAN"),
        ({"job": {**JOB, "forward_ms": 0}}, "job.forward_ms", "greater than 0"),
        ({"job": {**MODEL, "partitions": 1000}}, "datacenters[0].gpus", "at least 1000"),
        ({"datacenters": datacenters(1)}, "datacenters", "at least 2 entries"),
        ({"datacenters": datacenters(2, 1)}, "datacenters[0].gpus", "must be at least 2"),
        (
            {"datacenters": [*datacenters(1), {**datacenters(2)[1], "gpu_type": "h100"}]},
            "datacenters[1].gpu_type",
            "compared as equals",
        ),
        ({"datacenters": [datacenters(1)[0]] * 2}, "datacenters[1].name", "already the name"),
        ({"policies": ["crosspipe-loop"]}, "policies[0]", "cannot be compared here"),
        ({"policies": ["gpipe", "gpipe"]}, "policies[1]", "named twice"),
        ({"policies": []}, "policies", "at least 1 entry"),
        ({"boundary": {"bandwidth_gbps": [1, 0], "latency_ms": 1}}, "boundary.bandwidth_gbps[1]", "than 0"),
        ({"boundary": {"bandwidth_gbps": 1, "latency_ms": -1}}, "boundary.latency_ms[0]", "equal to 0"),
        (
            {"boundary": {"bandwidth_gbps": [1.0 + i for i in range(40)], "latency_ms": list(range(40))}},
            "boundary.bandwidth_gbps",
            "gives 1600 points; at most 1000",
        ),
        ({"links": []}, "links", "unknown field"),
        ({"batches": [2, 0]}, "batches[1]", "greater than or equal to 1"),
        ({"batches": 10_000, "job": {**JOB, "microbatches": 10_000}}, "batches", "ops per pipeline"),
        ({"recompute": "full"}, "recompute", "needs a job with a model"),
    ],
)
def test_bad_input_names_the_field(fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        compared(**fields)
    assert error.value.field == field
    assert message in str(error.value)


def test_the_command_prints_and_writes_the_answer(tmp_path: Path) -> None:
    boundary = {"bandwidth_gbps": [10, 1000], "latency_ms": 5, "egress_price_per_gb": 0.02}
    given = document(boundary=boundary)
    (tmp_path / "file.json").write_text(json.dumps(given))
    line = ["cross-dc", str(tmp_path / "file.json"), "--out", str(tmp_path / "out")]
    larger = CliRunner().invoke(cli, [*line[:2], "--batches", "2", "--json"], standalone_mode=False).stdout
    assert json.loads(larger)["variants"][0]["batch_factor"] == 2
    text = CliRunner().invoke(cli, [*line[:2], "--batches", "2"], standalone_mode=False).stdout
    assert "a global batch 2 times as large:" in text.splitlines()
    answer = json.loads(CliRunner().invoke(cli, [*line, "--json"], standalone_mode=False).stdout)
    assert answer == json.loads(json.dumps(compared(boundary=boundary).as_dict()))
    assert json.loads((tmp_path / "out/result.json").read_text()) == answer
    with (tmp_path / "out/points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["pipeline_iteration_ms"]) for row in rows] == [
        point["pipeline"]["iteration_ms"] for point in answer["points"]
    ]
    table = CliRunner().invoke(cli, line, standalone_mode=False).stdout.splitlines()
    assert table[0] == "2 pipelines of 2 stages over 2 data centres, 4 microbatches; 2 GPUs in each"
    assert table[-1].startswith("at 5 ms: from ")
    assert table[-1].endswith(" data parallelism is faster, below that pipeline parallelism")


def test_the_example_has_both_winners() -> None:
    example = load_document(str(Path(__file__).parents[2] / "examples/cross-dc.yaml"))
    example["boundary"] |= {"bandwidth_gbps": [10, 400], "latency_ms": 10}
    result = compare_cross_dc(parse(CrossDcRequest, example))
    assert [point.better for point in result.points] == ["data", "pipeline"]


def test_layers_are_balanced_or_by_hand() -> None:
    """A large vocabulary makes the last stage slow: it gets fewer of the 6 layers."""
    model = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 32000, "seq": 512}

    def point(layers: Any) -> Any:
        job = {"model": model, "partitions": 2, "microbatches": 8, "layers_per_stage": layers}
        return compared(job=job).points[0]

    assert point("balanced").data == point([5, 1]).data
    assert point("even") == point([3, 3])
    assert point("balanced").data.iteration_ms < point("even").data.iteration_ms


@pytest.mark.parametrize(("intra_gbps", "best"), [(100, [4, 2]), (1, [3, 3])])
def test_balanced_layers_are_the_fastest_of_all_or_even(intra_gbps: float, best: list[int]) -> None:
    """Over a slow network inside a data centre the all-reduce of the largest stage decides: even ones win."""
    model = {"layers": 6, "hidden": 1024, "heads": 8, "vocab": 32000, "seq": 1024}
    dcs = [{**dc, "intra_gbps": intra_gbps} for dc in datacenters(2)]

    def point(layers: Any) -> Any:
        job = {"model": model, "partitions": 2, "microbatches": 8, "layers_per_stage": layers}
        return compared(datacenters=dcs, replicas=4, job=job, policies=["1f1b"]).points[0]

    every = [point([first, 6 - first]) for first in range(1, 6)]
    balanced = point("balanced")
    assert balanced.data == min((each.data for each in every), key=lambda data: data.iteration_ms)
    assert balanced.data == point(best).data
    assert balanced.pipeline.iteration_ms <= point("even").pipeline.iteration_ms
