"""OPT (transformers: models/opt)."""

from engine.errors import InputError
from engine.model.families.config import MOST_LAYERS, Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("opt",)
BEFORE_POSITIONS = 2  # rows of the positions' embedding that no token uses


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if hidden % heads:
        raise InputError("num_attention_heads", heads, f"must divide hidden_size = {hidden}")
    config.only("word_embed_proj_dim", hidden)
    config.only("layer_norm_elementwise_affine", True)
    config.only("_remove_final_layer_norm", False)
    bias, seq = config.flag("enable_bias", default=True), config.count("max_position_embeddings")
    dropout = [
        config.number(name, default=value) for name, value in (("dropout", 0.1), ("attention_dropout", 0.0))
    ]
    return Transformer(
        family="opt",
        layers=config.count("num_hidden_layers", most=MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=config.count("ffn_dim"),
        vocab=config.count("vocab_size"),
        seq=seq,
        positions=seq + BEFORE_POSITIONS,
        features=Features(
            gated=False,
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=bias,
            norm_bias=True,
            final_norm=config.flag("do_layer_norm_before", default=True),
            learned_positions=True,
            tied=config.flag("tie_word_embeddings", default=True),
            dropout=any(dropout),
        ),
    )
