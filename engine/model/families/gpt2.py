"""GPT-2 (transformers: models/gpt2)."""

from engine.errors import InputError
from engine.model.families.config import MOST_LAYERS, Config
from engine.model.transformer import Features, Transformer

MODEL_TYPES = ("gpt2",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    hidden, heads = config.count("n_embd", "hidden_size"), config.count("n_head", "num_attention_heads")
    if hidden % heads:
        raise InputError("n_head", heads, f"must divide n_embd = {hidden}")
    config.only("add_cross_attention", False)
    dropout = [config.number(name, default=0.1) for name in ("attn_pdrop", "resid_pdrop", "embd_pdrop")]
    positions = config.count("n_positions", "max_position_embeddings")
    return Transformer(
        family="gpt2",
        layers=config.count("n_layer", "num_hidden_layers", most=MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=config.count("n_inner", default=4 * hidden, null=4 * hidden),
        vocab=config.count("vocab_size"),
        seq=positions,
        positions=positions,
        features=Features(
            gated=False,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            norm_bias=True,
            learned_positions=True,
            tied=config.flag("tie_word_embeddings", default=True),
            dropout=any(dropout),
        ),
    )
