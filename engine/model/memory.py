"""Bytes that one GPU holds: weights, gradients, optimizer and activations in training; weights and KV in
serving.

Activations per block follow Korthikanti et al. (2022, §4, table 2): s·b·h·(10 + 24/t + 5·a·s/(h·t)) without
recomputation, s·b·h·(34 + 5·a·s/h)/t with sequence parallelism, 34·s·b·h/t with selective recomputation as
well, 2·s·b·h if only inputs are stored. Mixed precision with Adam stores 16 bytes a parameter: weight and
gradient of two, fp32 master weight and two moments (Rajbhandari et al. 2020, §3.1).
"""

from dataclasses import dataclass, replace

import numpy as np

from engine.model.context_parallel import part_bytes
from engine.model.kernels import WIDTH, How
from engine.model.layout import Strategies, Values, expert_parallel, fullest_stage, last_stage
from engine.model.transformer import Transformer

WEIGHT_BYTES = 2
GRADIENT_BYTES = 2
OPTIMIZER_STATE_BYTES = 12
# The loss is computed in fp32, and its backward pass holds three numbers a logit: log softmax, its gradient
# and the gradient of the logit. Measured: 12.0 bytes, bf16 and fp32 alike (docs/gpu.md).
LOGIT_COPIES = 3
LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Number formats of stored activations and parameters.

    width : bytes of a number of the activations; parameter_bytes : of a parameter with its gradient and its
        optimizer state; copy_bytes : of those, the copy that is computed with, which an embedding has not;
        optimizer_bytes : of those, what ZeRO-1 shares: moments, and master weights where a run shares them;
        dropout : a model that has it stores masks, and softmax once more; fused_mlp : a gated MLP stores
        three numbers of its inner width, not four; workspace_bytes : what libraries keep beside tensors;
        rms_norm_bytes : what an RMS norm keeps of a number of its input; 0: the input, as other norms do;
        gradient_bytes : of a number of a weight's gradient before it is added to the sum of those so far; 0:
        the product's own kernel adds it;
        cast_bytes : of a weight's copy that each microbatch makes for itself; whole_logits : every GPU of a
        stage has those of the whole vocabulary.
    """

    width: int
    parameter_bytes: int
    dropout: bool
    copy_bytes: int = 0
    optimizer_bytes: int = OPTIMIZER_STATE_BYTES
    fused_mlp: bool = True
    workspace_bytes: int = 0
    rms_norm_bytes: int = 0
    gradient_bytes: int = 0
    cast_bytes: int = 0
    whole_logits: bool = False

    def norm_bytes(self, model: Transformer) -> int:
        """Bytes that a norm of a model stores of each number of its input."""
        return self.rms_norm_bytes if self.rms_norm_bytes and not model.has.norm_bias else self.width


MIXED = Numbers(
    width=WIDTH, parameter_bytes=WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_STATE_BYTES, dropout=True
)
# Share of the planned bytes by which a stage may take more: 8.8 % at most in 40 cases
# (benchmarks/memory_grid.py). A plan sets it aside if its `memory_margin` says so.
ALLOCATOR_MARGIN = 0.1
# What a process takes of a GPU's memory before its first tensor: CUDA's context. Measured: 0.70 GB.
CUDA_CONTEXT_BYTES = 750_000_000
# Context parallelism holds keys and values of another GPU in use and the next on their way, and the gradients
# of both, in the backward pass.
RING_PARTS = 4
CUDA_WORKSPACE_BYTES = 2 * 32 * 2**20  # of cuBLAS and cuBLASLt on Hopper, taken from torch's allocator
# A run of ours in bf16: fp32 weight, gradient and AdamW's two moments, and the weight that is computed with.
OF_A_RUN = Numbers(
    width=WIDTH,
    parameter_bytes=4 * 4 + WIDTH,
    copy_bytes=WIDTH,
    optimizer_bytes=2 * 4,  # the moments: fp32 weights stay whole
    dropout=False,
    fused_mlp=False,
    workspace_bytes=CUDA_WORKSPACE_BYTES + CUDA_CONTEXT_BYTES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one GPU of one stage.

    state_bytes : always.  stored_bytes : for each microbatch in flight.  full_bytes : in addition, for each
        microbatch whose full activations are present.  between_bytes : in addition, for each microbatch whose
        B is over and whose W is not: gradients of the outputs of all modules with weights.
        once_bytes : of the backward pass under way: its gradients of activations.
        serving_bytes : always, for prefill in its bubbles: weights and KV caches.
    optimizer_bytes : of the state, what ZeRO-1 shards over replicas; expert_optimizer_bytes : of those, the
        experts', which fewer replicas have.
    """

    state_bytes: float
    stored_bytes: float
    full_bytes: float
    between_bytes: float = 0.0
    once_bytes: float = 0.0
    serving_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    expert_optimizer_bytes: float = 0.0

    def sharded_over(self, replicas: int, ep: int = 1) -> "StageMemory":
        """With the optimizer's state spread over `replicas` (ZeRO-1; Rajbhandari et al. 2020, §5.1).

        ep : expert-parallel degree: of `replicas`, one in `ep` holds the same experts.
        """
        experts = self.expert_optimizer_bytes / max(1.0, replicas / ep)
        shard = (self.optimizer_bytes - self.expert_optimizer_bytes) / replicas + experts
        return replace(
            self,
            state_bytes=self.state_bytes - self.optimizer_bytes + shard,
            optimizer_bytes=shard,
            expert_optimizer_bytes=experts,
        )

    @property
    def always_bytes(self) -> float:
        """Without any microbatch."""
        return self.state_bytes + self.serving_bytes

    def total_bytes(self, in_flight: int, full: int = 1) -> float:
        """With `in_flight` microbatches in flight, `full` of them with all their activations."""
        held = in_flight * self.stored_bytes + full * self.full_bytes
        return self.always_bytes + held + self.once_bytes

    def most_in_flight(self, memory_bytes: float, full: int = 1) -> int:
        """Microbatches in flight that `memory_bytes` hold; below 1: not even one."""
        left = memory_bytes - self.total_bytes(0, full)
        return -1 if left < 0 else int(left // self.stored_bytes)

    def most_full(self, memory_bytes: float, in_flight: int) -> int | None:
        """Of `in_flight` microbatches, the number that may have all their activations present; None: any
        number.
        """
        if self.full_bytes == 0:
            return None
        return int((memory_bytes - self.total_bytes(in_flight, 0)) // self.full_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """Bytes on one GPU of the fullest stage."""

    weights: Values
    gradients: Values
    optimizer: Values
    activations: Values

    @property
    def total(self) -> Values:
        return self.weights + self.gradients + self.optimizer + self.activations


def block_activations(
    model: Transformer, how: How, micro_batch: Values, tp: Values, stored: Numbers = MIXED
) -> Values:
    """Bytes that one dense block stores of one microbatch until its backward pass, on one of `tp` GPUs."""
    numbers, width = 1.0 * micro_batch * model.seq * model.hidden, stored.width
    whole = numbers / (tp if how.sequence_parallel else 1)
    if how.recompute == "full":
        return width * whole
    masks = 2 if model.has.dropout and stored.dropout else 0
    # Inputs of the norms, of the attention and of the MLP; masks of the two dropouts.
    activations = (2 * width + model.has.block_norms * stored.norm_bytes(model) + masks) * whole
    # Queries and the input of the output product, keys and values; activations of the MLP.
    activations += width * _attention_numbers(model) / model.hidden * numbers / tp
    inner = model.mlp_matrices + (1 if model.has.gated and not stored.fused_mlp else 0)
    activations += width * inner * model.ffn / model.hidden * numbers / tp
    if how.recompute == "selective" or how.fused_attention:
        return activations
    return activations + _scores(model, micro_batch, tp, stored)


def _attention_numbers(model: Transformer) -> int:
    """Numbers that attention stores of a token: queries, keys, values, its result, and latents if any."""
    latents = model.latent.query_rank + model.latent.key_rank if model.latent else 0
    return model.qkv_width + model.value_width + latents


def more_of_experts(model: Transformer, how: How, micro_batch: Values, tp: Values) -> Values:
    """Bytes that a block with experts stores beyond a dense one.

    These are the MLP's numbers for every further expert of a token, and the token as sent and as returned.
    """
    if model.moe is None or how.recompute == "full":
        return 0.0 * micro_batch
    numbers = 1.0 * WIDTH * micro_batch * model.seq / tp
    width = model.moe.top_k * model.expert_width + model.moe.shared - model.ffn
    return numbers * (model.mlp_matrices * width + 2 * model.hidden * model.moe.top_k)


def _scores(model: Transformer, micro_batch: Values, tp: Values, stored: Numbers) -> Values:
    """Softmax output; with dropout also its mask and output."""
    width = stored.width
    each = width + (1 + width if model.has.dropout and stored.dropout else 0)
    return float(each * model.heads * model.seq * model.attended) * micro_batch / tp


def working_set(
    model: Transformer, how: How, micro_batch: Values, tp: Values, stored: Numbers = MIXED
) -> Values:
    """Bytes of one block that exist only while it is recomputed, beyond those stored in any case."""
    if how.recompute == "none":
        return 0.0 * micro_batch
    with_all = How(
        recompute="none",
        sequence_parallel=how.sequence_parallel,
        fused_attention=how.fused_attention,
    )
    full = block_activations(model, with_all, micro_batch, tp, stored)
    return full - block_activations(model, how, micro_batch, tp, stored)


def stage_memory(
    model: Transformer,
    how: How,
    *,
    tp: int,
    micro_batch: int,
    blocks: int,
    is_first: bool,
    is_last: bool,
    moe_blocks: int = 0,
    cp: int = 1,
    ep: int = 1,
    stored: Numbers = OF_A_RUN,
    serving_bytes: float = 0.0,
) -> StageMemory:
    """One stage of `blocks` blocks on one of its `tp` · `cp` GPUs.

    moe_blocks : of the blocks, those with experts.
    cp : context-parallel degree: a GPU has 1/cp of the tokens of each sequence.
    ep : expert-parallel degree: `ep` replicas of the stage share its experts.
    serving_bytes : reserved for prefill.

    With full recomputation a stage repeats a microbatch's blocks all at once, as a schedule's R does; with
    selective one block after the other, within its backward pass. The last stage also holds
    the logits, in fp32 at least: one number of each, and two more while the loss goes backward.
    """
    sequences = micro_batch / cp  # all activations grow with a GPU's tokens
    numbers = 1.0 * sequences * model.seq
    logits = max(LOGIT_BYTES, stored.width) * numbers * model.vocab if is_last else 0.0
    logits /= 1 if stored.whole_logits else tp
    into_head = (stored.width + stored.norm_bytes(model)) * numbers * model.hidden  # of norm and product
    head = logits + (into_head if is_last and model.vocab else 0.0)
    stored_bytes = float(blocks * block_activations(model, how, sequences, tp, stored))
    stored_bytes += float(moe_blocks * more_of_experts(model, how, sequences, tp))
    again = how.recompute == "full"
    repeated = working_set(model, how, sequences, tp, stored)
    weights = blocks * model.layer_parameters + (model.head_parameters if is_last else 0)
    head += stored.cast_bytes * weights / tp
    experts = moe_blocks * model.block_experts_parameters / ep
    parameters = _beside_experts(model, blocks, moe_blocks, is_first=is_first, is_last=is_last) + experts
    in_block, in_head = _gradients(model, stored, numbers, tp, logits)
    # An embedding has no copy: it is computed with its master weight.
    not_copied = model.embedding_parameters if is_first and stored.copy_bytes else 0
    return StageMemory(
        state_bytes=float(stored.parameter_bytes * parameters - stored.copy_bytes * not_copied) / tp,
        stored_bytes=stored_bytes + (0.0 if again else head),
        full_bytes=float(blocks * repeated + head) if again else 0.0,
        between_bytes=stored.width * numbers * _output_numbers(model, blocks, tp, is_first, is_last),
        once_bytes=float(max(in_head, in_block + (0.0 if again else repeated)))
        + (RING_PARTS * part_bytes(model, sequences, tp) if cp > 1 else 0.0)
        + stored.workspace_bytes,
        serving_bytes=serving_bytes,
        optimizer_bytes=float(stored.optimizer_bytes * parameters) / tp,
        expert_optimizer_bytes=float(stored.optimizer_bytes * experts) / tp,
    )


def _gradients(
    model: Transformer, stored: Numbers, numbers: float, tp: int, logits: float
) -> tuple[float, float]:
    """Bytes of the gradients that are there at once inside a block, and inside the head.

    Those of activations, or that of the largest weight with those that it is computed from.
    """
    inner, outer = stored.width * numbers * model.ffn / tp, stored.width * numbers * model.hidden
    largest = stored.gradient_bytes * model.hidden * max(model.ffn, model.qkv_width) / tp
    output = stored.gradient_bytes * model.hidden * model.vocab / tp if logits else 0.0
    return max(2 * inner, largest + inner) + outer, max((LOGIT_COPIES - 1) * logits, output)


def _output_numbers(model: Transformer, blocks: int, tp: int, is_first: bool, is_last: bool) -> float:
    """Numbers of one token's outputs of all modules of a stage that have weights."""
    inner = model.qkv_width + (model.mlp_matrices - 1) * model.ffn
    numbers = blocks * (inner / tp + (2 + model.has.block_norms) * model.hidden)
    numbers += model.hidden if is_first else 0
    return numbers + (model.hidden + model.vocab / tp if is_last else 0)


def _beside_experts(
    model: Transformer, blocks: int, moe_blocks: int, *, is_first: bool, is_last: bool
) -> int:
    """Parameters of a stage without its experts."""
    parameters = blocks * model.layer_parameters + moe_blocks * model.beside_experts
    parameters += model.embedding_parameters if is_first else 0
    parameters += model.head_parameters if is_last else 0
    return parameters - (model.tied_parameters if is_first and is_last else 0)


def blocks_in_flight(model: Transformer, strategies: Strategies, batch: int) -> Values:
    """Most block activations that the first stage holds: 1F1B holds min(M, P) microbatches there.

    Interleaving holds P + (P−1)/v of them (Korthikanti et al. 2022, §4.2.3).
    """
    pp, chunks = strategies.pp, strategies.interleave
    deep = np.where(chunks > 1, pp + (pp - 1) / chunks, pp)
    return fullest_stage(model.layers, pp) * np.minimum(deep, strategies.microbatches(batch))


def stage_parameters(model: Transformer, strategies: Strategies) -> tuple[Values, Values]:
    """Parameters on one GPU of the first and of the last stage; experts spread over their group.

    Norms and the biases that every tensor-parallel peer holds are counted as if they were split too.
    """
    embedding, head = model.embedding_parameters, model.head_parameters
    pp, tp = strategies.pp, strategies.tp
    first = fullest_stage(model.layers, pp) * model.layer_parameters + embedding
    last = last_stage(model.layers, pp) * model.layer_parameters + head
    alone = np.equal(pp, 1)
    own = stage_experts(model, strategies)
    first = first + np.where(alone, head, 0) + own
    last = last + np.where(alone, embedding, 0) + own
    tied = np.where(alone, model.tied_parameters, 0)
    return (first - tied) / tp, (last - tied) / tp


def stage_experts(model: Transformer, strategies: Strategies) -> Values:
    """Parameters of routers and experts, beyond one MLP a block, on all `tp` GPUs of the fullest stage."""
    if model.moe is None:
        return 0
    here = moe_blocks(model, strategies.pp)
    experts = model.moe.experts / expert_parallel(model, strategies.dp)
    return here * (experts * model.expert_parameters + model.beside_experts)


def unshared_parameters(model: Transformer, strategies: Strategies) -> Values:
    """Parameters of all experts that a GPU holds, on all `tp` GPUs of the fullest stage.

    Replicas that hold other experts have no part in their gradients. Routers are on every replica.
    """
    if model.moe is None:
        return 0
    local = model.moe.experts / expert_parallel(model, strategies.dp)
    return moe_blocks(model, strategies.pp) * local * model.expert_parameters


def moe_blocks(model: Transformer, pp: Values) -> Values:
    """Blocks with experts in the stage that has most."""
    if model.moe is None:
        return 0 * pp
    return np.minimum(-(-fullest_stage(model.layers, pp) // model.moe.every), model.moe_layers)


def training_memory(
    model: Transformer, how: How, strategies: Strategies, batch: int, *, shard_optimizer: bool = False
) -> TrainingMemory:
    """Bytes on one GPU of the stage that needs most.

    shard_optimizer : each data-parallel peer holds its share of the optimizer's state (ZeRO, stage 1).
    """
    first, last = stage_parameters(model, strategies)
    parameters = np.maximum(first, last)
    tp, micro_batch = strategies.tp, strategies.micro_batch
    activations = blocks_in_flight(model, strategies, batch) * block_activations(model, how, micro_batch, tp)
    share = moe_blocks(model, strategies.pp) / fullest_stage(model.layers, strategies.pp)
    in_flight = blocks_in_flight(model, strategies, batch)
    activations = activations + in_flight * share * more_of_experts(model, how, micro_batch, tp)
    activations = activations + working_set(model, how, micro_batch, tp)
    # The last stage has one microbatch in flight, and its logits.
    logits = (
        np.where(np.equal(strategies.pp, 1), float(LOGIT_COPIES * LOGIT_BYTES), 0.0)
        * micro_batch
        * model.seq
        * model.vocab
        / tp
    )
    return TrainingMemory(
        weights=WEIGHT_BYTES * parameters,
        gradients=GRADIENT_BYTES * parameters,
        optimizer=OPTIMIZER_STATE_BYTES * parameters / (strategies.dp if shard_optimizer else 1),
        activations=activations + logits,
    )


def kv_bytes_per_token(model: Transformer, dtype_bytes: int = WIDTH) -> int:
    """What is cached of one token in every block: keys and values, or their latent."""
    return model.layers * model.cached_width * dtype_bytes
