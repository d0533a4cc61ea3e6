"""The all-reduce of a stage's gradients over its replicas, experts apart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.cluster.collectives import Values, ring_all_reduce_s


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of a stage: `all`, and of those `experts`."""

    all: float
    experts: float = 0.0


def largest(stages: Iterable[Parameters]) -> tuple[Parameters, ...]:
    """Those of the stages that no other exceeds in parameters beside the experts and in experts."""
    distinct = dict.fromkeys(stages)

    def is_within(one: Parameters, other: Parameters) -> bool:
        beside = one.all - one.experts <= other.all - other.experts
        return one != other and beside and one.experts <= other.experts

    return tuple(one for one in distinct if not any(is_within(one, other) for other in distinct))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How the replicas of a stage are joined.

    ep : expert-parallel degree: one in `ep` replicas has the same experts.
    cp : context-parallel degree: GPUs of a replica that have the same parameters.
    inside_bytes_per_s : of all tensor-parallel ranks together, between those GPUs.
    """

    ep: int = 1
    cp: int = 1
    inside_bytes_per_s: float = float("inf")

    def all_reduce_s(
        self, stages: Sequence[Parameters], number_bytes: float, replicas: int, bytes_per_s: Values
    ) -> Values:
        """Seconds until each of `stages` has summed its gradients over `replicas`, whose nodes send
        `bytes_per_s`.

        Replicas with other experts have no part in an expert's gradients (DeepSpeed-MoE: Rajbhandari et al.
        2022). The cp GPUs of a node sum first, each a part of the gradients, and gather the sums last.
        """
        each = (self._one_s(stage, number_bytes / 2, replicas, bytes_per_s) for stage in stages)
        return np.maximum.reduce(list(each))

    def _one_s(self, stage: Parameters, of_fp16: float, replicas: int, bytes_per_s: Values) -> Values:
        experts = stage.experts / self.ep if self.ep > 1 else 0.0
        shared = stage.all - stage.experts if self.ep > 1 else stage.all
        seconds = ring_all_reduce_s(of_fp16 * shared, replicas, bytes_per_s)
        seconds += ring_all_reduce_s(of_fp16 * experts, max(1, replicas // self.ep), bytes_per_s)
        return seconds + ring_all_reduce_s(of_fp16 * (shared + experts), self.cp, self.inside_bytes_per_s)
