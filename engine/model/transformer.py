"""Transformer shapes: parameters, FLOPs and activation bytes, counted block by block.

Two families. ``gpt``: two-matrix MLP, biases, LayerNorm, learned positions, output matrix tied to the
embedding. ``llama``: gated three-matrix MLP, grouped-query attention, RMSNorm, no biases, rotary positions,
output matrix of its own.
"""

from dataclasses import dataclass
from typing import Literal

Family = Literal["gpt", "llama"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The shape of a decoder-only transformer.

    layers : blocks in the whole model.
    hidden : width H;  heads, kv_heads : query and key/value heads;  ffn : inner width of the MLP.
    vocab : tokens in the vocabulary; 0 leaves embedding and output matrix out of every count.
    seq : sequence length L.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    family: Family = "gpt"

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden}: must be a multiple of the {self.heads} heads")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads}: must be a multiple of the {self.kv_heads} kv_heads")

    @property
    def layer_weights(self) -> int:
        """Parameters of one block that take part in matrix products."""
        kv_width = self.hidden // self.heads * self.kv_heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv_width
        matrices = 3 if self.family == "llama" else 2
        return attention + matrices * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """All parameters of one block: the matrices, norms and (gpt) biases."""
        if self.family == "llama":
            return self.layer_weights + 2 * self.hidden
        kv_width = self.hidden // self.heads * self.kv_heads
        biases = 2 * self.hidden + 2 * kv_width + self.ffn + self.hidden
        return self.layer_weights + biases + 4 * self.hidden

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
        return blocks + self.embedding_parameters + self.head_parameters - tied

    def layer_forward_flops(self, sequences: int) -> float:
        """FLOPs of one block's forward pass over `sequences` sequences of L tokens.

        2 per weight and token, and 4·L²·H per sequence for the two attention products, which are counted
        whole, as kernels' utilization usually is, though a causal mask needs half.
        """
        tokens = sequences * self.seq
        return 2.0 * self.layer_weights * tokens + 4.0 * sequences * self.seq**2 * self.hidden

    def head_forward_flops(self, sequences: int) -> float:
        """FLOPs of the output matrix's forward pass: 2 per weight and token."""
        return 2.0 * self.vocab * self.hidden * sequences * self.seq

    def activation_bytes(self, sequences: int, dtype_bytes: int) -> int:
        """Bytes that a stage hands on for one microbatch: B·L·H numbers (Atlas §3.2, footnote 2)."""
        return sequences * self.seq * self.hidden * dtype_bytes
