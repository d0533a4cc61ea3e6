"""Which parameters have weight decay, by transformers' own Trainer; AdamW's numbers, by torch's own."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from engine.errors import InputError
from engine.job.sections.optimizer import OptimizerSection
from engine.nn.hugging_face import Slice, decoder_of
from engine.nn.model import build_layer
from engine.train.optimizer import AdamW, adamw, decayed_of
from tests.runtime.decoders import CONFIGS, model_of
from tests.runtime.jobs import job


def layers_of(model: Any) -> list[nn.Module]:
    return [build_layer(model, number, 0) for number in range(model.layers + 2)]


@pytest.mark.parametrize("family", CONFIGS)
def test_matrices_are_what_the_trainer_of_transformers_decays(family: str) -> None:
    from transformers import Trainer

    of = job(model=model_of(family))
    whole = decoder_of(of.model).model
    # Its patterns miss the norms that are called ln_1 and ln_f, but its rule for nn.LayerNorm has them.
    theirs = set(Trainer.get_decay_parameter_names(None, whole))
    section = OptimizerSection(steps=1, weight_decay_on="matrices")
    ours = set()
    for layer in layers_of(of.model):
        assert isinstance(layer, Slice)
        decayed = set(decayed_of(layer, section))
        ours |= {layer.name_in_model(name) for name, p in layer.named_parameters() if p in decayed}
    # theirs has it once, under the embedding's name
    tied = {"lm_head.weight"} if of.model.shape.has.tied else set()
    assert ours - tied == theirs - tied


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "llama"])  # tied, tied with learned positions, not tied
def test_an_embedding_without_decay_has_none_at_either_end(family: str) -> None:
    of = job(model=model_of(family))
    section = OptimizerSection(steps=1, weight_decay_on="matrices_without_embedding")
    layers = layers_of(of.model)
    assert list(decayed_of(layers[0], section)) == []
    head = list(decayed_of(layers[-1], section))
    assert len(head) == (0 if of.model.shape.has.tied else 1)
    assert all(list(decayed_of(layer, section)) for layer in layers[1:-1])


def test_a_norm_with_a_weight_of_two_dimensions_is_no_matrix() -> None:
    class PerHeadLayerNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 8))

    layer = nn.Sequential(PerHeadLayerNorm(), nn.Linear(8, 8))
    section = OptimizerSection(steps=1, weight_decay_on="matrices")
    assert list(decayed_of(layer, section)) == [layer[1].weight]


@pytest.mark.parametrize("decay_on", ["all", "matrices", "matrices_without_embedding"])
def test_steps_are_those_of_torchs_adamw(decay_on: str) -> None:
    numbers = {"lr": 0.01, "weight_decay": 0.3, "betas": (0.8, 0.95), "eps": 1e-5}
    section = OptimizerSection(steps=3, weight_decay_on=decay_on, **numbers)
    model = job(model={"layers": 3, "hidden": 8, "heads": 2, "seq": 4}).model
    ours, theirs = layers_of(model), nn.ModuleList(layers_of(model))
    optimizer = adamw(ours, section)
    rules = {
        "all": lambda name: True,
        "matrices": lambda name: not ("norm" in name or name.endswith("bias")),
        "matrices_without_embedding": lambda name: (
            not ("norm" in name or name.endswith("bias") or name.startswith("0."))
        ),
    }
    named = dict(theirs.named_parameters())
    decayed = [p for name, p in named.items() if rules[decay_on](name)]
    others = [p for name, p in named.items() if not rules[decay_on](name)]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    oracle = torch.optim.AdamW([group for group in groups if group["params"]], **numbers, fused=False)
    generator = torch.Generator().manual_seed(1)
    mine = [parameter for layer in ours for parameter in layer.parameters()]
    for _ in range(3):
        for a, b in zip(mine, theirs.parameters(), strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        optimizer.step()
        oracle.step()
    for a, b in zip(mine, theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_document_without_the_new_fields_steps_to_the_same_bits_as_before() -> None:
    of = job(model={"layers": 3, "hidden": 8, "heads": 2, "seq": 4})
    ours, theirs = layers_of(of.model), nn.ModuleList(layers_of(of.model))
    # As ranks built it before there were groups.
    before = torch.optim.AdamW(list(theirs.parameters()), lr=of.optimizer.lr, weight_decay=0.01, fused=True)
    optimizer = adamw(ours, of.optimizer)
    mine = [parameter for layer in ours for parameter in layer.parameters()]
    for a, b in zip(mine, theirs.parameters(), strict=True):
        a.grad = torch.sin(a * 100)
        b.grad = a.grad.clone()
    optimizer.step()
    before.step()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs.parameters(), strict=True))


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("betas", [0.9, 1.0], "less than 1"),
        ("eps", 0, "greater than 0"),
        ("weight_decay_on", "norms", "'all', 'matrices' or 'matrices_without_embedding'"),
    ],
)
def test_what_adamw_does_not_take_is_named(field: str, value: object, allowed: str) -> None:
    with pytest.raises(InputError, match=allowed) as caught:
        job(**{field: value})
    assert caught.value.field.startswith(field)


@given(
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    decays=st.lists(st.sampled_from([0.0, 0.01, 0.5]), min_size=1, max_size=3),
    lr=st.floats(1e-5, 0.5),
    beta1=st.floats(0, 0.99),
    eps=st.sampled_from([1e-8, 1e-3]),
    steps=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_steps_are_those_of_torchs_class_bit_by_bit(
    dtype: torch.dtype, decays: list[float], lr: float, beta1: float, eps: float, steps: int, seed: int
) -> None:
    """Weights and state in each order of dimensions, with gradients that are missing and a rate that changes.

    At a step in the middle each takes over the other's state.
    """
    torch.manual_seed(seed)
    first = [[torch.randn(3, 5).to(dtype), torch.randn(7, 2).to(dtype).t()] for _ in decays]
    settings = {"lr": lr, "betas": (beta1, 0.95), "eps": eps}
    ours, theirs = (
        [
            {"params": [nn.Parameter(t.clone()) for t in tensors], "weight_decay": decay, **settings}
            for tensors, decay in zip(first, decays, strict=True)
        ]
        for _ in range(2)
    )
    own, other = AdamW(ours), torch.optim.AdamW(theirs, fused=True)
    pairs = [
        pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a["params"], b["params"], strict=True)
    ]
    for step in range(steps):
        for i, (a, b) in enumerate(pairs):
            absent = (i + step + seed) % 4 == 0
            a.grad = None if absent else torch.randn(a.shape).to(dtype)
            b.grad = None if absent else a.grad.clone()  # type: ignore[union-attr]
        for group in own.param_groups + other.param_groups:
            group["lr"] = lr / (step + 1)
        own.step()
        other.step()
        for a, b in pairs:
            assert torch.equal(a, b)
            state, expected = own.state[a], other.state[b]
            assert state.keys() == expected.keys()
            assert all(torch.equal(state[name], expected[name]) for name in expected)
            assert all(state[name].dtype == expected[name].dtype for name in expected)
            if step == steps // 2 and expected:
                own.state[a], other.state[b] = expected, state
