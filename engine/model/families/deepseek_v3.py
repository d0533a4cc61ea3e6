"""DeepSeek-V3: latent attention, experts and shared ones (transformers: models/deepseek_v3).

The layers that predict further tokens (`num_nextn_predict_layers`) are not counted, as transformers has none.
"""

from engine.errors import InputError
from engine.model.families import dense
from engine.model.families.config import MOST_LAYERS, Config
from engine.model.transformer import Experts, Features, LatentAttention, Transformer

MODEL_TYPES = ("deepseek_v3",)


def shape(config: Config) -> Transformer:
    """The shape that a config describes."""
    size, bias = dense.sizes(config), config.flag("attention_bias", default=False)
    config.unused("num_key_value_heads", "head_dim", "qk_head_dim")  # of the latent attention, or derived
    config.only("moe_layer_freq", 1)
    latent = LatentAttention(
        query_rank=config.optional("q_lora_rank", default=1536),
        key_rank=config.count("kv_lora_rank", default=512),
        plain=config.count("qk_nope_head_dim", default=128),
        rope=config.count("qk_rope_head_dim", default=64),
        value=config.count("v_head_dim", default=128),
    )
    return dense.model(
        "deepseek_v3",
        size,
        Features(
            gated=True,
            qkv_bias=bias,
            out_bias=bias,
            tied=config.flag("tie_word_embeddings", default=False),
        ),
        kv_heads=size["heads"],
        head_dim=latent.plain + latent.rope,
        latent=latent,
        moe=_experts(config, size["layers"]),
    )


def _experts(config: Config, layers: int) -> Experts:
    experts = config.count("n_routed_experts", "num_local_experts", default=256)
    top_k = config.count("num_experts_per_tok", default=8)
    width = config.count("moe_intermediate_size", default=2048)
    if top_k > experts:
        raise InputError("num_experts_per_tok", top_k, f"at most n_routed_experts = {experts}")
    dense_layers = config.count("first_k_dense_replace", default=3, least=0, most=MOST_LAYERS)
    return Experts(
        experts=experts,
        top_k=top_k,
        width=width,
        shared=width * config.optional("n_shared_experts", default=1, most=10_000),
        dense=frozenset(range(min(dense_layers, layers))),
    )
