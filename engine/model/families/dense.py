"""What the configs of Llama and its kin have in common."""

from typing import Any

from engine.errors import InputError
from engine.model.families.config import MOST_LAYERS, Config
from engine.model.transformer import Features, Transformer

SLIDING, FULL = "sliding_attention", "full_attention"


def sizes(config: Config) -> dict[str, Any]:
    """Layers, hidden size, MLP's inner width, heads and vocabulary."""
    return {
        "layers": config.count("num_hidden_layers", most=MOST_LAYERS),
        "hidden": config.count("hidden_size"),
        "ffn": config.count("intermediate_size"),
        "heads": config.count("num_attention_heads"),
        "vocab": config.count("vocab_size"),
        "seq": config.count("max_position_embeddings"),
    }


def grouped(
    config: Config, size: dict[str, Any], *, kv_heads: int | None, head_dim: int | None
) -> dict[str, int]:
    """Heads of keys and values, and the numbers of a head; defaults are transformers'.

    kv_heads : None: as many as heads.  head_dim : None: hidden size / heads.
    """
    heads, hidden = size["heads"], size["hidden"]
    kv = config.count("num_key_value_heads", default=kv_heads or heads, null=heads)
    if heads % kv:
        raise InputError("num_key_value_heads", kv, f"must divide num_attention_heads = {heads}")
    dim = config.count("head_dim", default=head_dim or 0, least=1 if head_dim else 0, null=0)
    if not dim and hidden % heads:
        raise InputError(
            "num_attention_heads", heads, f"must divide hidden_size = {hidden}, or give head_dim"
        )
    dim = dim or hidden // heads
    if "head_dim" in config.assumed:
        config.assumed["head_dim"] = dim
    return {"kv_heads": kv, "head_dim": dim}


def windows(config: Config, layers: int, window: int, sliding: list[bool]) -> dict[str, int]:
    """The window, and how many layers have it: `layer_types` says it, or the family's own rule `sliding`."""
    types = config.words("layer_types", (SLIDING, FULL), count=layers)
    count = types.count(SLIDING) if types is not None else sum(sliding)
    return {"window": window if count else 0, "windowed_layers": count if window else 0}


def everywhere(config: Config, layers: int, *, default: int | None) -> dict[str, int]:
    """A window in all layers, or in none where it is null."""
    window = config.optional("sliding_window", default=default)
    return windows(config, layers, window, [bool(window)] * layers)


def from_some_layer_on(config: Config, layers: int) -> dict[str, int]:
    """Qwen's rule: a window in the layers after `max_window_layers`, where `use_sliding_window` says so."""
    if not config.flag("use_sliding_window", default=False):
        config.unused("sliding_window", "max_window_layers")
        return windows(config, layers, 0, [])
    window, first = config.optional("sliding_window"), config.optional("max_window_layers", default=28)
    return windows(config, layers, window, [layer >= first for layer in range(layers)])


def model(family: str, size: dict[str, Any], features: Features, **more: Any) -> Transformer:
    """The shape; RMS norms and a gated MLP are in `features`."""
    return Transformer(family=family, features=features, **size, **more)
