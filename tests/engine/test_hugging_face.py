"""Configs of Hugging Face count what transformers' own models hold, compute and cache."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from engine.errors import InputError
from engine.model.hugging_face import FAMILIES, read_config
from engine.model.memory import kv_bytes_per_token

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 130,
    "max_position_embeddings": 32,
}
NEOX = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}
GPT2 = {"n_embd": 48, "n_layer": 5, "n_head": 6, "vocab_size": 130, "n_positions": 32}
OPT = {
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "vocab_size": 130,
    "max_position_embeddings": 32,
    "word_embed_proj_dim": 48,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 2,
}
DENSE = [
    ("llama", SMALL),
    (
        "llama",
        {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 10},
    ),
    ("mistral", {**SMALL, "sliding_window": None}),
    ("mistral", {**SMALL, "head_dim": 16, "sliding_window": 64}),
    ("qwen2", SMALL),
    ("qwen2", {**SMALL, "tie_word_embeddings": True}),
    ("qwen3", {**SMALL, "head_dim": 12}),
    ("qwen3", {**SMALL, "attention_bias": True}),
    ("gemma2", {**SMALL, "head_dim": 14}),
    ("gemma3_text", {**SMALL, "head_dim": 14, "tie_word_embeddings": False}),
    ("phi3", {**SMALL, "pad_token_id": 0}),
    ("phi3", {**SMALL, "pad_token_id": 0, "tie_word_embeddings": True, "num_key_value_heads": 6}),
    ("olmo2", SMALL),
    ("olmo2", {**SMALL, "num_key_value_heads": 6, "attention_bias": True}),
    ("gpt2", GPT2),
    ("gpt2", {**GPT2, "n_inner": 100, "tie_word_embeddings": False}),
    ("opt", OPT),
    ("opt", {**OPT, "do_layer_norm_before": False, "enable_bias": False}),
    ("gpt_neox", NEOX),
    (
        "gpt_neox",
        {**NEOX, "attention_bias": False, "tie_word_embeddings": True},
    ),
]
WITH_EXPERTS = [
    ("mixtral", {**SMALL, **EXPERTS}),
    ("qwen3_moe", {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}),
    (
        "qwen3_moe",
        {
            **SMALL,
            "num_experts": 4,
            "mlp_only_layers": [0, 3],
            "decoder_sparse_step": 2,
            "num_experts_per_tok": 1,
        },
    ),
    ("deepseek_v3", {**SMALL, **LATENT, "n_shared_experts": 2}),
    ("deepseek_v3", {**SMALL, **LATENT, "q_lora_rank": None, "attention_bias": True}),
]
TOKENS = 16


def built(model_type: str, config: dict[str, Any]) -> Any:
    """transformers' model of a config, without memory."""
    transformers = pytest.importorskip("transformers")  # here: half a second, which one worker of all spends
    of = transformers.AutoConfig.for_model(model_type, **config, attn_implementation="eager")
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(of).eval()


@pytest.mark.parametrize(("model_type", "config"), DENSE + WITH_EXPERTS)
def test_parameters_are_those_of_transformers(model_type: str, config: dict[str, Any]) -> None:
    model, read = built(model_type, config), read_config({"model_type": model_type, **config})
    assert read.shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    saved = json.loads(model.config.to_json_string())  # with all its defaults
    assert read_config(saved).shape == read.shape


@pytest.mark.parametrize(("model_type", "config"), DENSE)
def test_flops_and_caches_are_those_of_transformers(model_type: str, config: dict[str, Any]) -> None:
    model = built(model_type, config)
    shape = read_config({"model_type": model_type, **config, "seq": TOKENS}).shape
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        answer = model(torch.zeros(1, TOKENS, dtype=torch.long, device="meta"), use_cache=True)
    rotations = 0 if shape.has.learned_positions else counter.get_total_flops() - shape.forward_flops(1)
    assert 0 <= rotations < 0.02 * shape.forward_flops(1)  # of angles and positions
    cached = sum(
        part.numel() for layer in answer.past_key_values.layers for part in (layer.keys, layer.values)
    )
    assert kv_bytes_per_token(shape, 4) == 4 * cached / TOKENS


def test_experts_that_a_token_meets() -> None:
    shape = read_config({"model_type": "mixtral", **SMALL, **EXPERTS}).shape
    idle = built("mixtral", {**SMALL, **EXPERTS, "num_local_experts": 2})
    routers = 2 * SMALL["hidden_size"] * SMALL["num_hidden_layers"]  # rows of the experts that are left out
    assert shape.active_parameters == sum(p.numel() for p in idle.parameters()) + routers


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.2-1b", 1_235_814_400),
        ("qwen2.5-7b", 7_615_616_512),
        ("gemma-2-9b", 9_241_705_984),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_published_configs(name: str, parameters: int) -> None:
    """Counted by transformers 5.23."""
    file = Path(__file__).parent.parent / "configs" / f"{name}.json"
    assert read_config(json.loads(file.read_text())).shape.parameters == parameters


def test_windows_follow_each_familys_rule() -> None:
    def windowed(model_type: str, **more: Any) -> tuple[int, int]:
        shape = read_config({"model_type": model_type, **SMALL, "head_dim": 8, **more}).shape
        return shape.window, shape.windowed_layers

    assert windowed("mistral") == (4096, 5)
    assert windowed("gemma2") == (4096, 3)
    assert windowed("gemma3_text", sliding_window=8) == (8, 5)
    assert windowed("gemma3_text", sliding_window=8, sliding_window_pattern=2) == (8, 3)
    assert windowed("qwen3", sliding_window=8, max_window_layers=2) == (0, 0)
    assert windowed("qwen3", sliding_window=8, max_window_layers=2, use_sliding_window=True) == (8, 3)
    types = ["full_attention", "sliding_attention"] * 2 + ["full_attention"]
    assert windowed("qwen3", sliding_window=8, use_sliding_window=True, layer_types=types) == (8, 2)


def test_a_window_bounds_the_flops_of_attention() -> None:
    whole = read_config({"model_type": "mistral", **SMALL, "sliding_window": None}).shape
    half = read_config({"model_type": "mistral", **SMALL, "sliding_window": 16}).shape
    assert half.attention_core_flops(3) == whole.attention_core_flops(3) / 2
    assert half.head_forward_flops(3) == whole.head_forward_flops(3)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"model_type": "lama"}, "model_type", "did you mean 'llama'"),
        ({"model_type": None}, "model_type", "allowed"),
        ({"hidden_size": None}, "hidden_size", "whole number from 1"),
        ({"hidden_size": -48}, "hidden_size", "whole number from 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "100,000"),
        ({"num_hidden_layers": "five"}, "num_hidden_layers", "whole number"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "num_attention_heads", "divide hidden_size"),
        ({"num_key_value_heads": 4}, "num_key_value_heads", "divide num_attention_heads"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings", "true or false"),
        ({"num_experts": 8}, "num_experts", "not known of llama"),
        ({"head_dimension": 8}, "head_dimension", "did you mean 'head_dim'"),
        ({"text_config": {}}, "text_config", "alone"),
        ({"model_type": "phi3", "attention_bias": True}, "attention_bias", "False"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types", "a list of 5"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok",
            "at most",
        ),
        ({"model_type": "qwen3_moe", "mlp_only_layers": 1}, "mlp_only_layers", "list of whole numbers"),
        ({"seq": 0}, "seq", "whole number"),
    ],
)
def test_what_is_wrong_or_not_known_is_named(change: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_config({"model_type": "llama", **SMALL, **change})
    assert error.value.field == field


def test_a_missing_size_is_named() -> None:
    for name in SMALL.keys() - {"num_key_value_heads"}:
        with pytest.raises(InputError, match="required") as error:
            read_config({"model_type": "llama", **{key: v for key, v in SMALL.items() if key != name}})
        assert error.value.field == name


VALUES = (
    st.none() | st.booleans() | st.integers(-3, 10**10) | st.floats() | st.text(max_size=3) | st.just([0, 2])
)
NAMED = sorted({*SMALL, *GPT2, *OPT, *EXPERTS, *LATENT, "layer_types", "mlp_only_layers", "seq"})


@settings(max_examples=300, deadline=None)
@given(
    model_type=st.sampled_from(sorted(FAMILIES)),
    config=st.dictionaries(st.sampled_from(NAMED), VALUES, max_size=4),
)
def test_no_config_raises_anything_else(model_type: str, config: dict[str, Any]) -> None:
    check_any(model_type, config)


ODD_FLOATS = (0.0, -0.0, 1.0, 2.5, -1.5, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"))


def drawn_value(drawn: random.Random) -> Any:
    """One of the kinds of VALUES, a list of anything, or an object."""
    return drawn.choice(
        (
            None,
            drawn.random() < 0.5,
            drawn.randint(-3, 16),
            int(10 ** drawn.uniform(0, 10)),
            drawn.choice(ODD_FLOATS),
            drawn.uniform(-1e6, 1e6),
            "".join(chr(drawn.randrange(sys.maxunicode + 1)) for _ in range(drawn.randrange(4))),
            [0, 2],
            [drawn.choice((None, True, -1, 1, 1.5, "full_attention", [0]))],
            {"0": 2},
        )
    )


@pytest.mark.long
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_no_config_of_many_raises_anything_else(model_type: str) -> None:
    """Not drawn by Hypothesis, which would take thirty times as long as what is tested."""
    drawn = random.Random(model_type)
    for _ in range(100_000 // len(FAMILIES)):
        config = {name: drawn_value(drawn) for name in drawn.sample(NAMED, drawn.randrange(5))}
        try:
            check_any(model_type, config)
        except Exception as error:
            error.add_note(f"of {config}")
            raise


def check_any(model_type: str, config: dict[str, Any]) -> None:
    base = {"gpt2": GPT2, "opt": OPT}.get(model_type, SMALL)
    try:
        shape = read_config({"model_type": model_type, **base, **config}).shape
    except InputError:
        return
    assert 0 < shape.active_parameters <= shape.parameters
    assert shape.forward_flops(1) > 0
