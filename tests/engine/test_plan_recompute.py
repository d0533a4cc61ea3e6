"""Recomputation in a plan: of no activations, of attention's core, of whole stages, or by stage."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.plan.cell import cell_scenario, placed_job, simulated
from engine.plan.request import PlanRequest
from engine.plan.result import Option, Partition
from engine.simulate import simulate
from tests.engine.test_plan_search import answer_of, document, score

SHAPE = {"layers": 8, "hidden": 4096, "heads": 32, "vocab": 32_000, "seq": 2048, "family": "gpt"}
JOB = {"partitions": 4, "microbatches": 8, "model": SHAPE}


def one(gpus: list[int] | None = None, memory_gb: float = 1000, **job: Any) -> dict[str, Any]:
    gpus = gpus or [4]
    joined = [(a, a + 1, 5.0, 100.0) for a in range(len(gpus) - 1)]
    data = document(gpus, joined, {**JOB, **job}, policy="1f1b", max_dp_cells=1)
    for dc in data["datacenters"]:
        dc["gpu_type"] = {"peak_tflops": 312, "memory_gb": memory_gb, "hbm_gb_s": 2039}
    return data


def best(data: dict[str, Any]) -> Option:
    result = answer_of(data)
    assert result.best is not None, result.reason
    return result.options[result.best]


def test_true_and_false_are_full_and_none() -> None:
    for flag, name in ((True, "full"), (False, "none")):
        assert answer_of(one(recompute=flag)).options == answer_of(one(recompute=name)).options
    assert answer_of(one()).options == answer_of(one(recompute="full")).options


@pytest.mark.parametrize("mfu", [None, 0.4])
def test_less_recomputation_takes_less_time_and_more_memory(mfu: float | None) -> None:
    more = {} if mfu is None else {"mfu": mfu}
    plain = [best(one(recompute=how, fused_attention=False, **more)) for how in ("none", "selective", "full")]
    times, held = ([getattr(o, name) for o in plain] for name in ("pp_time_ms", "memory_gb_per_gpu"))
    assert times[0] < times[1] < times[2]
    assert held[0]["dc0"] > held[1]["dc0"] > held[2]["dc0"]
    fused = [best(one(recompute=how, **more)) for how in ("none", "selective")]
    assert fused[0].pp_time_ms == fused[1].pp_time_ms, "there is nothing to compute again"
    assert fused[0].memory_gb_per_gpu == fused[1].memory_gb_per_gpu
    assert fused[0].memory_gb_per_gpu["dc0"] <= held[1]["dc0"]


def test_selective_stores_what_korthikanti_et_al_print() -> None:
    """Table 2, with tensor parallelism t: none stores 5·a·s²·b/t bytes a block more than selective.

    2 of the 5 are softmax; a run of ours keeps these alone, as it has no dropout.
    """
    s, a, t = SHAPE["seq"], SHAPE["heads"], 2
    job = {"tp": t, "microbatches": 3, "mfu": 0.4, "fused_attention": False}
    none, selective = (best(one([8], recompute=how, **job)) for how in ("none", "selective"))
    in_flight, blocks, one_block = 3, 2, 2 * a * s * s / t
    saved = 1e9 * (none.memory_gb_per_gpu["dc0"] - selective.memory_gb_per_gpu["dc0"])
    # while a block goes backward its scores are there again
    assert in_flight * blocks - 1 <= saved / one_block * (1 + 1e-9)
    assert saved / one_block <= in_flight * blocks * (1 + 1e-9)


def test_selective_repeats_two_products_of_a_block_within_the_backward_pass() -> None:
    """4·s²·h FLOPs a block and sequence (Korthikanti et al. 2022, §5), in B: there is no op R."""
    job = {"partitions": 1, "microbatches": 1, "mfu": 0.5, "fused_attention": False}
    none, selective = (best(one([1], recompute=how, **job)) for how in ("none", "selective"))
    flops = 8 * 4 * SHAPE["seq"] ** 2 * SHAPE["hidden"]
    assert selective.pp_time_ms - none.pp_time_ms == pytest.approx(1e3 * flops / (0.5 * 312e12))


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"recompute": "whole"}, "job.recompute"),
        ({"recompute": 1}, "job.recompute"),
        ({"fused_attention": "no"}, "job.fused_attention"),
    ],
)
def test_what_is_refused_is_named(job: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        parse(PlanRequest, one(**job))
    assert error.value.field == field


def trying_all(data: dict[str, Any]) -> float:
    """The best score over every split, number of pipelines and recomputation of every stage."""
    request = parse(PlanRequest, data)
    modes = ("none", "full") if request.job.fused_attention else ("none", "selective", "full")
    gpus, best = [dc.gpus for dc in request.datacenters], -1e300
    splits = [(3,)] if len(gpus) == 1 else [(1, 2), (2, 1)]
    for split, each in itertools.product(splits, itertools.product(modes, repeat=3)):
        parts = tuple(Partition(dc=f"dc{i}", stages=n) for i, n in enumerate(split))
        for pipelines in range(1, min(have // n for have, n in zip(gpus, split, strict=True)) + 1):
            option = Option(dp_cells=1, pipelines=pipelines, policy="1f1b", partitions=parts, recompute=each)
            cluster, job = placed_job(request, option)
            scenario = cell_scenario(request, cluster, job, parts, policy="1f1b")
            if not isinstance(scenario, Infeasible):
                seconds = simulate(scenario).makespan / 1e3 + job.all_reduce_s(pipelines, 100e9 / 8)
                best = max(best, pipelines * job.tokens_per_pipeline / seconds)
    return best


@settings(max_examples=12, deadline=None)
@given(
    memory_gb=st.floats(6, 26),
    gpus=st.sampled_from([[4], [2, 2], [8]]),
    microbatches=st.sampled_from([2, 5, 8]),
    fused=st.booleans(),
)
def test_the_choice_by_stage_is_the_best_of_all(
    memory_gb: float, gpus: list[int], microbatches: int, fused: bool
) -> None:
    data = one(
        gpus, memory_gb, recompute="auto", partitions=3, microbatches=microbatches, fused_attention=fused
    )
    data["job"]["model"] = {**SHAPE, "layers": 7, "family": "llama"}
    result = answer_of(data)
    assert score(result) == pytest.approx(trying_all(data), rel=1e-9)
    if result.best is None:
        return
    chosen = result.options[result.best]
    assert max((chosen.memory_gb_per_gpu or {}).values()) <= memory_gb
    request = parse(PlanRequest, data)
    assert simulated(request, chosen).makespan == pytest.approx(chosen.pp_time_ms)
    assert chosen.as_dict()["recompute"] == chosen.recompute


def test_a_stage_repeats_only_where_its_own_memory_asks_for_it() -> None:
    """1F1B holds four microbatches on the first stage and one on the last, as many as each has room for."""
    roomy, tight = best(one(recompute="auto")), best(one(memory_gb=12, recompute="auto"))
    assert set(roomy.recompute) == {"none"}
    assert set(tight.recompute) == {"none", "full"}
    full = best(one(memory_gb=12, recompute="full"))
    assert tight.pp_time_ms < full.pp_time_ms
    assert (
        not answer_of(one(memory_gb=12, recompute="none")).feasible
        or tight.pp_time_ms <= best(one(memory_gb=12, recompute="none")).pp_time_ms
    )


def test_gpus_of_different_memory_choose_for_themselves() -> None:
    data = one([2, 2], recompute="auto")
    data["datacenters"][1]["gpu_type"] = {"peak_tflops": 312, "memory_gb": 11.5, "hbm_gb_s": 2039}
    chosen = best(data)
    by_dc = dict(
        zip((p.dc for p in chosen.partitions), (chosen.recompute[:2], chosen.recompute[2:]), strict=True)
    )
    assert by_dc["dc0"] == ("none", "none")
    assert "full" in by_dc["dc1"]


def test_it_goes_with_shared_optimizer_states() -> None:
    data = one([16], memory_gb=12, recompute="auto", zero=1)
    data["max_dp_cells"] = None
    chosen = best(data)
    without = answer_of({**data, "job": {**data["job"], "zero": 0}})
    assert score(answer_of(data)) >= score(without)
    assert max(chosen.memory_gb_per_gpu.values()) <= 12


def test_layers_by_hand_have_a_choice_of_their_own() -> None:
    """The stage with four of eight layers stores most, and is the first to repeat."""
    chosen = best(one(memory_gb=20, recompute="auto", layers_per_stage=[4, 2, 1, 1]))
    assert chosen.layers_per_stage == (4, 2, 1, 1)
    assert chosen.recompute == ("full", "none", "none", "none")


def test_algorithm_1_has_one_recomputation_for_all() -> None:
    with pytest.raises(InputError, match=r"job\.recompute"):
        parse(PlanRequest, {**one(recompute="auto"), "method": "algorithm1"})


@settings(max_examples=8, deadline=None)
@given(memory_gb=st.tuples(st.floats(6, 26), st.floats(6, 26)), microbatches=st.sampled_from([2, 5, 8]))
def test_on_gpus_of_different_memory_no_choice_by_stage_is_better(
    memory_gb: tuple[float, float], microbatches: int
) -> None:
    """The later stages of 1F1B hold fewer microbatches, so they may repeat less than the first."""
    data = one([2, 2], recompute="auto", partitions=3, microbatches=microbatches, fused_attention=False)
    data["job"]["model"] = {**SHAPE, "layers": 7, "family": "llama"}
    for dc, gb in zip(data["datacenters"], memory_gb, strict=True):
        dc["gpu_type"] = {"peak_tflops": 312, "memory_gb": gb, "hbm_gb_s": 2039}
    least = trying_all(data)
    assert score(answer_of(data)) >= least - 1e-9 * abs(least)
