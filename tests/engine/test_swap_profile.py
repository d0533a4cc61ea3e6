"""Layer profiles of models: their sums are the transformer's own counts; footprints are ATOM's."""

import dataclasses

import pytest

from engine.errors import InputError
from engine.model.presets import PRESETS
from engine.model.transformer import Experts
from engine.plan.swap.footprint import largest
from engine.plan.swap.models import gpt3, named
from engine.plan.swap.profile import Rates, layers_of, operators, stored_bytes

NAMES = ["gpt-3-small", "gpt-3-175b", "llama-3-8b", "llama-3-405b", "gpt-a", "tiny"]


def rates(**changes: object) -> Rates:
    return dataclasses.replace(
        Rates(
            flops_per_s=1e13,
            host_bytes_per_s=1e10,
            dtype_bytes=4,
            sequences=1,
            recompute=True,
            gradients_in_layer=True,
        ),
        **changes,
    )


@pytest.mark.parametrize("name", NAMES)
def test_layers_add_up_to_the_model(name: str) -> None:
    model = named(name)
    result = list(operators(model))
    stored = model.layers * model.layer_parameters + model.embedding_parameters + model.head_parameters
    assert sum(operator.parameters for operator in result) == stored
    assert sum(operator.flops for operator in result) == pytest.approx(model.forward_flops(1))


def test_times_memory_and_cuts_follow_from_the_counts() -> None:
    model = named("gpt-3-small")
    layers = layers_of(model, rates(sequences=2))
    assert sum(layer.forward_s for layer in layers) == pytest.approx(model.forward_flops(2) / 1e13)
    assert all(layer.backward_s == pytest.approx(3 * layer.forward_s) for layer in layers)
    assert all(layer.load_s == pytest.approx(layer.parameter_bytes / 1e10) for layer in layers)
    # between blocks, and after the embedding, only the residual stream crosses
    edges = {layer.cut_bytes for layer in layers if layer.name.endswith(("narrowing", "embedding"))}
    assert edges == {model.activation_bytes(2, 4)}
    assert min(layer.cut_bytes for layer in layers[:-1]) == model.activation_bytes(2, 4)


def test_a_block_keeps_what_korthikanti_counts() -> None:
    """s·b·h·(34 + 5·a·s/h) bytes a block in 16 bits (Korthikanti et al. 2022, Eq. 1)."""
    model = dataclasses.replace(named("gpt-3-175b"), vocab=0, layers=1)
    s, h, a = model.seq, model.hidden, model.heads
    assert stored_bytes(model, rates(dtype_bytes=2)) == s * h * 34 + 5 * a * s * s


def test_without_recomputation_layers_hold_no_activations_and_backward_is_twice_forward() -> None:
    layers = layers_of(named("tiny"), rates(recompute=False, gradients_in_layer=False))
    assert all(layer.memory_bytes == layer.parameter_bytes for layer in layers)
    assert all(layer.backward_s == pytest.approx(2 * layer.forward_s) for layer in layers)


def test_footprints_are_those_of_figures_3_and_4() -> None:
    forward, backward = largest(gpt3()["gpt-3-175b"], 1, 4)
    assert (forward.name, forward.forward_bytes) == ("dropout", 1_920 * 2**20)
    assert (backward.name, backward.backward_bytes) == ("softmax", 3_072 * 2**20)


def test_experts_are_refused() -> None:
    model = dataclasses.replace(PRESETS["tiny"], moe=Experts(experts=4))
    with pytest.raises(InputError, match="dense"):
        list(operators(model))
