"""Mixtral: Mistral with experts in every block (transformers: models/mixtral)."""

from engine.errors import InputError
from engine.model.families import dense
from engine.model.families.config import Config
from engine.model.transformer import Experts, Features, Transformer

MODEL_TYPES = ("mixtral",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size = dense.sizes(config)
    experts = config.count("num_local_experts", default=8)
    top_k = config.count("num_experts_per_tok", default=2)
    if top_k > experts:
        raise InputError("num_experts_per_tok", top_k, f"at most num_local_experts = {experts}")
    return dense.model(
        "mixtral",
        size,
        Features(gated=True, tied=config.flag("tie_word_embeddings", default=False)),
        **dense.grouped(config, size, kv_heads=8, head_dim=None),
        **dense.everywhere(config, size["layers"], default=None),
        moe=Experts(experts=experts, top_k=top_k),
    )
