"""The input of partitioning: a chain of layers, and a run of them as one sub-model."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the chain, for one mini-batch (ATOM §III-D: node i with m_i, t_i^f, t_i^b, t_i^u).

    memory_bytes : on the device while it runs: parameters and working memory.
    forward_s, backward_s : of one mini-batch;  load_s : from host to device.
    cut_bytes : of the edge after it, which cross if the chain is cut there; whole.
    parameter_bytes : of its parameters, and as many of its gradients.
    gap_s : of both passes together, time in which no kernel runs.
    """

    name: str
    memory_bytes: float
    forward_s: float
    backward_s: float
    load_s: float
    cut_bytes: int
    parameter_bytes: float
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubModel:
    """Layers `first` to `last`, both included; memory, times and bytes are sums over them.

    forward_s and backward_s are those of its kernels and, together, `gap_s` between them.
    """

    first: int
    last: int
    memory_bytes: float
    forward_s: float
    backward_s: float
    load_s: float
    parameter_bytes: float
    gap_s: float = 0.0


def sub_models(layers: Sequence[Layer], firsts: Sequence[int]) -> tuple[SubModel, ...]:
    """The sub-models that begin at the layers `firsts` (ascending, the first is 0)."""
    ends = [*firsts[1:], len(layers)]
    return tuple(_joined(layers[i:end], i) for i, end in zip(firsts, ends, strict=True))


def _joined(run: Sequence[Layer], first: int) -> SubModel:
    def total(values: Iterable[float]) -> float:
        return math.fsum(values)

    return SubModel(
        first=first,
        last=first + len(run) - 1,
        memory_bytes=total(layer.memory_bytes for layer in run),
        forward_s=total(layer.forward_s for layer in run),
        backward_s=total(layer.backward_s for layer in run),
        load_s=total(layer.load_s for layer in run),
        parameter_bytes=total(layer.parameter_bytes for layer in run),
        gap_s=total(layer.gap_s for layer in run),
    )
