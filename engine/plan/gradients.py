"""The all-reduce of a stage's gradients over its replicas, experts apart."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.cluster.collectives import Values, ring_all_reduce_s

Summed = Callable[[float, int], Values]


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
class StageReplicas:
    """How the replicas of a stage are joined.

    ep : expert-parallel degree: one in `ep` replicas has the same experts.
    cp : context-parallel degree: GPUs of a replica that have the same parameters.
    inside_bytes_per_s : of all tensor-parallel ranks together, between those GPUs.
    """

    ep: int = 1
    cp: int = 1
    inside_bytes_per_s: float = float("inf")

    def all_reduce_s(
        self, stages: Sequence[Parameters], number_bytes: float, replicas: int, summed_s: Summed
    ) -> Values:
        """Seconds until each of `stages` has summed its gradients over `replicas`.

        summed_s : the seconds for so many bytes over so many replicas.

        Replicas with other experts have no part in an expert's gradients (DeepSpeed-MoE: Rajbhandari et al.
        2022). The cp GPUs of a node sum first, each a part of the gradients, and gather the sums last.
        """
        each = (self._one_s(stage, number_bytes, replicas, summed_s) for stage in stages)
        return np.maximum.reduce(list(each))

    def _one_s(self, stage: Parameters, number_bytes: float, replicas: int, summed_s: Summed) -> Values:
        experts = stage.experts / self.ep if self.ep > 1 else 0.0
        shared = stage.all - stage.experts if self.ep > 1 else stage.all
        seconds = summed_s(number_bytes * shared, replicas)
        seconds += summed_s(number_bytes * experts, max(1, replicas // self.ep))
        of_fp16 = number_bytes / 2 * (shared + experts)
        return seconds + ring_all_reduce_s(of_fp16, self.cp, self.inside_bytes_per_s)
