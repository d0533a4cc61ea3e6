"""Parameters, FLOPs and stage profiles, against published counts and an independent sum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.gpus import gpu
from engine.errors import InputError
from engine.model.presets import PRESETS, preset
from engine.model.profile import Compute, layers_per_stage, stage_profiles
from engine.model.transformer import Transformer

ONE = Compute(micro_batch=1, gpus=1, mfu=0.65, dtype_bytes=2)
A100 = gpu("a100-80g")


@pytest.mark.parametrize(
    ("name", "billions", "digits"),
    [("llama-3-8b", 8.03, 2), ("llama-3-70b", 70.6, 1), ("llama-3-405b", 405.85, 2)],
)
def test_published_parameter_counts(name: str, billions: float, digits: int) -> None:
    assert round(preset(name).parameters / 1e9, digits) == billions


def test_the_papers_layers_are_as_large_as_printed() -> None:
    assert round(preset("gpt-a").layer_parameters / 1e6) == 412
    assert round(preset("gpt-b").layer_parameters / 1e9, 1) == 1.2
    assert preset("gpt-a", stages=60).layers == 60


def test_gpt3_175b() -> None:
    # Brown et al. 2020, table 2.1: 96 layers of 12,288, vocabulary 50,257, context 2,048: 175 billion.
    shape = Transformer(
        layers=96, hidden=12_288, heads=96, kv_heads=96, ffn=4 * 12_288, vocab=50_257, seq=2048
    )
    assert shape.parameters == pytest.approx(175e9, rel=0.003)


def test_megatrons_formula_for_gpt() -> None:
    # Narayanan et al. 2021, eq. 2: 12·l·h²(1 + 13/(12h) + (V + s)/(12·l·h)), which leaves the final norm out.
    shape = Transformer(layers=24, hidden=1024, heads=16, kv_heads=16, ffn=4096, vocab=51_200, seq=2048)
    h, n = 1024, 24
    expected = 12 * n * h**2 * (1 + 13 / (12 * h) + (51_200 + 2048) / (12 * n * h))
    assert shape.parameters - 2 * h == pytest.approx(expected)


def test_the_beat_of_gpt_a_is_a_third_of_a_transfer_at_5_gbps() -> None:
    shape = preset("gpt-a", stages=4)
    forward_s = stage_profiles(shape, ONE, (A100,) * 4)[0].forward_s
    transfer_s = shape.activation_bytes(1, 2) / (5e9 / 8)
    assert transfer_s == pytest.approx(0.0537, rel=1e-3)
    assert transfer_s / forward_s == pytest.approx(3.0, abs=0.03)


def test_an_activation_of_gpt_b_takes_2_5_seconds_over_one_connection() -> None:
    # §3.2: "around 2.5 seconds" at 40 ms, where one connection gets 293 Mbps.
    assert preset("gpt-b").activation_bytes(1, 2) * 8 / 293e6 == pytest.approx(2.5, rel=0.11)


@given(layers=st.integers(1, 200), stages=st.integers(1, 200))
def test_layers_are_spread_evenly_and_all_placed(layers: int, stages: int) -> None:
    shape = Transformer(layers=layers, hidden=64, heads=4, kv_heads=4, ffn=256, vocab=100, seq=32)
    if stages > layers:
        with pytest.raises(InputError, match="at most one per layer"):
            layers_per_stage(shape, stages)
        return
    blocks = layers_per_stage(shape, stages)
    assert sum(blocks) == layers
    assert max(blocks) - min(blocks) <= 1
    assert blocks[-1] == min(blocks)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_stages_add_up_to_the_model(name: str, stages: int) -> None:
    shape = preset(name, stages=stages)
    profiles = stage_profiles(shape, ONE, (A100,) * stages)
    whole = stage_profiles(shape, ONE, (A100,))
    assert sum(p.forward_s for p in profiles) == pytest.approx(whole[0].forward_s)
    copies = shape.tied_parameters if stages > 1 else 0  # of the output matrix, on the last stage
    assert sum(p.parameters for p in profiles) == shape.parameters + copies
    assert all(p.backward_s == 2 * p.forward_s and p.recompute_s == p.forward_s for p in profiles)


def test_tensor_parallelism_and_utilization_divide_the_time() -> None:
    four = Compute(micro_batch=1, gpus=4, mfu=0.325, dtype_bytes=2)
    shape = preset("llama-3-8b")
    halved, whole = (stage_profiles(shape, how, (A100,) * 8)[0].forward_s for how in (four, ONE))
    assert halved == pytest.approx(whole / 2)


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'llama-3-8b'"):
        preset("llama3-8b")
