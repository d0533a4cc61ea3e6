"""Jobs with a model: lists of partitions, tp and micro-batch; stage times; memory that limits schedules."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cluster.collectives import Rates
from engine.cluster.gpus import gpu
from engine.errors import InputError
from engine.inputs import parse
from engine.model.efficiency import shipped
from engine.model.iteration import Machine
from engine.model.kernels import Device, How
from engine.model.memory import StageMemory, stage_memory
from engine.model.presets import preset
from engine.model.stages import roofline_profiles
from engine.plan import choose
from engine.plan.answer import plan
from engine.plan.cell import scenario_of, simulated
from engine.plan.held import held_bytes
from engine.plan.job import cluster_of, job_of
from engine.plan.request import PlanRequest
from engine.plan.result import Option, PlanResult
from engine.schedule import OpKind, Schedule, build
from engine.schedule.scenario import Scenario
from engine.simulate import time_schedule


def request_of(
    job: dict[str, Any], gpus: tuple[int, ...] = (16, 16), types: tuple[str, ...] = ("a100-80g",), **more: Any
) -> PlanRequest:
    names = [f"dc{i}" for i in range(len(gpus))]
    document = {
        "datacenters": [
            {"name": name, "gpus": n, "gpu_type": types[i % len(types)], "price_per_gpu_hour": 2}
            for i, (name, n) in enumerate(zip(names, gpus, strict=True))
        ],
        "links": [
            {"between": list(pair), "latency_ms": 10, "bandwidth_gbps": 5}
            for pair in itertools.combinations(names, 2)
        ],
        "job": {"microbatches": 8, "model": "llama-3-8b", **job},
        **more,
    }
    return parse(PlanRequest, document)


def score(result: PlanResult) -> float:
    return -1e300 if result.best is None else choose.score(result.options[result.best], result.objective)


@pytest.mark.parametrize("objective", ["throughput", "cost_per_token"])
def test_of_lists_the_best_is_the_best_of_each_alone(objective: str) -> None:
    lists = {"partitions": [4, 8], "tp": [1, 2], "micro_batch": [1, 2]}
    together = plan(request_of(lists, objective=objective))
    alone = []
    for values in itertools.product(*lists.values()):
        job = dict(zip(lists, values, strict=True))
        alone.append(plan(request_of(job, objective=objective)))
    assert score(together) == pytest.approx(max(map(score, alone)), rel=1e-12)
    assert together.best is not None
    best = together.options[together.best]
    assert (sum(part.stages for part in best.partitions), best.tp, best.micro_batch) in set(
        itertools.product(*lists.values())
    )
    for option in together.options:
        assert simulated(request_of(lists, objective=objective), option).makespan == option.pp_time_ms
        per_stage = option.pipelines * option.tp
        assert option.gpus_used == {part.dc: part.stages * per_stage for part in option.partitions}


def test_a_layout_that_no_gpu_holds_is_left_out_with_its_reason() -> None:
    """70 billion parameters of 16 bytes are 1.1 TB: over 4 stages of one GPU 280 GB each, over 32 GPUs 35."""
    result = plan(request_of({"model": "llama-3-70b", "partitions": 4, "tp": [1, 8]}, (32, 32)))
    assert [(out.partitions, out.tp, out.micro_batch) for out in result.left_out] == [(4, 1, 1)]
    assert "stage 1 needs" in result.left_out[0].reason
    assert result.left_out[0].reason.endswith("a100-80g has 85.9")
    assert result.best is not None
    assert result.options[result.best].tp == 8
    assert result.as_dict()["left_out"][0]["tp"] == 1
    nothing = plan(request_of({"model": "llama-3-70b", "partitions": 4}, (32, 32)))
    assert nothing.best is None
    assert nothing.reason == nothing.left_out[0].reason == result.left_out[0].reason
    assert all(dc.reason == nothing.reason for dc in nothing.excluded)


def test_not_even_one_layer_fits() -> None:
    wide = {"layers": 2, "hidden": 65_536, "heads": 64, "seq": 1024}
    for method in ("search", "algorithm1"):
        result = plan(request_of({"model": wide, "partitions": 2}, (8, 8), method=method))
        assert result.best is None
        assert "GB per GPU for one microbatch; a100-80g has 85.9" in str(result.reason)


def test_a_data_centre_whose_gpus_are_too_small_says_so() -> None:
    result = plan(request_of({"partitions": 4}, (8, 8), types=("a100-80g", "v100")))
    assert [dc.dc for dc in result.excluded] == ["dc1"]
    assert "v100 has" in result.excluded[0].reason


@settings(max_examples=8, deadline=None)
@given(
    partitions=st.sampled_from([2, 4, 8, 16]),
    tp=st.sampled_from([1, 2, 4]),
    micro_batch=st.integers(1, 4),
    recompute=st.booleans(),
    method=st.sampled_from(["search", "algorithm1"]),
)
def test_no_option_holds_more_than_its_gpus_have(
    partitions: int, tp: int, micro_batch: int, recompute: bool, method: str
) -> None:
    job = {"partitions": partitions, "tp": tp, "micro_batch": micro_batch, "recompute": recompute}
    request = request_of(job, (32, 64), types=("a100-80g", "a100-40g"), method=method)
    for option in plan(request).options:
        if option.pp_time_ms is None:
            assert option.reason
            continue
        assert option.memory_gb_per_gpu is not None
        assert set(option.memory_gb_per_gpu) == set(option.gpus_used)
        for name, gigabytes in option.memory_gb_per_gpu.items():
            dc = request.datacenters[request.names.index(name)]
            assert 0 < gigabytes <= gpu(dc.gpu_type).memory_bytes / 1e9 * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(
    policy=st.sampled_from(["gpipe", "1f1b", "varuna", "atlas"]),
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 5),
    recompute=st.integers(0, 1),
)
def test_what_a_schedule_holds_counted_op_by_op(
    policy: str, stages: int, microbatches: int, recompute: int
) -> None:
    scenario = Scenario(
        stages=stages,
        microbatches=microbatches,
        policy=policy,
        spans=False,
        times={"forward": 1, "backward": 2, "recompute": recompute},  # type: ignore[arg-type]
    )
    built = build(scenario)
    memory = tuple(
        StageMemory(state_bytes=1000.0, stored_bytes=10.0 + s, full_bytes=100.0) for s in range(stages)
    )
    ours = held_bytes(memory, built.schedule)
    assert ours is not None
    for stage in range(stages):
        most = max(_held(built.schedule, stage, memory[stage]))
        assert ours[stage] == most
    peaks = time_schedule(scenario, built.schedule).peak_in_flight()[0]
    assert all(ours >= 1000 + peaks * [one.stored_bytes for one in memory])


def _held(schedule: Schedule, stage: int, memory: StageMemory) -> list[float]:
    """Bytes after each op of the first pipeline."""
    order = schedule.order(0, stage)
    again = {op.microbatch for op in order if op.kind == OpKind.R}
    there: dict[int, float] = {}
    sums = []
    for op in order:
        if op.kind == OpKind.B:
            del there[op.microbatch]
        elif op.kind == OpKind.F:
            there[op.microbatch] = memory.stored_bytes + (0 if op.microbatch in again else memory.full_bytes)
        else:
            there[op.microbatch] += memory.full_bytes
        sums.append(memory.state_bytes + sum(there.values()))
    return sums


def test_tight_memory_becomes_a_limit_of_the_schedule() -> None:
    """The last stage, which has the logits, has room for the fewest."""
    job = {"partitions": 8, "micro_batch": 2, "microbatches": 64}
    request = request_of(job, (8,), types=("a100-80g",), policy="varuna")
    result = plan(request)
    assert result.best is not None
    scenario = scenario_of(request, result.options[result.best])
    model, how = preset("llama-3-8b"), How(recompute="full", sequence_parallel=False, fused_attention=True)
    last = stage_memory(model, how, tp=1, micro_batch=2, blocks=4, is_first=False, is_last=True)
    room = gpu("a100-80g").memory_bytes - last.total_bytes(0)
    assert isinstance(scenario.memory_limit, list)
    assert isinstance(scenario.full_limit, list)
    *others, most = scenario.memory_limit
    assert set(others) == {64}
    assert (min(scenario.full_limit), scenario.full_limit[-1]) == (1, 1)
    assert most * last.stored_bytes <= room < (most + 1) * last.stored_bytes


def test_what_prefill_keeps_is_not_trainings() -> None:
    """2 GB fewer for microbatches in flight; where nothing is left for training, the reason says so."""
    job = {"partitions": 8, "micro_batch": 2, "microbatches": 64}
    limits = []
    for more in ({}, {"prefill": {"weight_budget_gb": 1.5, "kv_budget_gb": 0.5}}):
        request = request_of({**job, **more}, (8,), types=("a100-80g",), policy="varuna")
        result = plan(request)
        assert result.best is not None
        limits.append(scenario_of(request, result.options[result.best]).limits("memory_limit")[-1])
        memory = result.options[result.best].memory_gb_per_gpu
        assert memory is not None
        assert 60 < memory["dc0"] <= gpu("a100-80g").memory_bytes / 1e9
    held = stage_memory(
        preset("llama-3-8b"),
        How(recompute="full", sequence_parallel=False, fused_attention=True),
        tp=1,
        micro_batch=2,
        blocks=4,
        is_first=False,
        is_last=True,
    ).stored_bytes
    assert limits[0] - limits[1] in (2e9 // held, 2e9 // held + 1)
    full = plan(request_of({**job, "prefill": {"weight_budget_gb": 60}}, (8,), types=("a100-80g",)))
    assert full.best is None
    assert "with 61.0 GB reserved for prefill; a100-80g has 85.9" in str(full.reason)


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"prefill": {"weight_budget_gb": -1}}, "job.prefill.weight_budget_gb"),
        ({"prefill": {"kv_gb": 1}}, "job.prefill.kv_gb"),
        (
            {
                "model": None,
                "forward_ms": 1,
                "backward_ms": 2,
                "comm_to_compute": 1,
                "parameters_per_stage": 1,
                "prefill": {},
            },
            "job.prefill",
        ),
    ],
)
def test_a_bad_prefill_budget_is_refused(job: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        request_of({"partitions": 4, **job})
    assert error.value.field == field


def test_times_come_from_rooflines_unless_mfu_or_measured_times_are_given() -> None:
    bare = {"partitions": 4, "tp": 2, "micro_batch": 2}
    request = request_of(bare)
    job = job_of(request, cluster_of(request))
    a100, reached = gpu("a100-80g"), shipped()
    rates = Rates(hb_bytes_per_s=a100.link_bytes_per_s * reached.hb, nic_bytes_per_s=25e9 * reached.nic)
    machine = Machine(device=Device.of(a100, reached), hb_domain=8, rates=rates)
    how = How(recompute="full", sequence_parallel=True, fused_attention=True)
    expected = roofline_profiles(preset("llama-3-8b"), how, (machine,) * 4, tp=2, micro_batch=2)
    for ours, theirs in zip(job.profiles((a100,) * 4), expected, strict=True):
        assert (ours.forward_s, ours.backward_s) == pytest.approx((theirs.forward_s, theirs.backward_s))
    assert job.forward_s == pytest.approx(expected[0].forward_s)
    # at an MFU: FLOPs over it
    flat = request_of({**bare, "mfu": 0.5})
    seconds = job_of(flat, cluster_of(flat)).profiles((a100,) * 4)[0].forward_s
    assert seconds == pytest.approx(8 * preset("llama-3-8b").layer_forward_flops(2) / (0.5 * 312e12 * 2))
    # measured: those rows, the other stages as before
    row = {"stage": 0, "tokens": 2 * 8192, "forward_ms": 123, "backward_ms": 250, "recompute_ms": 120}
    measured = request_of({**bare, "measured": {"device": "somewhere", "rows": [row]}})
    profiles = job_of(measured, cluster_of(measured)).profiles((a100,) * 4)
    assert (profiles[0].forward_s, profiles[0].backward_s, profiles[0].recompute_s) == (0.123, 0.25, 0.12)
    assert profiles[1] == job.profiles((a100,) * 4)[1]


@pytest.mark.parametrize(
    ("job", "field", "allowed"),
    [
        ({"partitions": [4, 0]}, "job.partitions[1]", "greater than or equal to 1"),
        ({"partitions": []}, "job.partitions", "at least 1 entry"),
        ({"partitions": 4, "tp": [1, 1.5]}, "job.tp[1]", "integer"),
        ({"partitions": 4, "tp": 3}, "job.tp", "must divide the model's heads = 32"),
        ({"partitions": [4, 99]}, "job.partitions", "the model has 32"),
        ({"partitions": list(range(1, 33)), "tp": [1, 2, 4]}, "job.partitions", "at most 64"),
        ({"partitions": 4, "dtype_bytes": 4}, "job.dtype_bytes", "needs mfu"),
        (
            {
                "partitions": 4,
                "mfu": 0.4,
                "measured": {
                    "device": "x",
                    "rows": [{"stage": 0, "tokens": 1, "forward_ms": 1, "backward_ms": 1}],
                },
            },
            "job.mfu",
            "leave it out",
        ),
        (
            {
                "partitions": 4,
                "measured": {
                    "device": "x",
                    "rows": [{"stage": 9, "tokens": 8192, "forward_ms": 1, "backward_ms": 1}],
                },
            },
            "job.measured.rows[0].stage",
            "4 stages",
        ),
        (
            {
                "partitions": 4,
                "measured": {
                    "device": "x",
                    "rows": [{"stage": 0, "tokens": 1, "forward_ms": 1, "backward_ms": 1}],
                },
            },
            "job.measured.tokens",
            "measured from 1 to 1",
        ),
    ],
)
def test_bad_layouts_name_the_field(job: dict[str, Any], field: str, allowed: str) -> None:
    with pytest.raises(InputError) as error:
        plan(request_of(job))
    assert error.value.field == field
    assert allowed in str(error.value)


def test_algorithm_1_takes_no_lists() -> None:
    with pytest.raises(InputError, match="accepts no lists"):
        request_of({"partitions": [2, 4]}, method="algorithm1")


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=8))
def test_the_best_of_equal_options_lies_on_the_front_of_time_and_cost(figures: list[tuple[int, int]]) -> None:
    """Rounding of one in 10¹⁵ tells no options apart."""
    options = [
        Option(
            dp_cells=1,
            pipelines=1,
            policy="1f1b",
            feasible=True,
            iteration_ms=float(time),
            throughput=1e3 / time,
            cost_per_iteration=cost * (1 + k * 1e-15),
            cost_per_million_tokens=cost * (1 + k * 1e-15),
        )
        for k, (time, cost) in enumerate(figures)
    ]
    for objective in ("cost", "cost_per_token"):
        best = choose.best(options, objective)
        assert best is not None
        assert figures[best] == min(figures, key=lambda figure: (figure[1], figure[0]))
    best = choose.best(options, "throughput")
    assert best is not None
    assert figures[best] == min(figures)
