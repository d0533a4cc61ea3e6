"""Qwen3: norms of each head's query and key (transformers: models/qwen3)."""

from engine.model.families import dense
from engine.model.families.config import Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("qwen3",)


def features(config: Config, head_dim: int) -> Features:
    """Those of Qwen3, with experts or without."""
    bias = config.flag("attention_bias", default=False)
    return Features(
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        query_norm=head_dim,
        key_norm=head_dim,
        tied=config.flag("tie_word_embeddings", default=False),
    )


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size = dense.sizes(config)
    heads = dense.grouped(config, size, kv_heads=32, head_dim=128)
    return dense.model(
        "qwen3",
        size,
        features(config, heads["head_dim"]),
        **heads,
        **dense.from_some_layer_on(config, size["layers"]),
    )
