"""Angles of rotary positions, in fp32 and in transformers' order of operations.

At position 8,000 an angle in fp32 is 5·10⁻⁴ off: logits are equal to transformers' only if the error is, too.
"""

import math

import torch
from torch import Tensor

from engine.job.prefill.config import LlamaConfig, Rope

Angles = tuple[Tensor, Tensor]


def frequencies(config: LlamaConfig) -> Tensor:
    """Angle per position of each pair of a head: θ^(−2i / size), stretched where the model says so."""
    powers = torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size
    plain = 1.0 / (config.rope.rope_theta**powers)
    return _stretched(plain, config.rope) if config.rope.rope_type == "llama3" else plain


def _stretched(plain: Tensor, rope: Rope) -> Tensor:
    """Llama 3.1's scaling: long waves by `factor`, short ones not at all, those between by both shares."""
    original = rope.original_max_position_embeddings
    factor, low, high = rope.factor, rope.low_freq_factor, rope.high_freq_factor
    if original is None or factor is None or low is None or high is None:
        raise ValueError("rope_type llama3 without its four figures: read_config refuses it")
    wavelength = 2 * math.pi / plain
    share = (original / wavelength - low) / (high - low)
    between = (1 - share) * plain / factor + share * plain
    long, short = wavelength > original / low, wavelength < original / high
    return torch.where(long, plain / factor, torch.where(short, plain, between))


def angles(inverse: Tensor, *, first: int, count: int, dtype: torch.dtype) -> Angles:
    """Cosines and sines of positions `first` to `first + count`, each of shape (count, head size)."""
    positions = torch.arange(first, first + count, device=inverse.device, dtype=torch.float32)
    turned = positions[:, None] * inverse
    turned = torch.cat((turned, turned), dim=-1)
    return turned.cos().to(dtype), turned.sin().to(dtype)
