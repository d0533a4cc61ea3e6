"""Layers per stage: even, by hand, and by the speed and memory of the GPUs, against enumeration."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.plan import layers as layers_module
from engine.plan.answer import plan
from engine.plan.cell import scenario_of, simulated
from engine.plan.job import cluster_of, job_of
from engine.plan.layers import Counts, Linear, spread
from engine.plan.request import PlanRequest
from engine.plan.search.candidates import candidates
from engine.plan.search.cells import Cells, Spent
from engine.plan.search.numbers import Numbers
from engine.plan.search.problem import problems_of
from engine.plan.search.refine import refine
from tests.engine.test_plan_layouts import request_of, score

CASE = json.loads(
    (Path(__file__).parents[1] / "golden" / "cases" / "plan" / "hetero_a100_v100.json").read_text()
)
MODEL = {"layers": 7, "hidden": 1024, "heads": 8, "vocab": 32000, "seq": 1024}
MIXED = ("a100-80g", "v100")
MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 1024,
}


def compositions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each of the stages at least one layer."""
    for cut in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cut, layers)))


class Stages:
    """Random stages: seconds, bytes of a layer with and without a microbatch, and bytes of the GPUs."""

    def __init__(self, draw: Any, layers: int, room: float = 1.0) -> None:
        self.count = draw(st.integers(1, min(4, layers)))
        self.microbatches = draw(st.integers(1, 6))
        speeds, memories = (st.sampled_from([1.0, 2.5, 3.0]), st.sampled_from([8.0, 20.0, 1000.0]))
        self.times = Linear(
            fixed=np.array([draw(st.sampled_from([0.0, 0.0, 2.0, 9.0])) for _ in range(self.count)]),
            each=np.array([draw(speeds) for _ in range(self.count)]),
        )
        self.bytes = room * np.array([draw(memories) for _ in range(self.count)])
        self.own = np.array([draw(st.sampled_from([0.0, 5.0])) for _ in range(self.count)])

    def most_with(self, held: int) -> Counts:
        """A layer takes 1 byte, and half a byte for each microbatch."""
        return np.maximum((self.bytes - self.own) // (1 + held / 2), 0).astype(np.int64)

    def held(self, counts: tuple[int, ...]) -> int:
        """Microbatches that fit every stage, at most one for each stage."""
        most = [k for k in range(1, self.most_held + 1) if np.all(self.most_with(k) >= counts)]
        return max(most, default=0)

    @property
    def most_held(self) -> int:
        return min(self.microbatches, self.count)

    def seconds(self, counts: tuple[int, ...]) -> float:
        """The iteration of equal microbatches that pass one after the other; infinite if it does not fit."""
        seconds, held = self.times.at(np.array(counts)), self.held(counts)
        if held == 0:
            return float("inf")
        in_turn = seconds.sum() + (self.microbatches - 1) * seconds.max()
        return float(max(in_turn, self.microbatches / held * seconds.sum()))

    def spread(self, layers: int) -> tuple[int, ...] | None:
        most = np.array([self.most_with(k) for k in range(1, self.most_held + 1)])
        return spread(layers, self.microbatches, self.times, most)

    def best(self, layers: int) -> float:
        counts = self.spread(layers)
        return float("inf") if counts is None else self.seconds(counts)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), layers=st.integers(1, 9))
def test_the_spread_is_the_best_of_all(data: st.DataObject, layers: int) -> None:
    stages = Stages(data.draw, layers)
    counts = stages.spread(layers)
    least = min(stages.seconds(each) for each in compositions(layers, stages.count))
    if counts is None:
        assert least == float("inf")
        return
    assert sum(counts) == layers
    assert min(counts) >= 1
    assert stages.seconds(counts) == pytest.approx(least, rel=1e-9)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), layers=st.integers(1, 9), room=st.sampled_from([1.0, 1.3, 2.0]))
def test_more_memory_is_never_worse_and_more_layers_never_take_less(
    data: st.DataObject, layers: int, room: float
) -> None:
    stages = Stages(data.draw, layers)
    before = stages.best(layers)
    assert before <= stages.best(layers + 1) * (1 + 1e-9)
    stages.bytes = stages.bytes * room
    assert stages.best(layers) <= before * (1 + 1e-9)


def test_few_times_of_the_slowest_stage_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many microbatches only a little more than the least time can be best; here of 40 stages."""
    sizes = []

    def counted(kinds: Any, layers: int, microbatches: int, held: Counts, slowest: Any, rows: slice) -> Any:
        sizes.append(slowest.size)
        return seconds(kinds, layers, microbatches, held, slowest, rows)

    seconds = layers_module._Kinds.seconds
    monkeypatch.setattr(layers_module._Kinds, "seconds", counted)
    times = Linear(fixed=np.array([0.5, *[0.1] * 38, 2.0]), each=np.array([1.0] * 20 + [2.3] * 20))
    assert spread(80, 60, times, np.full((40, 40), 100)) is not None
    assert sum(sizes) < 10


def test_equal_gpus_have_even_layers_and_slow_ones_at_the_least_one() -> None:
    def counts(layers: int, each: list[float], fixed: list[float]) -> tuple[int, ...] | None:
        times = Linear(fixed=np.array(fixed), each=np.array(each))
        return spread(layers, 8, times, np.full((4, len(each)), 100))

    assert counts(10, [1.0] * 4, [0.0] * 4) == (3, 3, 2, 2)
    assert counts(10, [1.0] * 4, [0.0, 0.0, 0.0, 2.0]) == (3, 3, 3, 1)
    assert counts(6, [1.0, 1.0, 50.0], [0.0] * 3) == (3, 2, 1)


def test_every_order_of_types_has_its_best_spread() -> None:
    """Of a real job: 32 orders of two types over five stages, each against all 35 spreads of 8 layers."""
    job = {"model": {**MODEL, "layers": 8}, "partitions": 5, "layers_per_stage": "balanced"}
    request = request_of(job, (6, 6), MIXED)
    cluster = cluster_of(request)
    balance = job_of(request, cluster).balance
    assert balance is not None
    types = [dc.gpu for dc in cluster.datacenters]
    orders = np.array(list(itertools.product((0, 1), repeat=5)))
    layers = balance.layers_at(orders, types)
    for order, counts in zip(orders.tolist(), layers.tolist(), strict=True):
        gpus = [types[i] for i in order]
        assert balance.layers_on(gpus) == tuple(counts)

        def iteration_s(counts: Any, gpus: Any = gpus) -> float:
            kinds = ("forward_s", "backward_s", "recompute_s")
            own = np.sum([balance.figures(gpus, kind).at(np.array(counts)) for kind in kinds], axis=0)
            return float(own.sum() + 7 * own.max())

        least = min(map(iteration_s, compositions(8, 5)))
        assert iteration_s(counts) == pytest.approx(least, rel=1e-9)


def planned(layers: Any, job: dict[str, Any], **more: Any) -> Any:
    return plan(request_of({**job, "layers_per_stage": layers}, (6, 6), MIXED, **more))


@pytest.mark.parametrize("method", ["algorithm1", "search"])
@pytest.mark.parametrize("microbatches", [2, 8])
def test_a_balanced_plan_lies_between_the_best_by_hand_and_even(method: str, microbatches: int) -> None:
    job = {"model": MODEL, "partitions": 3, "microbatches": microbatches}
    more = {"method": method, "policy": "1f1b", "max_dp_cells": 1, "order": ["dc0", "dc1"]}
    balanced, even = planned("balanced", job, **more), planned("even", job, **more)
    by_hand = {counts: score(planned(list(counts), job, **more)) for counts in compositions(7, 3)}
    assert max(by_hand.values()) >= score(balanced) >= score(even)
    best = balanced.options[balanced.best]
    assert best.layers_per_stage != (3, 2, 2)
    if method == "algorithm1":
        assert by_hand[best.layers_per_stage] == pytest.approx(score(balanced), rel=1e-12)


def test_more_than_a_quarter_of_the_iteration_goes_where_a100s_take_layers_of_v100s() -> None:
    """The best of all 245,157 ways has 348.2 ms; even layers take 506.6."""
    balanced = plan(parse(PlanRequest, {**CASE, "job": {**CASE["job"], "layers_per_stage": "balanced"}}))
    even = plan(parse(PlanRequest, CASE))
    assert balanced.options[0].layers_per_stage == (5, 5, 5, 5, 1, 1, 1, 1)
    assert balanced.options[0].pp_time_ms == pytest.approx(0.687 * even.options[0].pp_time_ms, rel=1e-2)


@settings(max_examples=15, deadline=None)
@given(
    layers=st.integers(4, 12),
    microbatches=st.sampled_from([1, 4, 9]),
    gpus=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    types=st.sampled_from([MIXED, ("v100", "a100-40g"), ("t4", "v100")]),
    objective=st.sampled_from(["throughput", "cost"]),
)
def test_balanced_is_never_worse_than_even(
    layers: int, microbatches: int, gpus: tuple[int, int], types: tuple[str, str], objective: Any
) -> None:
    scores = []
    for how in ("balanced", "even"):
        job = {"model": {**MODEL, "layers": layers}, "partitions": 4, "microbatches": microbatches}
        request = request_of({**job, "layers_per_stage": how}, gpus, types, objective=objective)
        answer = plan(request)
        scores.append(score(answer))
        for option in answer.options if how == "balanced" else ():
            if option.feasible:
                assert simulated(request, option).makespan == option.pp_time_ms
    assert scores[0] >= scores[1] - 1e-9 * abs(scores[1])


@settings(max_examples=10, deadline=None)
@given(
    policy=st.sampled_from(["gpipe", "1f1b", "varuna", "atlas"]),
    microbatches=st.sampled_from([1, 3, 8]),
    layers=st.sampled_from([4, 7, 24]),
    types=st.sampled_from([MIXED, ("t4", "v100")]),
)
def test_no_balanced_cell_is_faster_than_its_bound(
    policy: str, microbatches: int, layers: int, types: tuple[str, str]
) -> None:
    job = {
        "model": {**MODEL, "layers": layers},
        "partitions": 4,
        "microbatches": microbatches,
        "layers_per_stage": "balanced",
    }
    request = request_of(job, (6, 6), types, policy=policy)
    for problem in problems_of(request)[:2]:
        cells, numbers = Cells(problem, Spent()), Numbers(problem)
        for number in numbers.all:
            listed = candidates(problem, numbers.capacities(number))
            for placed, least_ms in zip(listed.placed, listed.bounds.tried, strict=True):
                for cell in cells.timed((*placed, number * problem.job.cell_pipelines)):
                    assert isinstance(cell, Infeasible) or cell.makespan_ms >= least_ms * (1 - 1e-9)
            if len(listed):
                most = listed.best_scores(number * problem.job.cell_pipelines).max()
                assert numbers.potential(number) >= most * (1 - 1e-9)


def test_layers_go_where_there_is_memory_for_them() -> None:
    """Half of the layers do not fit the second GPU's 9 GB; it takes fewer, and the first one more."""
    model = {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 32000, "seq": 512}
    job = {"model": model, "partitions": 2, "microbatches": 4}
    small = {"peak_tflops": 312, "memory_gb": 9, "hbm_gb_s": 2039}
    more = {"method": "algorithm1", "policy": "1f1b", "max_dp_cells": 1}

    def answer(how: str) -> Any:
        document = request_of({**job, "layers_per_stage": how}, (1, 1), MIXED, **more).model_dump()
        document["datacenters"][1]["gpu_type"] = small
        document["job"] = {name: value for name, value in document["job"].items() if value is not None}
        document["order"] = ["dc0", "dc1"]
        return plan(parse(PlanRequest, document))

    even, balanced = answer("even").options[0], answer("balanced").options[0]
    assert not even.feasible
    assert "stage 1 needs " in even.reason
    assert even.reason.endswith("has 9.0")
    assert balanced.feasible
    assert balanced.layers_per_stage[0] > balanced.layers_per_stage[1]
    assert balanced.memory_per_stage[1].total_bytes <= 9e9
    small["memory_gb"] = 3
    assert answer("balanced").options[0].reason.endswith("no other spread of the layers fits either")


def test_the_scenario_of_an_option_has_the_times_of_its_layers() -> None:
    job = {"model": MODEL, "partitions": 3, "mfu": 0.5, "recompute": False}
    request = request_of({**job, "layers_per_stage": [1, 4, 2]}, (6, 6), ("a100-80g",))
    answer = plan(request)
    best = answer.options[answer.best]  # type: ignore[index]
    assert best.layers_per_stage == (1, 4, 2)
    forward = scenario_of(request, best).times.forward
    assert isinstance(forward, list)
    assert forward[1] == pytest.approx(4 * forward[0])
    assert forward[2] > 2 * forward[0], "with the output matrix"
    cluster = cluster_of(request)
    even, by_hand = job_of(request_of(job, (6, 6), ("a100-80g",)), cluster), job_of(request, cluster)
    assert by_hand.forward_s == pytest.approx(4 / 3 * even.forward_s), "the fullest stage sets the pace"


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"layers_per_stage": [4, 4]}, "job.layers_per_stage: [4, 4]: one number per stage: partitions is 3"),
        (
            {"layers_per_stage": [3, 3, 2]},
            "job.layers_per_stage: [3, 3, 2]: must add up to the model's 7 layers",
        ),
        ({"layers_per_stage": [7, 0, 0]}, "job.layers_per_stage[1]: 0"),
        ({"layers_per_stage": "uneven"}, "job.layers_per_stage: 'uneven': must be 'even' or 'balanced'"),
        (
            {"layers_per_stage": [3, 2, 2], "partitions": [3, 4]},
            "job.layers_per_stage: [3, 2, 2]: one number",
        ),
        (
            {
                "layers_per_stage": "balanced",
                "measured": {
                    "device": "cuda",
                    "rows": [{"stage": 0, "tokens": 1024, "forward_ms": 1, "backward_ms": 2}],
                },
            },
            "job.layers_per_stage: 'balanced': even or numbers if stages were measured",
        ),
        (
            {"layers_per_stage": "balanced", "recompute": "auto"},
            "job.recompute: 'auto': none, selective or full with balanced layers; or give even layers",
        ),
    ],
)
def test_bad_layers_are_refused_by_name(job: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        plan(request_of({"model": MODEL, "partitions": 3, **job}))
    assert message in str(error.value)


@pytest.mark.parametrize("model", [{**MODEL, "layers": 1002}, {**MOE, "decoder_sparse_step": 2}])
def test_layers_that_are_not_alike_or_too_many_stay_even(model: dict[str, Any]) -> None:
    answers = [planned(how, {"model": model, "partitions": 3}) for how in ("balanced", "even")]
    assert answers[0].as_dict()["options"] == answers[1].as_dict()["options"]


def test_a_chunk_has_at_least_one_layer() -> None:
    """With 6 of 7 layers on the A100, the V100's stage cannot be cut in two; even layers can."""
    job = {"model": MODEL, "partitions": 2, "microbatches": 4}
    more = {"method": "algorithm1", "max_dp_cells": 1, "order": ["dc0", "dc1"]}
    by_hand = planned([6, 1], job, **more, policy="interleaved").options[0]
    assert by_hand.reason == "stage 1 has 1 of the layers; Interleaved 1F1B cuts each stage into 2"
    request = request_of({**job, "layers_per_stage": [6, 1]}, (1, 1), MIXED)
    answer = plan(request)
    refined = refine(request, answer, seconds=0.3)
    for option in (option for result in (answer, refined) for option in result.options):
        assert simulated(request, option).timeline.schedule.chunks == 1  # type: ignore[union-attr]


def test_layers_need_a_model() -> None:
    times = {"forward_ms": 10, "backward_ms": 20, "comm_to_compute": 1, "parameters_per_stage": 1e9}
    with pytest.raises(InputError, match=r"^job\.layers_per_stage: .*applies to a model"):
        request_of({"model": None, "partitions": 2, **times, "layers_per_stage": "balanced"})
