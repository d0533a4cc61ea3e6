"""Transformer shapes: parameters, FLOPs and activation bytes, counted block by block.

A shape is sizes and what its family has beyond them (:class:`Features`). Two families are our own. ``gpt``:
two-matrix MLP, biases, LayerNorm, learned positions, output matrix tied to the embedding. ``llama``: gated
three-matrix MLP, RMSNorm, no biases, rotary positions, output matrix of its own. engine.model.families has
those of Hugging Face. In a model with experts, blocks have many MLPs and a router in place of one.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What the models of a family have beyond their sizes.

    gated : the MLP has three matrices, not two.
    qkv_bias, out_bias, mlp_bias, head_bias : biases of the products into attention, out of it, of the MLP,
        and of the output matrix.
    norm_bias : norms have biases beside their weights (LayerNorm).
    block_norms : norms of a block over the hidden size.
    query_norm, key_norm : weights of the norms of queries and of keys, in each block.
    final_norm : there is one before the output matrix.
    learned_positions : embedded, not computed.
    tied : the output matrix is the embedding.
    dropout : of attention and MLP, whose masks are stored.
    """

    gated: bool
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    norm_bias: bool = False
    block_norms: int = 2
    query_norm: int = 0
    key_norm: int = 0
    final_norm: bool = True
    learned_positions: bool = False
    tied: bool = False
    dropout: bool = False


GPT = Features(
    gated=False,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    norm_bias=True,
    learned_positions=True,
    tied=True,
    dropout=True,
)
LLAMA = Features(gated=True)
OWN_FAMILIES = {"gpt": GPT, "llama": LLAMA}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: the MLP of every `every`-th block is `experts` MLPs; a token goes to `top_k`.

    width : inner width of an expert; None: that of a dense block's MLP.
    shared : inner width of the MLP that all tokens go through, beside the chosen experts; 0: there is none.
    dense : numbers of the blocks, from 0, that have no experts all the same.
    """

    experts: int
    top_k: int = 1
    every: int = 1
    width: int | None = None
    shared: int = 0
    dense: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k {self.top_k}: must be from 1 to the {self.experts} experts")
        if self.every < 1:
            raise ValueError(f"every {self.every}: must be 1 or more")

    def blocks(self, start: int, end: int) -> int:
        """How many of the blocks from `start` to before `end` have experts."""
        apart = sum(start <= block < end and (block + 1) % self.every == 0 for block in self.dense)
        return end // self.every - start // self.every - apart


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, §2.1): queries, keys and values come from narrow latents.

    query_rank : width of the latent of queries; 0: they come from the hidden state.
    key_rank : width of the latent of keys and values, which is what is cached, with `rope` numbers of a key
        that all heads share.
    plain, rope : numbers of a head's query and key without and with rotary positions.  value : of its value.
    """

    query_rank: int
    key_rank: int
    plain: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The shape of a decoder-only transformer.

    layers : blocks in the whole model.
    hidden : width H;  heads, kv_heads : query and key/value heads;  ffn : inner width of the MLP.
    vocab : tokens in the vocabulary; 0 leaves embedding and output matrix out of every count.
    seq : sequence length L.
    family : gpt, llama, or the `model_type` of a Hugging Face config.
    head_dim : numbers of a head; 0: hidden / heads.
    features : what the family has beyond its sizes; None for gpt and llama.
    positions : learned ones; None: as many as the sequence is long.
    window, windowed_layers : tokens that a token attends to in so many of the layers; 0: to all before it.
    latent : of multi-head latent attention.
    moe : experts in blocks, or None for a dense model.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    family: str = "gpt"
    head_dim: int = 0
    features: Features | None = None
    positions: int | None = None
    window: int = 0
    windowed_layers: int = 0
    latent: LatentAttention | None = None
    moe: Experts | None = None

    def __post_init__(self) -> None:
        if not self.head_dim and self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden}: must be a multiple of the {self.heads} heads")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads}: must be a multiple of the {self.kv_heads} kv_heads")
        if self.features is None and self.family not in OWN_FAMILIES:
            raise ValueError(f"family {self.family}: allowed without features: {', '.join(OWN_FAMILIES)}")

    @property
    def has(self) -> Features:
        """What its family has beyond sizes."""
        return self.features or OWN_FAMILIES[self.family]

    @property
    def head_width(self) -> int:
        """Numbers of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Width of the queries of one token in one block."""
        if self.latent:
            return self.heads * (self.latent.plain + self.latent.rope)
        return self.heads * self.head_width

    @property
    def value_width(self) -> int:
        """Width of what one token's attention gives to the product out of it."""
        return self.heads * self.latent.value if self.latent else self.query_width

    @property
    def kv_width(self) -> int:
        """Width of the keys, and of the values, of one token in one block."""
        return self.kv_heads * self.head_width

    @property
    def qkv_width(self) -> int:
        """Numbers of the queries, keys and values of one token in one block."""
        if self.latent:
            return 2 * self.query_width + self.value_width
        return self.query_width + 2 * self.kv_width

    @property
    def keys_and_values_width(self) -> int:
        """Numbers of the keys and values of one token in one block, as attention's products take them."""
        return self.qkv_width - self.query_width

    @property
    def cached_width(self) -> int:
        """Numbers that a cache keeps of one token in one block: keys and values, or their latent."""
        return self.latent.key_rank + self.latent.rope if self.latent else 2 * self.kv_width

    @property
    def attention_products(self) -> tuple[tuple[int, int, int, int], ...]:
        """The products around one block's attention, in order: width in, width out, and for each of the two
        widths 1 if tensor parallelism divides it, else 0.
        """
        latent, hidden = self.latent, self.hidden
        if latent is None:
            into = (hidden, self.qkv_width, 0, 1)
            return into, (self.query_width, hidden, 1, 0)
        queries: tuple[tuple[int, int, int, int], ...] = ((hidden, self.query_width, 0, 1),)
        if latent.query_rank:
            queries = ((hidden, latent.query_rank, 0, 0), (latent.query_rank, self.query_width, 0, 1))
        return (
            *queries,
            (hidden, latent.key_rank + latent.rope, 0, 0),
            (latent.key_rank, self.heads * (latent.plain + latent.value), 0, 1),
            (self.value_width, hidden, 1, 0),
        )

    @property
    def attention_weights(self) -> int:
        """Parameters of one block's attention that take part in matrix products."""
        return sum(inner * outer for inner, outer, _, _ in self.attention_products)

    @property
    def attention_parameters(self) -> int:
        """All parameters of one block's attention: matrices, biases, norms of queries, keys and latents."""
        has, latent = self.has, self.latent
        norms, into = has.query_norm + has.key_norm, self.qkv_width
        if latent is not None:  # only what comes from the hidden state has biases
            norms += latent.query_rank + latent.key_rank
            into = latent.query_rank + latent.key_rank + latent.rope
        return self.attention_weights + has.qkv_bias * into + has.out_bias * self.hidden + norms

    @property
    def mlp_matrices(self) -> int:
        """Matrices of an MLP."""
        return 3 if self.has.gated else 2

    @property
    def mlp_weights(self) -> int:
        """Parameters of a dense block's MLP that take part in matrix products."""
        return self.mlp_matrices * self.hidden * self.ffn

    @property
    def mlp_parameters(self) -> int:
        """All parameters of a dense block's MLP."""
        return self._mlp(self.ffn)

    def _mlp(self, width: int) -> int:
        biases = (self.mlp_matrices - 1) * width + self.hidden if self.has.mlp_bias else 0
        return self.mlp_matrices * self.hidden * width + biases

    @property
    def layer_weights(self) -> int:
        """Parameters of one dense block that take part in matrix products."""
        return self.attention_weights + self.mlp_weights

    @property
    def layer_parameters(self) -> int:
        """All parameters of one dense block: matrices, norms and biases."""
        return self.attention_parameters + self.mlp_parameters + self.has.block_norms * self.norm_parameters

    @property
    def norm_parameters(self) -> int:
        """Of one norm over the hidden size."""
        return (2 if self.has.norm_bias else 1) * self.hidden

    @property
    def moe_layers(self) -> int:
        """Blocks that have experts."""
        return self.moe_blocks(0, self.layers)

    def moe_blocks(self, start: int, end: int) -> int:
        """How many of the blocks from `start` to before `end` have experts."""
        return self.moe.blocks(start, end) if self.moe else 0

    @property
    def expert_width(self) -> int:
        """Inner width of an expert."""
        return (self.moe.width if self.moe else None) or self.ffn

    @property
    def expert_parameters(self) -> int:
        """All parameters of one expert."""
        return self._mlp(self.expert_width)

    @property
    def block_experts_parameters(self) -> int:
        """All parameters of the experts of one block that has experts."""
        return self.moe.experts * self.expert_parameters if self.moe else 0

    @property
    def router_weights(self) -> int:
        """Parameters that choose the experts of a token, in one block that has experts."""
        return self.hidden * self.moe.experts if self.moe else 0

    @property
    def beside_experts(self) -> int:
        """Parameters that a block with experts has beyond those of a dense one, its experts left out."""
        if self.moe is None:
            return 0
        shared = self._mlp(self.moe.shared) if self.moe.shared else 0
        return self.router_weights + shared - self.mlp_parameters

    @property
    def embedding_parameters(self) -> int:
        """Token embedding, and learned positions where the family has them."""
        if not self.vocab:
            return 0
        positions = 0
        if self.has.learned_positions:
            positions = self.seq if self.positions is None else self.positions
        return (self.vocab + positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Final norm and output matrix; a matrix tied to the embedding is a copy on the last stage."""
        if not self.vocab:
            return 0
        return self.vocab * (self.hidden + self.has.head_bias) + self.has.final_norm * self.norm_parameters

    @property
    def tied_parameters(self) -> int:
        """Parameters that embedding and output matrix share, where one GPU has both."""
        return self.vocab * self.hidden if self.has.tied else 0

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; a tied output matrix counts once."""
        blocks = self.layers * self.layer_parameters
        if self.moe:
            blocks += self.moe_layers * (self.moe.experts * self.expert_parameters + self.beside_experts)
        return blocks + self.embedding_parameters + self.head_parameters - self.tied_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: of the experts those that it goes to."""
        if self.moe is None:
            return self.parameters
        return (
            self.parameters - self.moe_layers * (self.moe.experts - self.moe.top_k) * self.expert_parameters
        )

    @property
    def attended(self) -> float:
        """Tokens whose keys a token is multiplied with, counted whole: the mean over the layers."""
        near = min(self.window, self.seq) if self.window else self.seq
        return self.seq + (near - self.seq) * self.windowed_layers / self.layers

    def layer_forward_flops(self, sequences: int) -> float:
        """FLOPs of one dense block's forward pass over `sequences` sequences of L tokens.

        2 per weight and token, and the two attention products, which are counted whole, as kernels'
        utilization usually is, though a causal mask needs half.
        """
        return 2.0 * self.layer_weights * sequences * self.seq + self.attention_core_flops(sequences)

    def attention_core_flops(self, sequences: int) -> float:
        """FLOPs of the two products Q·Kᵀ and softmax·V of one block: what selective recomputation repeats.

        4·L²·H a sequence, where heads fill the hidden size and attend to all tokens.
        """
        return 2.0 * sequences * self.seq * self.attended * (self.query_width + self.value_width)

    def head_forward_flops(self, sequences: int) -> float:
        """FLOPs of the output matrix's forward pass: 2 per weight and token."""
        return 2.0 * self.vocab * self.hidden * sequences * self.seq

    def forward_flops(self, sequences: int) -> float:
        """FLOPs of the whole model's forward pass; of the experts only those that a token goes to count."""
        blocks = self.layers * self.layer_forward_flops(sequences)
        blocks += self.moe_layers * self.more_expert_flops(sequences)
        return blocks + self.head_forward_flops(sequences)

    def more_expert_flops(self, sequences: int) -> float:
        """FLOPs of the forward pass of one block with experts, beyond those of a dense one."""
        return 2.0 * self._more_active_weights * sequences * self.seq

    @property
    def _more_active_weights(self) -> int:
        """Weights of products that a token uses in a block with experts, beyond those of a dense block."""
        if self.moe is None:
            return 0
        width = self.moe.top_k * self.expert_width + self.moe.shared - self.ffn
        return self.mlp_matrices * self.hidden * width + self.router_weights

    @property
    def active_weights(self) -> int:
        """Weights of all products that a token uses, the output matrix among them."""
        blocks = self.layers * self.layer_weights + self.moe_layers * self._more_active_weights
        return blocks + self.vocab * self.hidden

    def activation_bytes(self, sequences: int, dtype_bytes: int) -> int:
        """Bytes that a stage hands on for one microbatch: B·L·H numbers (Atlas §3.2, footnote 2)."""
        return sequences * self.seq * self.hidden * dtype_bytes


def is_own(shape: Transformer) -> bool:
    """Whether its blocks are those of our own families; of a config also embedding and output matrix."""
    own = OWN_FAMILIES.get(shape.family)
    plain = shape.head_width * shape.heads == shape.hidden and not shape.windowed_layers
    return own is not None and shape.has == own and plain and shape.latent is None and shape.moe is None
