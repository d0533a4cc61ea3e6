"""Gemma 2 and 3, text: four norms a block, windows in most layers (transformers: models/gemma2, gemma3)."""

from engine.model.families import dense
from engine.model.families.config import Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("gemma2", "gemma3_text")
PATTERN = {"gemma2": 2, "gemma3_text": 6}  # every so many layers, one attends to all tokens


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size, layers = dense.sizes(config), config.count("num_hidden_layers")
    heads = dense.grouped(config, size, kv_heads=4, head_dim=256)
    bias, family = config.flag("attention_bias", default=False), config.model_type
    norms = heads["head_dim"] if family == "gemma3_text" else 0
    features = Features(
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        block_norms=4,
        query_norm=norms,
        key_norm=norms,
        tied=config.flag("tie_word_embeddings", default=True),
    )
    pattern = PATTERN[family]
    if family == "gemma3_text":
        pattern = config.count("sliding_window_pattern", "_sliding_window_pattern", default=pattern)
    sliding = [bool((layer + 1) % pattern) for layer in range(layers)]
    window = config.optional("sliding_window", default=4096)
    return dense.model(family, size, features, **heads, **dense.windows(config, layers, window, sliding))
