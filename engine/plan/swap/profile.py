"""The layer profile of a transformer on one GPU, computed; ATOM measures it operator by operator (§III-B).

A block has five layers, between which the chain can be cut: query/key/value, attention, its projection, the
MLP's widening and narrowing. The embedding comes before them, the output matrix after. FLOPs are those of
:class:`Transformer`. Backward is twice the forward pass; recomputation adds the forward pass again. Working
memory is all that the backward pass of one mini-batch needs (Korthikanti et al. 2022, §4.1, layer by layer).
With recomputation it exists for one mini-batch and one sub-model at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import InputError
from engine.model.profile import BACKWARD_OVER_FORWARD
from engine.model.transformer import Transformer
from engine.plan.swap.layers import Layer

LAYERS_PER_BLOCK = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a mini-batch of `sequences`: FLOP/s reached, bytes/s from the host, bytes of a number.

    recompute : the backward pass runs the forward pass again.
    gradients_in_layer : a layer's gradients are part of its memory (they leave the device with it).
    block_gap_s : seconds between the kernels of a block, of both passes of a mini-batch together.
    """

    flops_per_s: float
    host_bytes_per_s: float
    dtype_bytes: int
    sequences: int
    recompute: bool
    gradients_in_layer: bool
    block_gap_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Counts of one layer for one sequence.

    They are parameters, forward FLOPs, numbers and mask bytes stored for the backward pass, and numbers on
    the edge after it.
    """

    name: str
    parameters: int
    flops: float
    stored: int
    mask_bytes: int
    edge: int

    @property
    def in_block(self) -> bool:
        """Whether it is one of the five layers of a block."""
        return self.name.startswith("block ")


def layers_of(model: Transformer, rates: Rates) -> list[Layer]:
    """The chain of layers of `model`, from the embedding to the output matrix.

    A layer of a block takes as long as its kernels and its share of the block's gaps.
    """
    return [_layer(operator, rates) for operator in operators(model)]


def stored_bytes(model: Transformer, rates: Rates) -> float:
    """Bytes that one mini-batch stores for the backward pass in all layers."""
    return sum(_stored_bytes(operator, rates) for operator in operators(model))


def operators(model: Transformer) -> Iterator[Operator]:
    """Every layer of the chain with its counts. Raises InputError for a model with experts."""
    if model.moe:
        raise InputError("model.moe", model.moe.experts, "swap plans are for dense models")
    tokens, width = model.seq, model.hidden
    if model.vocab:
        yield Operator(
            name="embedding",
            parameters=model.embedding_parameters,
            flops=0.0,
            stored=0,
            mask_bytes=0,
            edge=tokens * width,
        )
    for block in range(model.layers):
        yield from _block(model, f"block {block}")
    if model.vocab:
        # stored: the norm's input and output, and the probabilities over the vocabulary
        yield Operator(
            name="head",
            parameters=model.head_parameters,
            flops=model.head_forward_flops(1),
            stored=2 * tokens * width + tokens * model.vocab,
            mask_bytes=0,
            edge=0,
        )


def _block(model: Transformer, name: str) -> Iterator[Operator]:
    tokens, width, ffn, has = model.seq, model.hidden, model.ffn, model.has
    stream = tokens * width
    norms = has.block_norms // 2 * model.norm_parameters
    *_, (_, out_width, _, _) = model.attention_products
    out = model.value_width * out_width + has.out_bias * width
    yield Operator(
        name=f"{name}: query, key, value",
        parameters=model.attention_parameters - out + norms,
        flops=2.0 * (model.attention_weights - model.value_width * out_width) * tokens,
        stored=2 * stream,
        mask_bytes=0,
        edge=stream + tokens * model.qkv_width,
    )
    # With dropout, as ATOM ran it, softmax and dropout of the scores are stored; a fused kernel stores none.
    scores = round(model.heads * tokens * model.attended) if has.dropout else 0
    yield Operator(
        name=f"{name}: attention",
        parameters=0,
        flops=model.attention_core_flops(1),
        stored=tokens * model.qkv_width + 2 * scores,
        mask_bytes=scores,
        edge=stream + tokens * model.value_width,
    )
    yield Operator(
        name=f"{name}: projection",
        parameters=out,
        flops=2.0 * model.value_width * out_width * tokens,
        stored=tokens * model.value_width,
        mask_bytes=has.dropout * stream,
        edge=stream,
    )
    inner = model.mlp_matrices - 1  # a gated MLP has two matrices and stores both products
    yield Operator(
        name=f"{name}: widening",
        parameters=inner * (width + has.mlp_bias) * ffn + norms,
        flops=2.0 * inner * width * ffn * tokens,
        stored=2 * stream + inner * tokens * ffn,
        mask_bytes=0,
        edge=stream + tokens * ffn,
    )
    yield Operator(
        name=f"{name}: narrowing",
        parameters=width * (ffn + has.mlp_bias),
        flops=2.0 * width * ffn * tokens,
        stored=tokens * ffn,
        mask_bytes=has.dropout * stream,
        edge=stream,
    )


def _layer(operator: Operator, rates: Rates) -> Layer:
    parameter_bytes = operator.parameters * rates.dtype_bytes
    forward_s = operator.flops * rates.sequences / rates.flops_per_s
    backward_over_forward = BACKWARD_OVER_FORWARD + rates.recompute
    # As many kernels run in a backward pass as in so many forward passes, and each has a gap before it.
    gap_s = rates.block_gap_s / LAYERS_PER_BLOCK if operator.in_block else 0.0
    forward_gap_s = gap_s / (1 + backward_over_forward)
    copies = 2 if rates.gradients_in_layer else 1
    return Layer(
        name=operator.name,
        memory_bytes=copies * parameter_bytes + (_stored_bytes(operator, rates) if rates.recompute else 0.0),
        forward_s=forward_s + forward_gap_s,
        backward_s=backward_over_forward * (forward_s + forward_gap_s),
        load_s=parameter_bytes / rates.host_bytes_per_s,
        cut_bytes=operator.edge * rates.sequences * rates.dtype_bytes,
        parameter_bytes=parameter_bytes,
        gap_s=gap_s,
    )


def _stored_bytes(operator: Operator, rates: Rates) -> float:
    return rates.sequences * (operator.stored * rates.dtype_bytes + operator.mask_bytes)
