"""Qwen2 and 2.5: biases of queries, keys and values (transformers: models/qwen2)."""

from engine.model.families import dense
from engine.model.families.config import Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("qwen2",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size = dense.sizes(config)
    return dense.model(
        "qwen2",
        size,
        Features(gated=True, qkv_bias=True, tied=config.flag("tie_word_embeddings", default=False)),
        **dense.grouped(config, size, kv_heads=32, head_dim=None),
        **dense.from_some_layer_on(config, size["layers"]),
    )
