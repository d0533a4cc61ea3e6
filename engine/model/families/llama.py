"""Llama 2 and 3 (transformers: models/llama)."""

from engine.model.families import dense
from engine.model.families.config import Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("llama",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size, bias = dense.sizes(config), config.flag("attention_bias", default=False)
    features = Features(
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.flag("mlp_bias", default=False),
        tied=config.flag("tie_word_embeddings", default=False),
    )
    return dense.model("llama", size, features, **dense.grouped(config, size, kv_heads=None, head_dim=None))
