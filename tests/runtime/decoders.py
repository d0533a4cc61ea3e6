"""Tiny configs of transformers' dense decoders, each with what sets its family apart."""

from typing import Any

_LLAMA: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_ROPE = {"rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

# Sequences are of 16 tokens: windows are shorter, so that masks differ from layer to layer.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        **_LLAMA,
        "rope_parameters": {"rope_type": "llama3", "original_max_position_embeddings": 32, **_ROPE},
    },
    "mistral": {**_LLAMA, "sliding_window": 5},
    "qwen2": {
        **_LLAMA,
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 2,
    },
    "qwen3": {**_LLAMA, "head_dim": 16},
    "gemma2": {**_LLAMA, "head_dim": 16, "sliding_window": 5, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**_LLAMA, "head_dim": 16, "sliding_window": 5, "sliding_window_pattern": 3},
    "phi3": {**_LLAMA, "num_key_value_heads": 4},
    "olmo2": _LLAMA,
    "gpt2": {"vocab_size": 300, "n_embd": 32, "n_layer": 6, "n_head": 4, "n_positions": 64},
    "gpt_neox": {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "opt": {
        "vocab_size": 300,
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
}


# Other ways of the same families: one without a last norm, one whose config names code of others.
VARIANTS: dict[str, dict[str, Any]] = {
    "opt": {"do_layer_norm_before": False},
    "gpt_neox": {"tie_word_embeddings": True, "use_parallel_residual": False},
    "llama": {"attention_bias": True, "auto_map": {"AutoModelForCausalLM": "theirs.Model"}},
}


def model_of(family: str, **changes: Any) -> dict[str, Any]:
    """`model` of a job that trains the tiny model of a family."""
    return {"config": {"model_type": family, **CONFIGS[family], **changes}, "seq": 16}
