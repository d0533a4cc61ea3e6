"""The layers of the two model families: GPT-2's and Llama's block, embedding and head.

Weights may be of a wider type than what is computed with (bf16 with fp32 weights): every module that has
weights casts them to the type of its input, so that gradients come back, and add up, in the weights' type.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.job.model_document import TrainModel
from engine.nn.products import GradientSum, Product

RMS_EPS = 1e-5
ROPE_THETA = 10_000.0  # Su et al., RoFormer


class Linear(nn.Linear):
    """y = x·Wᵀ + b in the type of x.

    gradient_sum : set where the weight is a cast copy (`CastWeights`): takes the gradients of the weight.
    """

    gradient_sum: GradientSum | None = None

    def reset_parameters(self) -> None:
        """Draw nothing: whoever builds a model draws or reads all of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.gradient_sum is not None:
            y: Tensor = Product.apply(x, self.weight, bias, self.gradient_sum)
            return y
        return functional.linear(x, self.weight.to(x.dtype), bias)


class EmbeddingTable(nn.Embedding):
    """A row for each token, or for each position."""

    def reset_parameters(self) -> None:
        """Draw nothing, as `Linear`."""


class LayerNorm(nn.LayerNorm):
    """Layer norm in the type of x."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class RmsNorm(nn.RMSNorm):
    """Root-mean-square norm (Zhang and Sennrich 2019) in the type of x."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def norm_of(shape: TrainModel) -> nn.Module:
    """The norm of a family over its hidden size."""
    return RmsNorm(shape.hidden, eps=RMS_EPS) if shape.family == "llama" else LayerNorm(shape.hidden)


class Embedding(nn.Module):
    """Token embedding, GPT's with learned positions: (batch, seq) int64 → (batch, seq, hidden)."""

    def __init__(self, shape: TrainModel) -> None:
        super().__init__()
        self.token = EmbeddingTable(shape.vocabulary, shape.hidden)
        self.position = EmbeddingTable(shape.seq, shape.hidden) if shape.family == "gpt" else None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        if self.position is None:
            return x
        return x + self.position(torch.arange(tokens.shape[1], device=tokens.device))


class GptBlock(nn.Module):
    """GPT-2's pre-norm block with causal attention: (batch, seq, hidden) → the same."""

    def __init__(self, shape: TrainModel) -> None:
        super().__init__()
        self.heads, self.head_size = shape.heads, shape.hidden // shape.heads
        self.attention_norm = LayerNorm(shape.hidden)
        self.qkv = Linear(shape.hidden, 3 * shape.hidden)
        self.project = Linear(shape.hidden, shape.hidden)
        self.mlp_norm = LayerNorm(shape.hidden)
        self.widen = Linear(shape.hidden, shape.ffn_width)
        self.narrow = Linear(shape.ffn_width, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).view(*x.shape[:2], 3, self.heads, self.head_size)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.mlp_norm(x))))


class LlamaBlock(nn.Module):
    """Llama's block: RMS norm, rotary positions, grouped-query attention, SwiGLU; no biases."""

    def __init__(self, shape: TrainModel) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.key_value_heads
        self.head_size = shape.hidden // shape.heads
        self.attention_norm = RmsNorm(shape.hidden, eps=RMS_EPS)
        self.query = Linear(shape.hidden, shape.hidden, bias=False)
        self.key = Linear(shape.hidden, self.kv_heads * self.head_size, bias=False)
        self.value = Linear(shape.hidden, self.kv_heads * self.head_size, bias=False)
        self.project = Linear(shape.hidden, shape.hidden, bias=False)
        self.mlp_norm = RmsNorm(shape.hidden, eps=RMS_EPS)
        self.gate = Linear(shape.hidden, shape.ffn_width, bias=False)
        self.widen = Linear(shape.hidden, shape.ffn_width, bias=False)
        self.narrow = Linear(shape.ffn_width, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.project(self._attend(self.attention_norm(x)))
        y = self.mlp_norm(x)
        return x + self.narrow(functional.silu(self.gate(y)) * self.widen(y))

    def _attend(self, x: Tensor) -> Tensor:
        cosines, sines = rotations(x.shape[1], self.head_size, x.dtype, x.device)
        query = rotated(self._heads(self.query(x), self.heads), cosines, sines)
        key = rotated(self._heads(self.key(x), self.kv_heads), cosines, sines)
        value = self._heads(self.value(x), self.kv_heads)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.kv_heads < self.heads
        )
        return mixed.transpose(1, 2).flatten(2)

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:2], heads, self.head_size).transpose(1, 2)


class Head(nn.Module):
    """Last norm and projection to logits: (batch, seq, hidden) → (batch, seq, vocabulary)."""

    def __init__(self, shape: TrainModel) -> None:
        super().__init__()
        self.norm = norm_of(shape)
        self.project = Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.norm(x))


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i + half}) of each head by their position's angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


@lru_cache(maxsize=8)
def rotations(seq: int, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position p times θ^(−2i / size), each of shape (seq, size)."""
    powers = torch.arange(0, size, 2, dtype=torch.float64) / size
    angles = torch.outer(torch.arange(seq, dtype=torch.float64), ROPE_THETA**-powers)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
