"""OLMo 2: norms after attention and MLP, and of all queries and keys (transformers: models/olmo2)."""

from engine.model.families import dense
from engine.model.families.config import Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("olmo2",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size, bias = dense.sizes(config), config.flag("attention_bias", default=False)
    heads = dense.grouped(config, size, kv_heads=None, head_dim=None)
    features = Features(
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        query_norm=size["heads"] * heads["head_dim"],
        key_norm=heads["kv_heads"] * heads["head_dim"],
        tied=config.flag("tie_word_embeddings", default=False),
    )
    return dense.model("olmo2", size, features, **heads)
