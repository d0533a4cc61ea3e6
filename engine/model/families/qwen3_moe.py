"""Qwen3 with experts (transformers: models/qwen3_moe)."""

from engine.errors import InputError
from engine.model.families import dense, qwen3
from engine.model.families.config import Config
from engine.model.transformer import Experts, Transformer

MODEL_TYPES = ("qwen3_moe",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size = dense.sizes(config)
    heads = dense.grouped(config, size, kv_heads=4, head_dim=None)
    used = config.flag("use_sliding_window", default=False)
    window = config.optional("sliding_window") if used else 0
    config.unused("sliding_window", "max_window_layers")
    return dense.model(
        "qwen3_moe",
        size,
        qwen3.features(config, heads["head_dim"]),
        **heads,
        **dense.windows(config, size["layers"], window, [bool(window)] * size["layers"]),
        moe=_experts(config, size["layers"]),
    )


def _experts(config: Config, layers: int) -> Experts:
    experts = config.count("num_experts", "num_local_experts", default=128)
    top_k = config.count("num_experts_per_tok", default=8)
    if top_k > experts:
        raise InputError("num_experts_per_tok", top_k, f"at most num_experts = {experts}")
    return Experts(
        experts=experts,
        top_k=top_k,
        every=config.count("decoder_sparse_step", default=1),
        width=config.count("moe_intermediate_size", default=768),
        dense=config.numbers("mlp_only_layers", most=layers),
    )
