"""FLOPs of a training step: those that the model needs, and those that the hardware runs.

Model FLOPs count a forward pass and a backward pass of twice as much (Korthikanti et al. 2022, eq. 7:
72·B·s·L·h²·(1 + s/(6h) + V/(12·L·h)) for a GPT). Hardware FLOPs add recomputation.
"""

from typing import Literal

from engine.model.transformer import Transformer

Recompute = Literal["full", "selective", "none"]


def model_flops(model: Transformer, sequences: int) -> float:
    """FLOPs that one training step over `sequences` sequences needs: three forward passes."""
    return 3.0 * model.forward_flops(sequences)


def hardware_flops(
    model: Transformer, sequences: int, recompute: Recompute, *, fused_attention: bool = False
) -> float:
    """FLOPs that one training step runs.

    `full` recomputation repeats the blocks' forward pass, `selective` the two attention products. Fused
    attention computes Q·Kᵀ once more in its backward pass, and `selective` adds nothing to it.

    For a GPT, `selective` adds s/(18h), 2s/(9h) in total. Korthikanti et al. print s/(3h) (eq. 8), which
    counts the recomputed products three times; `printed_hardware_flops` is that figure.
    """
    core = model.layers * model.attention_core_flops(sequences)
    again = {
        "none": 0.0,
        "selective": 0.0 if fused_attention else core,
        "full": model.forward_flops(sequences) - model.head_forward_flops(sequences),
    }[recompute]
    return model_flops(model, sequences) + again + (core / 2 if fused_attention else 0.0)


def printed_hardware_flops(model: Transformer, sequences: int) -> float:
    """Hardware FLOPs with selective recomputation as Korthikanti et al. print them (eq. 8), for a GPT."""
    return model_flops(model, sequences) + 3 * model.layers * model.attention_core_flops(sequences)
