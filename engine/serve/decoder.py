"""Llama's decoder over one chunk of one prompt: hidden states in, hidden states out, keys and values kept.

Functions of their weights, without modules: nothing is trained here. Every operation is in transformers'
order (RMS norm in fp32, then cast, then times its weight), so that logits are equal to its own.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

from engine.job.prefill.config import LlamaConfig
from engine.nn.layers import rotated
from engine.serve.rotary import Angles
from engine.serve.weights import name_in


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeights:
    """The weights of one block; matrices are (out, in)."""

    attention_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    project: Tensor
    mlp_norm: Tensor
    gate: Tensor
    widen: Tensor
    narrow: Tensor

    @classmethod
    def of(cls, tensors: dict[str, Tensor], block: int) -> "BlockWeights":
        """Block number `block` out of a checkpoint's tensors."""
        return cls(**{field.name: tensors[name_in(block, field.name)] for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Keys and values of one block, (kv heads, tokens, head size): `done` tokens are there."""

    keys: Tensor
    values: Tensor
    done: int


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm (Zhang and Sennrich 2019)."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def block(x: Tensor, weights: BlockWeights, config: LlamaConfig, turns: Angles, past: Past) -> Tensor:
    """One block over (tokens, hidden); writes the chunk's keys and values behind those in `past`."""
    w = weights
    x = x + _attend(rms_norm(x, w.attention_norm, config.rms_norm_eps), w, config, turns, past)
    y = rms_norm(x, w.mlp_norm, config.rms_norm_eps)
    inner = functional.silu(functional.linear(y, w.gate)) * functional.linear(y, w.widen)
    return x + functional.linear(inner, w.narrow)


def _attend(x: Tensor, w: BlockWeights, config: LlamaConfig, turns: Angles, past: Past) -> Tensor:
    """Causal grouped-query attention of the chunk to itself and to all before it."""
    count, end = x.shape[0], past.done + x.shape[0]
    query = rotated(_heads(functional.linear(x, w.query), config), *turns)
    past.keys[:, past.done : end] = rotated(_heads(functional.linear(x, w.key), config), *turns)
    past.values[:, past.done : end] = _heads(functional.linear(x, w.value), config)
    # Its import brings torch._dynamo: 800 modules, which a host without prefill must not hand to its ranks.
    from torch.nn.attention.bias import causal_lower_right

    mixed = functional.scaled_dot_product_attention(
        query[None],
        past.keys[None, :, :end],
        past.values[None, :, :end],
        attn_mask=causal_lower_right(count, end),
        enable_gqa=config.kv_heads < config.num_attention_heads,
    )
    return functional.linear(mixed[0].transpose(0, 1).reshape(count, -1), w.project)


def _heads(x: Tensor, config: LlamaConfig) -> Tensor:
    """(tokens, heads · size) → (heads, tokens, size)."""
    return x.view(x.shape[0], -1, config.head_size).transpose(0, 1)
