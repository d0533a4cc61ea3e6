"""Transformer shapes: parameters, FLOPs and activation bytes, counted block by block.

Two families. ``gpt``: two-matrix MLP, biases, LayerNorm, learned positions, output matrix tied to the
embedding. ``llama``: gated three-matrix MLP, grouped-query attention, RMSNorm, no biases, rotary positions,
output matrix of its own. In a model with experts every n-th block has many MLPs and a router in place of one.
"""

from dataclasses import dataclass
from typing import Literal

Family = Literal["gpt", "llama"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: the MLP of every `every`-th block is `experts` MLPs; a token goes to `top_k`."""

    experts: int
    top_k: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k {self.top_k}: must be from 1 to the {self.experts} experts")
        if self.every < 1:
            raise ValueError(f"every {self.every}: must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The shape of a decoder-only transformer.

    layers : blocks in the whole model.
    hidden : width H;  heads, kv_heads : query and key/value heads;  ffn : inner width of the MLP.
    vocab : tokens in the vocabulary; 0 leaves embedding and output matrix out of every count.
    seq : sequence length L.
    moe : experts in every n-th block, or None for a dense model.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    family: Family = "gpt"
    moe: Experts | None = None

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden}: must be a multiple of the {self.heads} heads")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads}: must be a multiple of the {self.kv_heads} kv_heads")

    @property
    def kv_width(self) -> int:
        """Width of the keys, and of the values, of one token in one block."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def attention_weights(self) -> int:
        """Parameters of one block's attention that take part in matrix products."""
        return 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width

    @property
    def mlp_weights(self) -> int:
        """Parameters of one MLP that take part in matrix products."""
        return (3 if self.family == "llama" else 2) * self.hidden * self.ffn

    @property
    def layer_weights(self) -> int:
        """Parameters of one dense block that take part in matrix products."""
        return self.attention_weights + self.mlp_weights

    @property
    def layer_parameters(self) -> int:
        """All parameters of one dense block: the matrices, norms and (gpt) biases."""
        if self.family == "llama":
            return self.layer_weights + 2 * self.hidden
        biases = 2 * self.hidden + 2 * self.kv_width + self.ffn + self.hidden
        return self.layer_weights + biases + 4 * self.hidden

    @property
    def moe_layers(self) -> int:
        """Blocks that have experts."""
        return self.layers // self.moe.every if self.moe else 0

    @property
    def expert_parameters(self) -> int:
        """All parameters of one expert: one MLP with its biases (gpt)."""
        return self.mlp_weights + (self.ffn + self.hidden if self.family == "gpt" else 0)

    @property
    def router_weights(self) -> int:
        """Parameters that choose the experts of a token, in one block that has experts."""
        return self.hidden * self.moe.experts if self.moe else 0

    @property
    def embedding_parameters(self) -> int:
        """Token embedding, and learned positions where the family has them."""
        if not self.vocab:
            return 0
        positions = self.seq * self.hidden if self.family == "gpt" else 0
        return self.vocab * self.hidden + positions

    @property
    def head_parameters(self) -> int:
        """Final norm and output matrix; a matrix tied to the embedding is a copy on the last stage."""
        norm = self.hidden if self.family == "llama" else 2 * self.hidden
        return self.vocab * self.hidden + norm if self.vocab else 0

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; a tied output matrix counts once."""
        tied = self.vocab * self.hidden if self.family == "gpt" else 0
        blocks = self.layers * self.layer_parameters
        if self.moe:
            more = (self.moe.experts - 1) * self.expert_parameters + self.router_weights
            blocks += self.moe_layers * more
        return blocks + self.embedding_parameters + self.head_parameters - tied

    def layer_forward_flops(self, sequences: int) -> float:
        """FLOPs of one dense block's forward pass over `sequences` sequences of L tokens.

        2 per weight and token, and 4·L²·H per sequence for the two attention products, which are counted
        whole, as kernels' utilization usually is, though a causal mask needs half.
        """
        tokens = sequences * self.seq
        return 2.0 * self.layer_weights * tokens + 4.0 * sequences * self.seq**2 * self.hidden

    def attention_core_flops(self, sequences: int) -> float:
        """FLOPs of the two products Q·Kᵀ and softmax·V of one block: what selective recomputation repeats."""
        return 4.0 * sequences * self.seq**2 * self.hidden

    def head_forward_flops(self, sequences: int) -> float:
        """FLOPs of the output matrix's forward pass: 2 per weight and token."""
        return 2.0 * self.vocab * self.hidden * sequences * self.seq

    def forward_flops(self, sequences: int) -> float:
        """FLOPs of the whole model's forward pass; of the experts only those that a token goes to count."""
        blocks = self.layers * self.layer_forward_flops(sequences)
        if self.moe:
            more = (self.moe.top_k - 1) * self.mlp_weights + self.router_weights
            blocks += self.moe_layers * 2.0 * more * sequences * self.seq
        return blocks + self.head_forward_flops(sequences)

    def activation_bytes(self, sequences: int, dtype_bytes: int) -> int:
        """Bytes that a stage hands on for one microbatch: B·L·H numbers (Atlas §3.2, footnote 2)."""
        return sequences * self.seq * self.hidden * dtype_bytes
