"""Time and traffic of collective operations, by bandwidth alone: start-up latency is left out.

Hierarchical ones run on a grid of x·y GPUs: x in each high-bandwidth (HB) domain, y such domains, joined by
rails (Rail-only, §III-B and §IV-B). D, x, y, C_F and C_S are those of Rail-only, Table I. Every function
takes numbers or numpy arrays of one shape.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Operation = Literal["allgather", "reduce_scatter", "allreduce", "all_to_all"]
Values = Any  # a number or an array of numbers: what numpy computes with


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes/s per GPU and direction, inside an HB domain (C_F) and through its NIC (C_S)."""

    hb_bytes_per_s: float
    nic_bytes_per_s: float

    def __post_init__(self) -> None:
        for name in ("hb_bytes_per_s", "nic_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)}: must be greater than 0")


def ring_all_reduce_s(parameters: float, ranks: int, bytes_per_s: float) -> float:
    """Seconds of a ring all-reduce of fp16 gradients: 4·p·(N−1) / (N·BW).

    Each of the N ranks sends and receives 2·(N−1)/N of the p gradients, two bytes each
    (Atlas §3.1, footnote 1).

    Parameters
    ----------
    parameters : p, those of one pipeline stage.
    ranks : N, size of the ring.
    bytes_per_s : BW, per direction and rank, of the slowest place in the ring.
    """
    return 4 * parameters * (ranks - 1) / (ranks * bytes_per_s)


def sent_bytes(op: Operation, size: Values, x: Values, y: Values, *, forwarded: bool = True) -> Values:
    """Bytes that one GPU sends in one collective: (inside its HB domain, through its NIC).

    Parameters
    ----------
    size : D. Of all-gather, reduce-scatter and all-reduce the whole buffer; of all-to-all the bytes from each
        GPU to each other one.
    x, y : the grid.
    forwarded : all-to-all over rails alone; traffic between rails is forwarded inside HB domains
        (Rail-only, Eq. 3). False: straight to its receiver, over spines (Eq. 2).
    """
    if op == "all_to_all":
        inside = y * (x - 1) if forwarded else (x - 1)
        return inside * size, x * (y - 1) * size
    passes = 2 if op == "allreduce" else 1  # an all-reduce is a reduce-scatter and an all-gather
    return passes * (x - 1) * size / x, passes * (y - 1) * size / (x * y)


def hierarchical_s(op: Operation, size: Values, x: Values, y: Values, rates: Rates) -> Values:
    """Seconds of a collective on rails: the rail phase, then the phase in the HB domains.

    Rail-only, Eq. 1: AG(D, x, y) = (y−1)·D/(x·y·C_S) + (x−1)·D/(x·C_F); a reduce-scatter takes as long, an
    all-reduce both.
    Rail-only, Eq. 3: an all-to-all takes y·(x−1)·D/C_F + x·(y−1)·D/C_S.
    """
    inside, outside = sent_bytes(op, size, x, y)
    return inside / rates.hb_bytes_per_s + outside / rates.nic_bytes_per_s


def full_bisection_s(op: Operation, size: Values, x: Values, y: Values, rates: Rates) -> Values:
    """Seconds of a collective if spines join the rails (rail-optimised; Rail-only, Eq. 2).

    An all-to-all goes straight through both networks at once: max((x−1)·D/C_F, x·(y−1)·D/C_S). The other
    collectives never leave their rail, so they take the same time as on rails.
    """
    if op != "all_to_all":
        return hierarchical_s(op, size, x, y, rates)
    inside, outside = sent_bytes(op, size, x, y, forwarded=False)
    return np.maximum(inside / rates.hb_bytes_per_s, outside / rates.nic_bytes_per_s)
