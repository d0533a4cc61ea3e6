"""Layers and memory of each stage in the answer of `meridian plan`."""

import itertools
import json

import pytest

from engine.cluster.gpus import gpu
from engine.plan import result as results
from engine.plan.answer import plan
from engine.plan.cell import placed_job, simulated
from engine.plan.held import held_bytes
from tests.engine.test_plan_layouts import request_of

MIXED = ("a100-80g", "v100")


@pytest.mark.parametrize("method", ["algorithm1", "search"])
def test_an_option_has_the_memory_of_each_stage_against_its_own_gpu(method: str) -> None:
    job = {"model": {"layers": 10, "hidden": 512, "heads": 8, "vocab": 32000, "seq": 512}, "partitions": 4}
    policy = "atlas" if method == "algorithm1" else "auto"
    request = request_of({**job, "prefill": {}}, (12, 12), MIXED, method=method, policy=policy)
    answer = plan(request)
    for option in (option for option in answer.options if option.feasible):
        assert option.layers_per_stage == (3, 3, 2, 2)
        assert option.memory_per_stage is not None
        schedule = simulated(request, option).timeline.schedule  # type: ignore[union-attr]
        types = [MIXED[request.index_of[part.dc]] for part in option.partitions for _ in range(part.stages)]
        stages = placed_job(request, option)[1].stages
        held = held_bytes(stages.memory_of([gpu(name) for name in types]), schedule)
        assert [use.total_bytes for use in option.memory_per_stage] == pytest.approx(held, abs=2)
        assert [use.gpu_bytes for use in option.memory_per_stage] == [
            round(gpu(name).memory_bytes) for name in types
        ]
        assert {use.serving_bytes for use in option.memory_per_stage} == {3_000_000_000}
        ends = list(itertools.accumulate((part.stages for part in option.partitions), initial=0))
        assert option.memory_gb_per_gpu == {
            part.dc: max(use.total_bytes for use in option.memory_per_stage[a:b]) / 1e9
            for part, (a, b) in zip(option.partitions, itertools.pairwise(ends), strict=True)
        }
    best = json.loads(json.dumps(answer.as_dict()))["options"][answer.best]
    assert best["layers_per_stage"] == [3, 3, 2, 2]
    assert sum(best["memory_per_stage"][0].values()) > 3_000_000_000


def test_a_job_of_times_has_neither() -> None:
    times = {"forward_ms": 10, "backward_ms": 20, "comm_to_compute": 1, "parameters_per_stage": 1e9}
    answer = plan(request_of({"model": None, "partitions": 4, **times}))
    best = answer.as_dict()["options"][answer.best]  # type: ignore[index]
    assert best["layers_per_stage"] is None
    assert best["memory_per_stage"] is None


def test_a_long_answer_lists_the_memory_of_the_best_and_the_front_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = request_of({"partitions": 4, "tp": 2}, (32, 16), method="algorithm1", policy="1f1b")
    answer = plan(request)
    listed = {i for i, option in enumerate(answer.options) if option.memory_per_stage}
    assert listed > {answer.best, *answer.pareto}
    monkeypatch.setattr(results, "MOST_STAGES_LISTED", 4 * len({answer.best, *answer.pareto}))
    short = answer.as_dict()["options"]
    assert {i for i, one in enumerate(short) if one["memory_per_stage"]} == {answer.best, *answer.pareto}
    assert all(one["layers_per_stage"] == [8, 8, 8, 8] for i, one in enumerate(short) if i in listed)
    monkeypatch.setattr(results, "MOST_STAGES_LISTED", 1)
    only = answer.as_dict()["options"]
    assert [i for i, one in enumerate(only) if one["memory_per_stage"]] == [answer.best]
