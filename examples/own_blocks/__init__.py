"""A small model of one's own for `model.module`: decaying sums over the sequence in place of attention.

model: {module: "own_blocks:parts", arguments: {hidden: 64, vocab: 256, layers: 4},
        layers: 4, hidden: 64, seq: 64}
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class DecayingSum(nn.Module):
    """x_t → the sum of d^(t − s) · x_s over s ≤ t, with a rate d of its own for each channel."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-2.0, 4.0, hidden))

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1], device=x.device)
        since = (steps[:, None] - steps[None, :]).clamp(min=0)
        decay = torch.sigmoid(self.rate.to(x.dtype)) ** since[..., None]
        causal = torch.tril(torch.ones(x.shape[1], x.shape[1], device=x.device, dtype=x.dtype))
        return torch.einsum("tsc,bsc->btc", decay * causal[..., None], x)


class Block(nn.Module):
    """A pre-norm residual block: decaying sums, then a gated MLP."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.mix_norm, self.mix = nn.RMSNorm(hidden), DecayingSum(hidden)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden)
        self.widen, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(2 * hidden, hidden)
        nn.init.normal_(self.out.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.mix(self.mix_norm(x)))
        gate, value = self.widen(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.narrow(functional.silu(gate) * value)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of the model, each made when it is asked for."""

    hidden: int
    vocab: int
    layers: int

    def embedding(self) -> nn.Module:
        return nn.Embedding(self.vocab, self.hidden)

    def layer(self, number: int) -> nn.Module:
        return Block(self.hidden, self.layers)

    def head(self) -> nn.Module:
        return nn.Sequential(nn.RMSNorm(self.hidden), nn.Linear(self.hidden, self.vocab, bias=False))


def parts(hidden: int, vocab: int, layers: int) -> Parts:
    """What a document names as `own_blocks:parts`."""
    return Parts(hidden=hidden, vocab=vocab, layers=layers)


class Whole(nn.Module):
    """The same model in one piece, as one would train it without a pipeline."""

    def __init__(self, hidden: int, vocab: int, layers: int) -> None:
        super().__init__()
        given = parts(hidden, vocab, layers)
        self.embedding = given.embedding()
        self.layers = nn.ModuleList(given.layer(number) for number in range(layers))
        self.head = given.head()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits
