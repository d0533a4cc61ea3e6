"""Mistral: Llama with a sliding window in every layer (transformers: models/mistral)."""

from engine.model.families import dense
from engine.model.families.config import Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("mistral",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size = dense.sizes(config)
    return dense.model(
        "mistral",
        size,
        Features(gated=True, tied=config.flag("tie_word_embeddings", default=False)),
        **dense.grouped(config, size, kv_heads=8, head_dim=None),
        **dense.everywhere(config, size["layers"], default=4096),
    )
