"""GPT-NeoX and Pythia (transformers: models/gpt_neox)."""

from engine.errors import InputError
from engine.model.families import dense
from engine.model.families.config import Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("gpt_neox",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size = dense.sizes(config)
    if size["hidden"] % size["heads"]:
        allowed = f"must divide hidden_size = {size['hidden']}"
        raise InputError("num_attention_heads", size["heads"], allowed)
    bias = config.flag("attention_bias", default=True)
    dropout = [config.number(name, default=0.0) for name in ("attention_dropout", "hidden_dropout")]
    features = Features(
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        norm_bias=True,
        tied=config.flag("tie_word_embeddings", default=False),
        dropout=any(dropout),
    )
    return dense.model("gpt_neox", size, features, kv_heads=size["heads"])
