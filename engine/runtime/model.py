"""The real model of a run: a GPT-style transformer over bytes, split into pipeline stages.

The weights of a layer depend on the seed and the layer's number only, so that every split of the same job
starts from the same model. Layer 0 is the embedding, 1 … L the blocks, L + 1 the last norm and the head.
"""

import hashlib

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.runtime.job import BYTE_VOCABULARY, TrainJob, TrainModel

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
INIT_STD = 0.02


class Embedding(nn.Module):
    """Byte and position embedding: (batch, seq) int64 → (batch, seq, hidden)."""

    def __init__(self, shape: TrainModel) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTE_VOCABULARY, shape.hidden)
        self.position = nn.Embedding(shape.seq, shape.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position.weight[: tokens.shape[1]]


class Block(nn.Module):
    """Pre-norm transformer block with causal attention: (batch, seq, hidden) → the same."""

    def __init__(self, shape: TrainModel) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.project = nn.Linear(shape.hidden, shape.hidden)
        self.mlp_norm = nn.LayerNorm(shape.hidden)
        self.widen = nn.Linear(shape.hidden, 4 * shape.hidden)
        self.narrow = nn.Linear(4 * shape.hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, seq, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.narrow(functional.gelu(self.widen(self.mlp_norm(x))))


class Head(nn.Module):
    """Last norm and projection to byte logits: (batch, seq, hidden) → (batch, seq, 256)."""

    def __init__(self, shape: TrainModel) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.hidden)
        self.project = nn.Linear(shape.hidden, BYTE_VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.norm(x))


class Stage(nn.Module):
    """The layers of one pipeline stage, in order; `numbers` are their places in the whole model."""

    def __init__(self, job: TrainJob, stage: int) -> None:
        super().__init__()
        blocks = [block + 1 for block in job.layers_of_stage[stage]]
        first = [0] if stage == 0 else []
        last = [job.model.layers + 1] if stage == job.stages - 1 else []
        self.numbers = [*first, *blocks, *last]
        self.layers = nn.ModuleList(build_layer(job.model, number, job.seed) for number in self.numbers)
        self.to(DTYPES[job.dtype])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def digests(self) -> dict[int, str]:
        """SHA-256 of each layer's parameters as little-endian fp32, by layer number."""
        return {
            number: _digest(layer) for number, layer in zip(self.numbers, self.layers, strict=True)
        }  # fmt: skip


def build_layer(shape: TrainModel, number: int, seed: int) -> nn.Module:
    """Return layer `number` of the model with its initial fp32 weights."""
    with torch.device("meta"):  # construct without the default initialisation, which is never used
        layer: nn.Module
        if number == 0:
            layer = Embedding(shape)
        elif number <= shape.layers:
            layer = Block(shape)
        else:
            layer = Head(shape)
    layer.to_empty(device="cpu")
    _initialise(layer, shape, torch.Generator().manual_seed(_layer_seed(seed, number)))
    return layer


def _layer_seed(seed: int, number: int) -> int:
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@torch.no_grad()
def _initialise(layer: nn.Module, shape: TrainModel, generator: torch.Generator) -> None:
    """Normal(0, 0.02); projections back into the residual stream scaled by 1/√(2L) as in GPT-2."""
    residual_std = INIT_STD / (2 * shape.layers) ** 0.5
    for name, parameter in layer.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            into_residual = isinstance(layer, Block) and name.startswith(("project", "narrow"))
            parameter.normal_(0.0, residual_std if into_residual else INIT_STD, generator=generator)


def _digest(layer: nn.Module) -> str:
    sha = hashlib.sha256()
    for parameter in layer.parameters():
        sha.update(parameter.detach().to(torch.float32).contiguous().numpy().tobytes())
    return sha.hexdigest()


def params_sha256(digests: dict[int, str]) -> str:
    """One SHA-256 for the whole model: over the layers' digests (hex, by line) in layer order."""
    return hashlib.sha256("\n".join(digests[number] for number in sorted(digests)).encode()).hexdigest()


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy per byte, in nats."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
