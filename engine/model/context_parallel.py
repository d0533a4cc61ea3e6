"""Context parallelism: each of cp GPUs has 1/cp of the tokens of every sequence (ring attention).

Queries stay. Keys and values go round a ring in cp − 1 steps, and a GPU computes attention with one part
while the next one arrives (Liu et al. 2023, §3). A step that sends longer than it computes is late by the
difference, and only that counts. In the backward pass the gradients of keys and values go round too. So the
bytes are those of an all-gather forward, and of an all-gather and a reduce-scatter backward (Megatron Core,
*context parallelism*). With causal attention a GPU has the n-th part and the n-th last: all compute as much.
"""

import numpy as np

from engine.model import kernels
from engine.model.kernels import WIDTH, Device, How, Pass, Values
from engine.model.transformer import Transformer


def part_bytes(model: Transformer, sequences: Values, tp: Values) -> Values:
    """Bytes of the keys and values of one GPU's part of a microbatch, in one block: those of so many whole
    sequences, on one of `tp` GPUs.
    """
    return 1.0 * WIDTH * sequences * model.seq * model.keys_and_values_width / tp


def ring_late_s(
    model: Transformer,
    how: How,
    device: Device,
    *,
    sequences: Values,
    tp: Values,
    cp: Values,
    bytes_per_s: Values,
) -> Pass:
    """Seconds by which one block's passes are late for keys and values from the other GPUs.

    sequences : those of the microbatch, over `cp`.
    bytes_per_s : from one GPU to the next in the ring, per direction.
    """
    core = kernels.attention_core(model, how, device, sequences, tp)
    send_s = part_bytes(model, sequences, tp) / bytes_per_s

    def late_s(compute_s: Values, passes: int) -> Values:
        return (cp - 1) * np.maximum(0.0, passes * send_s - compute_s / cp)

    forward_s = late_s(core.forward_s, 1)
    repeats = how.recompute == "full" or (how.recompute == "selective" and not how.fused_attention)
    return Pass(
        forward_s=forward_s,
        backward_s=late_s(core.backward_s, 2),
        recompute_s=forward_s if repeats else 0.0 * forward_s,
    )
