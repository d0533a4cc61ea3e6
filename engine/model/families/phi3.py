"""Phi-3 and Phi-4: Llama whose matrices are fused (transformers: models/phi3)."""

from engine.model.families import dense
from engine.model.families.config import Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("phi3",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size = dense.sizes(config)
    for name in ("attention_bias", "mlp_bias", "lm_head_bias"):
        config.only(name, False)
    return dense.model(
        "phi3",
        size,
        Features(gated=True, tied=config.flag("tie_word_embeddings", default=False)),
        **dense.grouped(config, size, kv_heads=None, head_dim=None),
        **dense.everywhere(config, size["layers"], default=None),
    )
