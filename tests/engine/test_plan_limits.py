"""Limits by stage in plans: each stage holds what its own GPU has room for."""

import copy
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cluster.gpus import gpu
from engine.errors import Infeasible
from engine.inputs import parse
from engine.model.memory import StageMemory
from engine.plan.cell import scenario_of
from engine.plan.request import PlanRequest
from engine.plan.stages import Stages
from engine.simulate import simulate
from tests.engine.test_plan_properties import asked
from tests.engine.test_plan_search import answer_of, clusters, score

GPU = gpu("a100-80g")
BYTES = st.floats(0.1e9, 20e9)


@st.composite
def memories(draw: st.DrawFn) -> StageMemory:
    full = draw(st.sampled_from([0.0, 1.0])) * draw(BYTES)
    return StageMemory(state_bytes=draw(BYTES), stored_bytes=draw(BYTES), full_bytes=full)


@given(memory=st.lists(memories(), min_size=1, max_size=6), microbatches=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_every_stage_fits_with_its_limits_and_none_could_hold_more(
    memory: list[StageMemory], microbatches: int
) -> None:
    """Against counting up, stage by stage."""
    count = len(memory)
    room = Stages(profiles_on=lambda _: (), memory=tuple(memory)).room((GPU,) * count, microbatches)
    alone = [_most(one, 1, microbatches) for one in memory]
    if min(alone) < 1:
        assert isinstance(room, Infeasible)
        return
    assert not isinstance(room, Infeasible)
    held = room.in_flight or (microbatches,) * count
    full = room.full or (microbatches,) * count
    least = min(alone)
    # With one limit for all stages, the least, every stage has so many with all their activations.
    fewest = min(least, *(_most_full(one, least) for one in memory))
    before_it = itertools.accumulate(alone, min)
    for one, most, most_full, before in zip(memory, held, full, before_it, strict=True):
        assert one.total_bytes(most, min(most, most_full)) <= GPU.memory_bytes * (1 + 1e-12)
        assert most == min(before, _most(one, fewest, microbatches))
        assert most_full >= fewest
        assert most >= least


def _most(memory: StageMemory, full: int, microbatches: int) -> int:
    fits = (n for n in range(microbatches + 1) if memory.total_bytes(n, full) <= GPU.memory_bytes)
    return max(fits, default=-1)


def _most_full(memory: StageMemory, held: int) -> int:
    return max(n for n in range(held + 1) if memory.total_bytes(held, n) <= GPU.memory_bytes)


JOBS = st.fixed_dictionaries(
    {
        "partitions": st.just(4),
        "microbatches": st.sampled_from([3, 6, 12]),
        "recompute": st.sampled_from(["none", "full"]),
    }
)


@settings(max_examples=6, deadline=None)
@given(
    data=clusters(most=3, gpus_each=12),
    job=JOBS,
    memory_gb=st.floats(8, 40),
    more=st.floats(1, 2),
    which=st.integers(0, 2),
)
def test_more_room_in_one_data_centre_never_makes_a_plan_worse(
    data: dict[str, Any], job: dict[str, Any], memory_gb: float, more: float, which: int
) -> None:
    """With a policy of a fixed order: a list schedule may get longer with more room."""
    less = asked({**data, "policy": "1f1b"}, job, memory_gb, vocab=32_000)
    roomier = copy.deepcopy(less)
    roomier["datacenters"][which % len(less["datacenters"])]["gpu_type"]["memory_gb"] *= more
    before, after = answer_of(less), answer_of(roomier)
    assert score(after) >= score(before) - 1e-9 * abs(score(before))


@settings(max_examples=6, deadline=None)
@given(
    data=clusters(most=2, gpus_each=12),
    job=JOBS,
    policy=st.sampled_from(["varuna", "atlas", "1f1b"]),
    memory_gb=st.floats(8, 24),
    more=st.floats(1, 3),
)
def test_limits_by_stage_never_take_longer_than_one_limit_for_all(
    data: dict[str, Any], job: dict[str, Any], policy: str, memory_gb: float, more: float
) -> None:
    document = asked({**data, "policy": policy}, job, memory_gb, vocab=32_000)
    document["datacenters"][0]["gpu_type"]["memory_gb"] *= more
    request = parse(PlanRequest, document)
    for option in answer_of(document).options:
        if option.pp_time_ms is None:
            continue
        scenario = scenario_of(request, option)
        least = int(scenario.limits("memory_limit").min())
        one = {"memory_limit": least, "full_limit": None, "contention": "best", "policy": option.policy}
        alone = simulate(scenario.model_copy(update=one))
        assert alone.makespan is None or option.pp_time_ms <= alone.makespan * (1 + 1e-9)


@pytest.mark.parametrize("policy", ["1f1b", "varuna"])
def test_small_gpus_at_the_end_of_the_pipeline_do_not_limit_the_first(policy: str) -> None:
    """Stage s of 1F1B holds P − s microbatches, so the last stages may have the least room."""
    model = {"hidden": 4096, "heads": 32, "seq": 2048, "family": "llama", "layers": 8}

    def best_ms(memory_gb: tuple[float, float]) -> float:
        types = [{"peak_tflops": 312, "memory_gb": gb, "hbm_gb_s": 2039} for gb in memory_gb]
        names = ("a", "b")
        document = {
            "datacenters": [
                {"name": name, "gpus": 2, "gpu_type": each, "price_per_gpu_hour": 1}
                for name, each in zip(names, types, strict=True)
            ],
            "links": [{"between": ["a", "b"], "latency_ms": 5, "bandwidth_gbps": 5}],
            "job": {"partitions": 4, "microbatches": 12, "recompute": "none", "model": model},
            "policy": policy,
        }
        answer = answer_of(document)
        assert answer.best is not None
        option = answer.options[answer.best]
        assert all(use.total_bytes <= use.gpu_bytes for use in option.memory_per_stage or ())
        assert option.pp_time_ms is not None
        return option.pp_time_ms

    # 12 GB hold one microbatch on the last stage, which has the logits, and two on the third: with one limit
    # for all stages one microbatch would be under way at a time. 13 GB hold what 1F1B needs there.
    assert best_ms((40, 12)) < 0.6 * best_ms((12, 12))
    if policy == "1f1b":
        assert best_ms((40, 13)) == best_ms((40, 40)) < best_ms((13, 13))
