"""A model in figures: parameters, FLOPs and bytes of its shape."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.model.memory import kv_bytes_per_token
from engine.model.transformer import Transformer

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """What `meridian model` prints (docs/commands.md).

    active_parameters : those that a token uses.  tied_embeddings : the output matrix is the embedding.
    experts, experts_per_token : None in a dense model.
    window, windowed_layers : tokens that a token attends to in so many layers; None: in none.
    weight_bytes : of all parameters in the dtype.  kv_bytes_per_token : cached in all layers.
    forward_flops_per_token : 2 for each weight of a product that a token uses. Attention's products with
        keys and values are left out, as they depend on the length.
    source : where the description is from.  assumed : what it left to its family's defaults.
    """

    family: str
    parameters: int
    active_parameters: int
    tied_embeddings: bool
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    seq: int
    experts: int | None
    experts_per_token: int | None
    window: int | None
    windowed_layers: int | None
    dtype: str
    weight_bytes: int
    kv_bytes_per_token: int
    forward_flops_per_token: int
    source: str
    assumed: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


def figures_of(
    shape: Transformer, dtype: str, source: str, assumed: Mapping[str, Any] | None = None
) -> ModelFigures:
    """The figures of a shape in a dtype of `DTYPE_BYTES`."""
    return ModelFigures(
        family=shape.family,
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        tied_embeddings=shape.has.tied,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_width,
        ffn=shape.ffn,
        vocab=shape.vocab,
        seq=shape.seq,
        experts=shape.moe.experts if shape.moe else None,
        experts_per_token=shape.moe.top_k if shape.moe else None,
        window=shape.window or None,
        windowed_layers=shape.windowed_layers or None,
        dtype=dtype,
        weight_bytes=shape.parameters * DTYPE_BYTES[dtype],
        kv_bytes_per_token=kv_bytes_per_token(shape, DTYPE_BYTES[dtype]),
        forward_flops_per_token=2 * shape.active_weights,
        source=source,
        assumed=dict(assumed or {}),
    )
