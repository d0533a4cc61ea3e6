"""Seconds that one GPU computes for one block: a roofline per matrix product, memory traffic for all else.

A matrix product takes the longer of two times: its FLOPs at the reached share of peak, and its operands
through device memory. Element-wise kernels (norms, activations, softmax, dropout and residuals, fused as
Megatron-LM fuses them) take the time of their reads and writes. Numbers are two bytes wide, dropout masks
one; a `llama` has no dropout. Tensor parallelism of t splits heads and MLP widths. Sequence parallelism also
splits the norms, dropouts and residuals, which otherwise every GPU of the group computes whole (Korthikanti
et al. 2022, §4).

All functions take `micro_batch` and `tp` as numbers or numpy arrays of one shape. Products begin with a
float: numpy's integers would wrap around for absurdly large models.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.cluster.gpus import Gpu
from engine.model.efficiency import Efficiency
from engine.model.flops import Recompute
from engine.model.layout import Values
from engine.model.transformer import Transformer

WIDTH = 2  # bytes of a number

# Bytes read and written per number by the fused kernels, forward and backward.
NORM = (4, 6)  # read x, write y; read dy and x, write dx
DROPOUT_RESIDUAL = (7, 5)  # read x and residual, write y and mask; read dy and mask, write dx
RESIDUAL = (6, 0)  # read x and residual, write y; the gradient passes through as it is
GELU = (4, 6)  # read x, write y; read dy and x, write dx
SWIGLU = (6, 10)  # read gate and up, write y; read dy, gate and up, write both gradients
SOFTMAX = (4, 6)  # with scale and mask: read, write; read dy and y, write dx
DROPOUT = (5, 5)  # read x, write y and mask; read dy and mask, write dx
CROSS_ENTROPY = (22, 6)  # fp32 copy of the logits, largest, exponentials, sum; gradient back to two bytes
# Adam with fp32 master weights: gradient norm and step read 2 each, master and moments read and written,
# weight written.
OPTIMIZER_BYTES_PER_PARAMETER = 2 + 2 + 3 * 8 + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Rates that a GPU reaches: FLOP/s of matrix products and bytes/s of device memory."""

    flops: float
    hbm_bytes_per_s: float

    @classmethod
    def of(cls, gpu: Gpu, efficiency: Efficiency) -> "Device":
        """`gpu` in two-byte numbers. Raises InputError if it has no such format."""
        return cls(
            flops=gpu.flops(WIDTH) * efficiency.gemm, hbm_bytes_per_s=gpu.hbm_bytes_per_s * efficiency.hbm
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Seconds of one block's forward pass, of its backward pass, and of the recomputation between them."""

    forward_s: Values
    backward_s: Values
    recompute_s: Values

    @property
    def total_s(self) -> Values:
        return self.forward_s + self.backward_s + self.recompute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How blocks run.

    recompute : the activations that are recomputed before the backward pass.
    sequence_parallel : norms, dropouts and residuals are split over the tensor-parallel group too.
    fused_attention : softmax never goes through device memory (FlashAttention); the backward pass then
        computes Q·Kᵀ once more.
    measured : measured times of one dense block, instead of the roofline; they hold for the micro-batch, TP
        and recomputation of the measurement.
    """

    recompute: Recompute
    sequence_parallel: bool
    fused_attention: bool
    measured: Pass | None = None


def block(model: Transformer, how: How, device: Device, micro_batch: Values, tp: Values) -> Pass:
    """One dense block on one GPU of a tensor-parallel group of `tp`."""
    if how.measured is not None:
        return how.measured
    core = attention_core(model, how, device, micro_batch, tp)
    rest = _sum(
        _attention_rest(model, device, micro_batch, tp),
        _mlp(model, device, 1.0 * micro_batch * model.seq, 1, model.ffn / tp),
        _norms_and_residuals(model, how, device, micro_batch, tp),
    )
    return _with_recompute(core, rest, how)


def moe_block(
    model: Transformer, how: How, device: Device, micro_batch: Values, tp: Values, local_experts: Values
) -> Pass:
    """One block with experts, `local_experts` of them on this GPU; tokens are spread evenly over experts."""
    assert model.moe is not None
    core = attention_core(model, how, device, micro_batch, tp)
    tokens = 1.0 * micro_batch * model.seq
    rest = _sum(
        _attention_rest(model, device, micro_batch, tp),
        _twice_back(_product(device, tokens, model.hidden, model.moe.experts)),
        _mlp(model, device, tokens * model.moe.top_k, local_experts, model.expert_width / tp),
        *([_mlp(model, device, tokens, 1, model.moe.shared / tp)] if model.moe.shared else []),
        _norms_and_residuals(model, how, device, micro_batch, tp),
    )
    return _with_recompute(core, rest, how)


def head(model: Transformer, device: Device, micro_batch: Values, tp: Values) -> Pass:
    """Output matrix and cross entropy, the vocabulary split over `tp`. Never recomputed."""
    if not model.vocab:
        return Pass(forward_s=0.0, backward_s=0.0, recompute_s=0.0)
    tokens = 1.0 * micro_batch * model.seq
    products = _twice_back(_product(device, tokens, model.hidden, model.vocab / tp))
    return _sum(products, _elements(device, tokens * model.vocab / tp, CROSS_ENTROPY))


def optimizer_s(device: Device, parameters: Values) -> Values:
    """Seconds of an Adam step over `parameters` on one GPU: memory traffic alone."""
    return parameters * OPTIMIZER_BYTES_PER_PARAMETER / device.hbm_bytes_per_s


def attention_core(model: Transformer, how: How, device: Device, micro_batch: Values, tp: Values) -> Pass:
    """Q·Kᵀ, softmax, dropout and the product with V."""
    heads = micro_batch * model.heads / tp
    widths = (model.query_width + model.value_width) / model.heads  # of a head's query and value
    flops = 2.0 * heads * model.seq * model.attended * widths
    if how.fused_attention:
        operands = 2 * WIDTH * heads * model.seq * widths
        forward_s = np.maximum(flops / device.flops, operands / device.hbm_bytes_per_s)
        return Pass(forward_s=forward_s, backward_s=2.5 * forward_s, recompute_s=0.0)
    scores = heads * model.seq * model.attended
    operands = WIDTH * (scores + heads * model.seq * widths)
    products_s = 2 * np.maximum(flops / 2 / device.flops, operands / device.hbm_bytes_per_s)
    parts = [_twice_back(products_s), _elements(device, scores, SOFTMAX)]
    if model.has.dropout:
        parts.append(_elements(device, scores, DROPOUT))
    return _sum(*parts)


def _attention_rest(model: Transformer, device: Device, micro_batch: Values, tp: Values) -> Pass:
    """The products into attention and out of it."""
    tokens = 1.0 * micro_batch * model.seq
    products = (
        _product(device, tokens, inner / tp**cut_in, outer / tp**cut_out)
        for inner, outer, cut_in, cut_out in model.attention_products
    )
    return _twice_back(sum(products))


def _mlp(model: Transformer, device: Device, tokens: Values, experts: Values, inner: Values) -> Pass:
    """`experts` MLPs of inner width `inner` on `tokens` tokens in total."""
    into = model.mlp_matrices - 1
    up = _product(device, tokens / experts, model.hidden, into * inner)
    down = _product(device, tokens / experts, inner, model.hidden)
    kernel = SWIGLU if model.has.gated else GELU
    return _sum(_twice_back(experts * (up + down)), _elements(device, tokens * inner, kernel))


def _norms_and_residuals(
    model: Transformer, how: How, device: Device, micro_batch: Values, tp: Values
) -> Pass:
    numbers = 1.0 * micro_batch * model.seq * model.hidden / (tp if how.sequence_parallel else 1)
    residual = DROPOUT_RESIDUAL if model.has.dropout else RESIDUAL
    norms = model.has.block_norms * numbers
    return _sum(_elements(device, norms, NORM), _elements(device, 2 * numbers, residual))


def _product(device: Device, rows: Values, inner: Values, columns: Values) -> Values:
    """Seconds of (rows × inner)·(inner × columns)."""
    flops = 2.0 * rows * inner * columns
    operands = WIDTH * (rows * inner + inner * columns + rows * columns)
    return np.maximum(flops / device.flops, operands / device.hbm_bytes_per_s)


def _twice_back(forward_s: Values) -> Pass:
    """A product Y = X·W whose backward pass is two: dY·Wᵀ and Xᵀ·dY."""
    return Pass(forward_s=forward_s, backward_s=2 * forward_s, recompute_s=0.0)


def _elements(device: Device, numbers: Values, bytes_each: tuple[int, int]) -> Pass:
    forward, backward = (each * numbers / device.hbm_bytes_per_s for each in bytes_each)
    return Pass(forward_s=forward, backward_s=backward, recompute_s=0.0)


def _sum(*parts: Pass) -> Pass:
    def over(values: Iterator[Values]) -> Values:
        return sum(values)

    return Pass(
        forward_s=over(part.forward_s for part in parts),
        backward_s=over(part.backward_s for part in parts),
        recompute_s=over(part.recompute_s for part in parts),
    )


def _with_recompute(core: Pass, rest: Pass, how: How) -> Pass:
    again = {
        "none": 0.0,
        "selective": 0.0 if how.fused_attention else core.forward_s,  # fused attention stores nothing to save
        "full": core.forward_s + rest.forward_s,
    }[how.recompute]
    return Pass(
        forward_s=core.forward_s + rest.forward_s,
        backward_s=core.backward_s + rest.backward_s,
        recompute_s=again,
    )
