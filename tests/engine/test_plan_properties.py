"""Properties of plans of a model: more memory, more layers, other units."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.test_plan_search import answer_of, clusters, score

LAYER = {"hidden": 4096, "heads": 32, "seq": 2048, "family": "llama"}
SETTINGS = settings(max_examples=15, deadline=None)
JOBS = st.fixed_dictionaries(
    {
        "partitions": st.just(4),
        "microbatches": st.sampled_from([1, 3, 6]),
        "recompute": st.sampled_from(["none", "full", "auto"]),
        "zero": st.sampled_from([0, 1]),
    }
)
POLICIES = st.sampled_from(["1f1b", "gpipe"])


def asked(data: dict[str, Any], job: dict[str, Any], memory_gb: float, **model: Any) -> dict[str, Any]:
    """A plan of these data centres, whose GPUs have so much memory."""
    data = copy.deepcopy(data)
    for dc in data["datacenters"]:
        dc["gpu_type"] = {"peak_tflops": 312, "memory_gb": memory_gb, "hbm_gb_s": 2039}
    return {**data, "job": {**job, "model": {**LAYER, "layers": 8, **model}}, "max_dp_cells": 2}


@SETTINGS
@given(
    data=clusters(most=3, gpus_each=12),
    job=JOBS,
    policy=POLICIES,
    memory_gb=st.floats(8, 40),
    more=st.floats(1, 2),
    vocab=st.sampled_from([0, 32_000]),
)
def test_more_memory_never_makes_a_plan_worse(
    data: dict[str, Any], job: dict[str, Any], policy: str, memory_gb: float, more: float, vocab: int
) -> None:
    """With policies of a fixed order: a list schedule may get longer with more room."""
    data["policy"] = policy
    less, roomier = (answer_of(asked(data, job, gb, vocab=vocab)) for gb in (memory_gb, more * memory_gb))
    assert score(roomier) >= score(less) - 1e-9 * abs(score(less))


@SETTINGS
@given(
    data=clusters(most=3, gpus_each=12),
    job=JOBS,
    policy=POLICIES,
    layers=st.integers(4, 12),
    more=st.integers(1, 4),
)
def test_more_layers_never_take_less_time(
    data: dict[str, Any], job: dict[str, Any], policy: str, layers: int, more: int
) -> None:
    data["policy"] = policy
    fewer, deeper = (answer_of(asked(data, job, 40, layers=n)) for n in (layers, layers + more))
    assert score(deeper) <= score(fewer) + 1e-9 * abs(score(fewer))


@SETTINGS
@given(data=clusters(most=3, gpus_each=12), recompute=st.sampled_from(["none", "full", "auto"]))
def test_bytes_and_bandwidths_times_two_take_the_same_time(data: dict[str, Any], recompute: str) -> None:
    """Numbers of four bytes at the FLOP/s of two, by `mfu`: an A100 peaks at 19.5 and 312 TFLOP/s."""
    data |= {"allreduce": False, "policy": "varuna"}  # gradients have two bytes whatever the numbers have
    model = {**LAYER, "layers": 4}
    job = {"partitions": 4, "microbatches": 3, "mfu": 0.02, "recompute": recompute, "model": model}
    wide = copy.deepcopy(data)
    for link in wide["links"]:
        link["bandwidth_gbps"] *= 2
    for dc in wide["datacenters"]:
        dc["intra_gbps"] *= 2
    wide["job"] = {**job, "dtype_bytes": 4, "mfu": 0.02 * 312 / 19.5}
    plain, scaled = answer_of({**data, "job": job}), answer_of(wide)
    assert (plain.best is None) == (scaled.best is None)
    if plain.best is None or scaled.best is None:
        return
    one, two = plain.options[plain.best], scaled.options[scaled.best]
    assert (one.partitions, one.pipelines, one.policy) == (two.partitions, two.pipelines, two.policy)
    assert two.iteration_ms == pytest.approx(one.iteration_ms, rel=1e-9)
    assert two.egress_gb == pytest.approx(2 * one.egress_gb)
