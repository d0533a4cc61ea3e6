"""Memory in training and serving, against the published formulas and hand counts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.efficiency import PublishedRun, published_runs
from engine.model.kernels import How
from engine.model.layout import Strategies
from engine.model.memory import (
    block_activations,
    blocks_in_flight,
    kv_bytes_per_token,
    stage_parameters,
    training_memory,
)
from engine.model.presets import preset
from engine.model.transformer import Experts, Transformer
from engine.reproduce import rail_only


def gpt(heads: int, per_head: int, seq: int, layers: int = 8) -> Transformer:
    h = heads * per_head
    return Transformer(layers=layers, hidden=h, heads=heads, kv_heads=heads, ffn=4 * h, vocab=1000, seq=seq)


def how(recompute: str, sequence_parallel: bool, fused: bool = False) -> How:
    return How(recompute=recompute, sequence_parallel=sequence_parallel, fused_attention=fused)  # type: ignore[arg-type]


@given(
    heads=st.sampled_from([8, 16, 96]),
    per_head=st.sampled_from([32, 128]),
    s=st.sampled_from([128, 2048]),
    b=st.integers(1, 8),
    t=st.sampled_from([1, 2, 8]),
)
def test_activations_of_a_gpt_block_are_the_published_ones(
    heads: int, per_head: int, s: int, b: int, t: int
) -> None:
    """Korthikanti et al. (2022), table 2."""
    model = gpt(heads, per_head, s)
    a, h = heads, model.hidden
    sbh = s * b * h
    published = {
        ("none", False): sbh * (10 + 24 / t + 5 * a * s / (h * t)),
        ("none", True): sbh / t * (34 + 5 * a * s / h),
        ("selective", False): sbh * (10 + 24 / t),
        ("selective", True): 34 * sbh / t,
        ("full", False): 2 * sbh,
    }
    for (recompute, sequence_parallel), expected in published.items():
        ours = block_activations(model, how(recompute, sequence_parallel), b, t)
        assert ours == pytest.approx(expected)


@given(b=st.integers(1, 4), t=st.sampled_from([1, 2, 4, 8]))
def test_less_is_kept_the_more_is_recomputed(b: int, t: int) -> None:
    for model in (gpt(16, 64, 1024), preset("llama-3-8b")):
        sizes = [block_activations(model, how(r, True), b, t) for r in ("none", "selective", "full")]
        assert sizes == sorted(sizes, reverse=True)
        assert block_activations(model, how("none", True, True), b, t) == sizes[1]


def test_microbatches_in_flight() -> None:
    model = gpt(8, 64, 128, layers=96)
    layouts = Strategies(
        tp=np.ones(4, int),
        pp=np.array([8, 8, 8, 1]),
        dp=np.ones(4, int),
        interleave=np.array([1, 3, 1, 1]),
        micro_batch=np.ones(4, int),
    )
    # 1F1B holds the whole model's worth; interleaving L·(1 + (P−1)/(P·v)); fewer microbatches than stages:
    # those.
    assert list(blocks_in_flight(model, layouts, 64)) == pytest.approx([96, 96 * (1 + 7 / 24), 96, 96])
    assert blocks_in_flight(model, layouts.at(0), 4) == 12 * 4


@given(tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4, 5]), dp=st.sampled_from([1, 2, 4, 8]))
def test_stages_hold_the_model_between_them(tp: int, pp: int, dp: int) -> None:
    model = gpt(8, 64, 128, layers=pp * 2)
    first, last = stage_parameters(model, Strategies(tp=tp, pp=pp, dp=dp, interleave=1, micro_batch=1))
    middle = max(0, pp - 2) * 2 * model.layer_parameters / tp
    tied = model.vocab * model.hidden
    whole = (first + last if pp > 1 else first) + middle
    copies = 1 if pp > 1 else 0  # of the tied matrix, on the last stage
    assert whole * tp == pytest.approx(model.parameters + copies * tied)


def test_16_bytes_a_parameter_and_12_of_them_shared() -> None:
    model = gpt(8, 64, 128)
    layout = Strategies(tp=1, pp=1, dp=4, interleave=1, micro_batch=1)
    alone = training_memory(model, how("selective", True), layout, 4)
    shared = training_memory(model, how("selective", True), layout, 4, shard_optimizer=True)
    parameters = model.parameters  # one stage has the tied matrix once
    assert alone.weights + alone.gradients + alone.optimizer == 16 * parameters
    assert alone.total - shared.total == pytest.approx(9 * parameters)


def test_experts_are_spread_over_replicas() -> None:
    model = Transformer(
        layers=4, hidden=64, heads=4, kv_heads=4, ffn=256, vocab=0, seq=32, moe=Experts(experts=8, every=2)
    )
    one = stage_parameters(model, Strategies(tp=1, pp=1, dp=1, interleave=1, micro_batch=1))[0]
    eight = stage_parameters(model, Strategies(tp=1, pp=1, dp=8, interleave=1, micro_batch=1))[0]
    assert one == model.parameters
    assert one - eight == 2 * 7 * model.expert_parameters


def test_tokens_of_experts_are_kept() -> None:
    dense = gpt(8, 64, 128)
    sparse = replace(dense, moe=Experts(experts=4, top_k=2, every=1))
    layout = Strategies(tp=1, pp=1, dp=4, interleave=1, micro_batch=1)
    one, two = (training_memory(m, how("selective", True), layout, 4).activations for m in (dense, sparse))
    # A second MLP's input and output of 4h each, and two copies of the token there and back: 8 + 4 numbers.
    assert two - one == 8 * 2 * (8 + 4) * 128 * dense.hidden


@pytest.mark.parametrize("run", published_runs(), ids=lambda run: run.name)
def test_the_published_runs_fit_the_gpus_that_they_ran_on(run: PublishedRun) -> None:
    layout = Strategies(
        tp=run.tp, pp=run.pp, dp=run.dp, interleave=run.interleave, micro_batch=run.micro_batch
    )
    model = rail_only.gpt(run.layers, run.hidden, run.heads)
    for how_ in (rail_only.FULL, rail_only.SELECTIVE):
        needed = training_memory(model, how_, layout, run.batch).total
        assert 0.3 * 80 * 2**30 < needed < 80 * 2**30
    # What the paper is about: with nothing recomputed none of them does.
    assert training_memory(model, how("none", False), layout, run.batch).total > 80 * 2**30


def test_cached_bytes_of_llama_3_8b() -> None:
    model = preset("llama-3-8b")
    assert kv_bytes_per_token(model) == 128 * 1024  # 2 · 32 blocks · 1,024 wide · 2 bytes
