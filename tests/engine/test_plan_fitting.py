"""What a schedule in chunks holds, in plans as in the dry run, and limits that memory asks for."""

from typing import Any

import pytest

from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.memory import stage_memory
from engine.job.planned import schedule_of
from engine.model.memory import CUDA_CONTEXT_BYTES
from engine.plan.held import memory_per_stage
from engine.plan.job import cluster_of, job_of
from engine.plan.request import PlanRequest
from engine.plan.result import Option
from engine.plan.search import refine as refining
from tests.engine.test_plan_search import answer_of

SHAPE = {
    "layers": 12,
    "hidden": 1024,
    "heads": 16,
    "vocab": 50_000,
    "seq": 1024,
    "ffn": 4096,
    "family": "gpt",
}
GB = 1e9


def asked(policy: str, *, memory_gb: float = 80.0, model: dict[str, Any] | None = None, **job: Any) -> Any:
    gpu = {"peak_tflops": 312, "memory_gb": memory_gb, "hbm_gb_s": 2039}
    return {
        "datacenters": [{"name": "here", "gpus": 3, "gpu_type": gpu, "price_per_gpu_hour": 1}],
        "job": {
            "partitions": 3,
            "microbatches": 6,
            "micro_batch": 2,
            "model": model or {**SHAPE, "family": "llama"},
            "recompute": "none",
            **job,
        },
        "policy": policy,
        "max_dp_cells": 1,
    }


@pytest.mark.parametrize("family", ["gpt", "llama"])
@pytest.mark.parametrize(
    ("policy", "recompute"),
    [
        ("1f1b", False),
        ("1f1b", True),
        ("interleaved", False),
        ("crosspipe-loop", False),
        ("crosspipe-wave", False),
        ("crosspipe-wave", True),
        ("crosspipe-udsub", False),
        ("zb-h1", False),
        ("zb-v", False),
    ],
)
def test_a_plan_counts_what_the_check_before_a_launch_counts(
    policy: str, recompute: bool, family: str
) -> None:
    """Of one schedule, on every stage; but for CUDA's context, which a plan sets aside."""
    shape = {**SHAPE, "family": family}
    document = {
        "datacenters": [{"name": "here", "gpus": 3}],
        "stages": 3,
        "microbatches": 6,
        "micro_batch": 2,
        "policy": policy,
        "model": shape,
        "device": "cuda",
        "dtype": "bf16",
        "recompute": recompute,
        "layers_per_stage": [4, 4, 4],
        "steps": 1,
    }
    run = parse(TrainJob, document)
    request = parse(PlanRequest, asked(policy, model=shape, recompute="full" if recompute else "none"))
    cluster = cluster_of(request)
    gpus = (cluster.datacenters[0].gpu,) * 3
    schedule = schedule_of(run)
    uses = memory_per_stage(job_of(request, cluster).stages, gpus, schedule)
    counted = [use.total_bytes - CUDA_CONTEXT_BYTES for use in uses or ()]
    if family == "gpt" and schedule.traversal.ends_together:  # a run of ours has two matrices, untied
        counted[0] += 18 * 50_000 * 1024
    assert counted == pytest.approx([stage.total_bytes for stage in stage_memory(run)], abs=2)


def best_of(memory_gb: float, **more: Any) -> Option | None:
    answer = answer_of(asked("crosspipe-wave", memory_gb=memory_gb, **more))
    return None if answer.best is None else answer.options[answer.best]


@pytest.mark.parametrize("method", ["search", "algorithm1"])
def test_a_wave_holds_fewer_microbatches_where_memory_asks_for_it(method: str) -> None:
    """From too little for one microbatch to enough for all: never over, never slower with more."""
    lowered, before_ms = [], float("inf")
    for memory_gb in (4.0, 5.4, 5.6, 6.0, 7.0, 20.0):
        answer = answer_of({**asked("crosspipe-wave", memory_gb=memory_gb), "method": method})
        if answer.best is None:
            assert before_ms == float("inf"), memory_gb
            assert "needs" in (answer.reason or "")
            continue
        option = answer.options[answer.best]
        assert all(use.total_bytes <= use.gpu_bytes for use in option.memory_per_stage or ())
        assert option.pp_time_ms is not None
        assert option.pp_time_ms <= before_ms * (1 + 1e-9)
        before_ms = option.pp_time_ms
        lowered.append(option.schedule is not None)
    assert lowered[-1] is False
    assert True in lowered


def test_a_wave_has_both_ends_on_its_first_gpu() -> None:
    """Embedding, 16 bytes a parameter, final norm and head, 18; the last stage has none of them."""
    option = best_of(80.0)
    assert option is not None
    first, middle, last = option.memory_per_stage or ()
    assert middle.state_bytes == last.state_bytes
    assert first.state_bytes - middle.state_bytes == (16 + 18) * 50_000 * 1024 + 18 * 1024


@pytest.mark.parametrize("memory_gb", [5.2, 5.6])
def test_a_refined_plan_fits(memory_gb: float) -> None:
    """`auto` may choose a wave, and goes straight where memory does not hold one."""
    request = parse(PlanRequest, asked("auto", memory_gb=memory_gb))
    answer = answer_of(asked("auto", memory_gb=memory_gb))
    if answer.best is None:
        assert "needs" in (answer.reason or "")
        return
    refined = refining.refine(request, answer, seconds=0.3)
    for option in refined.options:
        if option.feasible:
            assert all(use.total_bytes <= use.gpu_bytes for use in option.memory_per_stage or ())
