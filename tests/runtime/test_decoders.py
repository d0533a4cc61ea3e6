"""A pipelined step of a model of transformers is the step of that model, unsplit, with its own AdamW."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.model_document import CUT_FAMILIES, ConfigModel
from engine.nn.hugging_face import Slice, decoder_of
from engine.nn.model import build_layer
from tests.runtime.cells import Cell
from tests.runtime.decoders import CONFIGS, VARIANTS, model_of
from tests.runtime.jobs import Run, document
from tests.runtime.machines import Machines

LR = 1e-3
# Of all policies: recomputation, backward passes that are split, chunks, and both ends on one rank.
POLICIES: list[dict[str, Any]] = [
    {"policy": "zb-v", "recompute": False},
    {"policy": "atlas", "recompute": True},
    {"policy": "zb-h1", "recompute": False},
    {"policy": "interleaved", "recompute": True},
]
CASES = [(family, POLICIES[i % len(POLICIES)]) for i, family in enumerate(CONFIGS)]
IN_FP32 = ("gemma2", "gemma3_text")  # whose norms compute in fp32, whatever they are given


def job(family: str, **changes: Any) -> TrainJob:
    return parse(TrainJob, document(model=model_of(family), pipelines=1, **changes))


def unsplit(of: TrainJob, layers: dict[int, nn.Module]) -> Any:
    """transformers' own model with the weights of our layers, none of them missing or left over."""
    from transformers import AutoConfig, AutoModelForCausalLM

    assert isinstance(of.model, ConfigModel)
    config = AutoConfig.for_model(**{n: value for n, value in of.model.config.items() if n != "auto_map"})
    capped = getattr(config, "attn_logit_softcapping", None)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager" if capped else "sdpa").eval()
    weights = {
        layer.name_in_model(name): weight.detach()
        for layer in layers.values()
        if isinstance(layer, Slice)
        for name, weight in layer.named_parameters()
    }
    missing, surplus = model.load_state_dict(weights, strict=False)
    assert not missing
    assert not surplus
    return model.to({"fp32": torch.float32, "fp64": torch.float64}[of.device.dtype])


def far(layer: nn.Module, weights: dict[str, Any], tied: Any) -> float:
    """The largest difference of a gradient, by the largest entry of the layer's gradients.

    Not by its own: the gradients of biases of keys, which no softmax notices, are rounding alone.
    """
    assert isinstance(layer, Slice)
    pairs = [(w.grad, weights.get(layer.name_in_model(n), tied).grad) for n, w in layer.named_parameters()]
    largest = max(float(theirs.abs().max()) for _, theirs in pairs)
    assert largest > 0
    return max(float((ours - theirs).abs().max()) for ours, theirs in pairs) / largest


@pytest.mark.parametrize(("family", "policy"), CASES, ids=[family for family, _ in CASES])
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_a_pipelined_step_is_that_of_the_whole_model(family: str, policy: dict[str, Any], dtype: str) -> None:
    off = {"fp32": 1e-5, "fp64": 1e-6 if family in IN_FP32 else 1e-9}[dtype]
    of = job(family, dtype=dtype, **policy)
    cell = Cell(of)
    layers = {n: x for s in cell.stages.values() for n, x in zip(s.numbers, s.layers, strict=True)}
    model = unsplit(of, layers)
    weights = dict(model.named_parameters())
    whole = torch.optim.AdamW(model.parameters(), lr=LR)
    split = [torch.optim.AdamW(stage.parameters(), lr=LR) for stage in cell.stages.values()]
    for step in range(2):
        loss = cell.run(step).loss
        tokens, targets = cell.corpus.batch(step, of.cell.global_batch, np.arange(of.cell.global_batch))
        logits = model(torch.from_numpy(tokens), use_cache=False).logits
        expected = nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        whole.zero_grad()
        expected.backward()
        assert loss == pytest.approx(float(expected.detach()), rel=off)
        norm = sum(sums.square_sum() for sums in cell.sums.values()) ** 0.5
        wanted = float(nn.utils.get_total_norm([weight.grad for weight in weights.values()]))
        assert norm == pytest.approx(wanted, rel=off)
        for number, layer in layers.items():
            assert far(layer, weights, model.get_output_embeddings().weight) <= off, number
        for optimizer in (whole, *split):
            optimizer.step()


@pytest.mark.parametrize("family", VARIANTS)
def test_variants_of_families_have_the_losses_and_gradients_of_the_whole_model(family: str) -> None:
    of = parse(TrainJob, document(model=model_of(family, **VARIANTS[family]), pipelines=1, dtype="fp64"))
    cell = Cell(of)
    layers = {n: x for s in cell.stages.values() for n, x in zip(s.numbers, s.layers, strict=True)}
    model = unsplit(of, layers)
    loss = cell.run().loss
    tokens, targets = cell.corpus.batch(0, of.cell.global_batch, np.arange(of.cell.global_batch))
    logits = model(torch.from_numpy(tokens), use_cache=False).logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-9)
    weights = dict(model.named_parameters())
    for number, layer in layers.items():
        if list(layer.parameters()):
            assert far(layer, weights, model.get_output_embeddings().weight) <= 1e-9, number


def test_families_of_these_cases_tie_their_ends_on_one_rank_and_on_two() -> None:
    tied = {policy["policy"] for family, policy in CASES if job(family).model.shape.has.tied}
    assert {"zb-v", "zb-h1"} <= tied


@pytest.mark.parametrize("policy", ["gpipe", "zb-v"])
def test_copies_of_a_tied_matrix_stay_equal_to_the_bit(policy: str) -> None:
    of = job("qwen2", policy=policy, recompute=False)
    cell = Cell(of)
    optimizers = [torch.optim.AdamW(stage.parameters(), lr=LR, fused=True) for stage in cell.stages.values()]
    for step in range(2):
        cell.run(step)
        for optimizer in optimizers:
            optimizer.step()
    ends = [tied for stage in cell.stages.values() for tied in stage.tied]
    assert sorted(end.is_copy for end in ends) == [False, True]
    assert torch.equal(ends[0].parameter, ends[1].parameter)
    assert float(ends[0].parameter.detach().abs().max()) > 0


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "gemma3_text"])
def test_in_bf16_copies_of_the_weights_compute_and_gradients_are_near_those_in_fp32(family: str) -> None:
    cells = [Cell(job(family, dtype=dtype, policy="zb-h1", recompute=False)) for dtype in ("fp32", "bf16")]
    for stage in cells[1].stages.values():
        stage.keep_cast()
        assert {
            copy.dtype for chunk in stage.chunks for cast in chunk.cast for copy in cast.copies.values()
        } == {torch.bfloat16}
    exact, near = (cell.run() for cell in cells)
    assert near.loss == pytest.approx(exact.loss, rel=2e-3)
    for number, gradients in exact.gradients.items():
        ours, theirs = (torch.cat([g.flatten() for g in gs]) for gs in (near.gradients[number], gradients))
        assert ours.dtype is torch.float32
        assert float((ours - theirs).norm() / theirs.norm()) < 0.03, number


@pytest.mark.long
def test_a_run_of_a_tied_model_recovers_to_the_bit(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model": model_of("qwen2"), "pipelines": 2, "steps": 12}
    whole = Run(parse(TrainJob, document(**changes)), str(tmp_path / "log")).result()
    with Machines(parse(TrainJob, document(**changes, recovery={})), tmp_path, [range(6)]) as run:
        run.at_step(3)
        run.kill_rank(2)  # a last stage, which has a copy of the embedding
        result = run.result()
    assert [row["failed"] for row in result["recoveries"]] == ["rank"]
    assert result["losses"] == whole["losses"]
    assert result["grad_norms"] == whole["grad_norms"]
    assert result["params_sha256"] == whole["params_sha256"]


def test_weights_depend_on_seed_and_layer_alone_and_follow_the_models_rule() -> None:
    model = parse(ConfigModel, model_of("gpt2", n_embd=128, initializer_range=0.05))
    one, same, other = (build_layer(model, 3, seed) for seed in (7, 7, 8))
    weights = [layer.get_parameter("part.mlp.c_proj.weight") for layer in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    # GPT-2 narrows what is added to the residual stream by the root of twice the layers.
    assert float(weights[0].detach().std()) == pytest.approx(0.05 / 12**0.5, rel=0.02)
    assert float(one.get_parameter("part.mlp.c_fc.weight").detach().std()) == pytest.approx(0.05, rel=0.02)


def test_a_stage_makes_its_own_layers_real_and_no_others() -> None:
    decoder = decoder_of(parse(ConfigModel, model_of("llama")))
    assert all(weight.is_meta for weight in decoder.model.parameters())
    layer = decoder.drawn(1, lambda number: number)
    assert {name.split(".")[1] for name, _ in layer.named_parameters()} == {
        "self_attn",
        "mlp",
        "input_layernorm",
        "post_attention_layernorm",
    }


def test_plans_of_transformers_cut_these_families_by_columns_and_rows_alone() -> None:
    plans = {
        family: set(decoder_of(parse(ConfigModel, model_of(family))).on_meta(1).tp_plan.values())  # type: ignore[union-attr]
        for family in CUT_FAMILIES
    }
    assert plans == {family: {"colwise", "rowwise"} for family in CUT_FAMILIES}


def test_dropout_of_a_config_is_off() -> None:
    model = parse(ConfigModel, model_of("gpt2", resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5))
    layers = [build_layer(model, number, 1).train() for number in (0, 1)]
    tokens = torch.arange(32).view(2, 16)
    first, again = (layers[1](layers[0](tokens)) for _ in range(2))
    assert torch.equal(first, again)
