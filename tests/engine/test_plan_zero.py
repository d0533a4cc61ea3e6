"""ZeRO-1 over the replicas of a stage: the optimizer's state is shared, the traffic is the same."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.model.kernels import How
from engine.model.layout import Strategies
from engine.model.memory import MIXED, OF_A_RUN, stage_memory, training_memory
from engine.model.presets import PRESETS
from engine.plan.request import PlanRequest
from engine.plan.result import Option, PlanResult
from engine.plan.search.candidates import candidates
from engine.plan.search.cells import Cells, Spent
from engine.plan.search.numbers import Numbers
from engine.plan.search.problem import problems_of
from tests.engine.test_plan_search import answer_of, document, score

SHAPE = {"layers": 8, "hidden": 4096, "heads": 32, "vocab": 32_000, "seq": 2048, "family": "llama"}
JOB = {"partitions": 2, "microbatches": 4, "model": SHAPE, "recompute": False}


def asked(gpus: list[int], **more: Any) -> dict[str, Any]:
    joined = [(a, a + 1, 5.0, 100.0) for a in range(len(gpus) - 1)]
    data = document(gpus, joined, dict(JOB), policy="1f1b", **more)
    return data


def of(data: dict[str, Any], zero: int, **job: Any) -> dict[str, Any]:
    return {**data, "job": {**data["job"], **job, "zero": zero}}


@pytest.mark.parametrize("method", ["search", "algorithm1"])
def test_each_of_n_replicas_holds_an_nth_of_the_optimizer_and_nothing_else_changes(method: str) -> None:
    """The moments, 8 of 18 bytes a parameter, and of 16 of an embedding: by hand, as a run shares them."""
    data = asked([16], method=method)
    blocks = 4 * (4 * 4096**2 + 3 * 4096 * 16_384 + 2 * 4096)
    first, last = 8 * (blocks + 32_000 * 4096), 8 * (blocks + 32_000 * 4096 + 4096)
    for whole, shared in zip(answer_of(of(data, 0)).options, answer_of(of(data, 1)).options, strict=True):
        assert (whole.zero, shared.zero) == (0, 1)
        assert (whole.pipelines, whole.policy) == (shared.pipelines, shared.policy)
        for name in ("pp_time_ms", "allreduce_ms", "iteration_ms", "egress_gb", "cost_per_iteration"):
            assert getattr(whole, name) == pytest.approx(getattr(shared, name))
        saved = 1e9 * (whole.memory_gb_per_gpu["dc0"] - shared.memory_gb_per_gpu["dc0"])
        share = 1 - 1 / whole.pipelines
        assert min(first, last) * share <= saved * (1 + 1e-9) <= max(first, last) * share * (1 + 1e-6)
    assert "zero" not in whole.as_dict()


@given(replicas=st.integers(1, 64), tp=st.sampled_from([1, 2, 8]))
def test_the_count_is_that_of_mixed_precision_elsewhere(replicas: int, tp: int) -> None:
    """Two bytes of weight, two of gradient, 12 / N of the optimizer: as `training_memory` has it."""
    model, how = PRESETS["llama-3-8b"], How(recompute="full", sequence_parallel=True, fused_attention=True)
    one = stage_memory(
        model, how, tp=tp, micro_batch=1, blocks=32, is_first=True, is_last=True, stored=MIXED
    ).sharded_over(replicas)
    layout = Strategies(tp=tp, pp=1, dp=replicas, interleave=1, micro_batch=1)
    whole = training_memory(model, how, layout, replicas, shard_optimizer=True)
    assert one.state_bytes == pytest.approx(float(whole.weights + whole.gradients + whole.optimizer))


def test_an_embedding_is_computed_with_its_fp32_weight() -> None:
    model, how = PRESETS["llama-3-8b"], How(recompute="full", sequence_parallel=True, fused_attention=True)
    first = stage_memory(
        model, how, tp=1, micro_batch=1, blocks=0, is_first=True, is_last=False, stored=OF_A_RUN
    )
    assert first.state_bytes == 16 * model.embedding_parameters
    assert first.sharded_over(10**9).state_bytes == pytest.approx(8 * model.embedding_parameters)


def test_a_plan_that_does_not_fit_alone_fits_with_enough_replicas() -> None:
    """10 GB of moments on each of 20 GB: one pipeline does not fit, and more do."""
    data = asked([16], method="algorithm1", max_dp_cells=8)
    for dc in data["datacenters"]:
        dc["gpu_type"] = {"peak_tflops": 312, "memory_gb": 20, "hbm_gb_s": 2039}
    whole, shared = answer_of(of(data, 0)), answer_of(of(data, 1))
    assert not any(option.feasible for option in whole.options)
    fits = [option.feasible for option in shared.options]
    assert fits == sorted(fits)  # more replicas never need more memory each
    assert fits[0] is False
    assert fits[-1] is True
    answer = answer_of({**of(data, 1), "method": "search"})
    assert answer.best is not None
    assert answer.options[answer.best].pipelines == 8


@settings(max_examples=10, deadline=None)
@given(
    gpus=st.lists(st.integers(0, 12), min_size=1, max_size=2),
    memory_gb=st.sampled_from([16, 20, 24, 30, 40]),
    objective=st.sampled_from(["throughput", "cost", "cost_per_token"]),
)
def test_the_search_is_never_worse_with_it_than_without_nor_than_algorithm_1(
    gpus: list[int], memory_gb: float, objective: str
) -> None:
    """The bounds take the most replicas that there can be; each cell is timed with its own."""
    data = asked(gpus, max_dp_cells=6, objective=objective)
    for dc in data["datacenters"]:
        dc |= {"gpu_type": {"peak_tflops": 312, "memory_gb": memory_gb, "hbm_gb_s": 2039}, "intra_gbps": 1e9}
    shared = answer_of(of(data, 1))
    for other in (of(data, 0), {**of(data, 1), "method": "algorithm1"}):
        theirs = score(answer_of(other))
        assert score(shared) >= theirs - 1e-6 * abs(theirs)
    for option in shared.options:
        if option.feasible:
            assert max((option.memory_gb_per_gpu or {}).values()) <= memory_gb


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"zero": 2}, "job.zero"),
        ({"zero": 1, "model": None, "forward_ms": 1, "backward_ms": 2, "comm_to_compute": 1}, "job.zero"),
    ],
)
def test_only_stage_1_and_only_of_a_model(job: dict[str, Any], field: str) -> None:
    data = {**asked([4]), "job": {"partitions": 2, "microbatches": 2, "model": SHAPE, **job}}
    with pytest.raises(InputError) as error:
        parse(PlanRequest, data)
    assert error.value.field == field


def test_options_say_it() -> None:
    assert Option(dp_cells=1, pipelines=1, policy="1f1b", zero=1).as_dict()["zero"] == 1


def mixed_document(layers: Any, memory_gb: float, recompute: str, **more: Any) -> dict[str, Any]:
    """Six layers in two stages on a fast GPU and one of half its speed and memory."""
    data = asked([4, 4], order=["dc0", "dc1"], **more)
    for dc, share in zip(data["datacenters"], (1.0, 0.5), strict=True):
        gpu = {"peak_tflops": 312 * share, "memory_gb": memory_gb * share, "hbm_gb_s": 2039}
        dc |= {"gpu_type": gpu, "intra_gbps": 1e9}  # algorithm 1 counts nothing inside a data centre
    job = {"model": {**SHAPE, "layers": 6}, "recompute": recompute, "layers_per_stage": layers}
    return of(data, 1, **job)


def mixed(layers: Any, memory_gb: float, recompute: str, **more: Any) -> PlanResult:
    return answer_of(mixed_document(layers, memory_gb, recompute, **more))


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("memory_gb", [16, 24])
def test_balanced_layers_are_those_of_their_own_number_of_replicas(memory_gb: float, recompute: str) -> None:
    """Against all five ways to give each of two stages its layers, for each number of pipelines."""
    by_hand = [mixed([n, 6 - n], memory_gb, recompute, method="algorithm1") for n in range(1, 6)]
    balanced = mixed("balanced", memory_gb, recompute, method="algorithm1")
    for option, *each in zip(balanced.options, *(answer.options for answer in by_hand), strict=True):
        assert option.feasible == any(one.feasible for one in each)
        if option.feasible:
            same = next(one for one in each if one.layers_per_stage == option.layers_per_stage)
            assert option.memory_per_stage == same.memory_per_stage
            assert option.pp_time_ms == same.pp_time_ms
            assert all(use.total_bytes <= use.gpu_bytes for use in option.memory_per_stage or ())
    searched, even = (mixed(layers, memory_gb, recompute) for layers in ("balanced", "even"))
    best = max(score(mixed([n, 6 - n], memory_gb, recompute)) for n in range(1, 6))
    assert best >= score(searched) >= max(score(even), score(balanced)) * (1 - 1e-6)


@settings(max_examples=8, deadline=None)
@given(
    memory_gb=st.floats(12, 40),
    policy=st.sampled_from(["gpipe", "1f1b", "varuna", "atlas"]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_no_cell_with_balanced_layers_is_faster_than_its_bound(
    memory_gb: float, policy: str, recompute: str
) -> None:
    data = mixed_document("balanced", memory_gb, recompute)
    data["policy"] = policy
    for problem in problems_of(parse(PlanRequest, data))[:2]:
        cells, numbers = Cells(problem, Spent()), Numbers(problem)
        for number in numbers.all:
            pipelines = number * problem.job.cell_pipelines
            listed = candidates(problem.of_pipelines(pipelines), numbers.capacities(number))
            for placed, least_ms in zip(listed.placed, listed.bounds.tried, strict=True):
                for cell in cells.timed((*placed, pipelines)):
                    assert isinstance(cell, Infeasible) or cell.makespan_ms >= least_ms * (1 - 1e-9)
            if len(listed):
                assert numbers.potential(number) >= listed.best_scores(pipelines).max() * (1 - 1e-9)
