"""The problem of the search: seconds between every two devices, and the number and size of groups."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.kernel_cost import Costs
from engine.plan.placement.request import PlacementRequest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A placement problem.

    stages : P, the number of groups;  replicas : D, devices in each, one per pipeline.
    data_s : seconds that two devices of one group need for their shares of the gradients (term of Eq. 2),
        (N, N).
    pipeline_s : seconds that two adjacent devices of a pipeline need (term of Eq. 3), (N, N).
    symmetrised : whether a link differed by direction and its mean was taken (§2).
    """

    stages: int
    replicas: int
    data_s: Floats
    pipeline_s: Floats
    symmetrised: bool = False

    @property
    def devices(self) -> int:
        return self.stages * self.replicas

    @property
    def costs(self) -> Costs:
        """The same for the compiled kernels."""
        off = ~np.eye(self.devices, dtype=bool)
        least = float(self.pipeline_s[off].min()) if self.stages > 1 else 0.0
        return Costs(data=self.data_s, pipeline=self.pipeline_s, least_path=least * (self.stages - 1))


def problem_of(request: PlacementRequest) -> Problem:
    """The problem of a validated document, in SI units, links averaged over both directions."""
    latency, bandwidth = request.given_latency_ms, request.given_bandwidth_gbps
    symmetrised = bool(np.any(latency != latency.T) or np.any(bandwidth != bandwidth.T))
    latency_s = (latency + latency.T) / 2e3
    bytes_per_s = (bandwidth + bandwidth.T) / 2 * BYTES_PER_GBIT
    return problem(latency_s, bytes_per_s, request.stages, **request.traffic, symmetrised=symmetrised)


def problem(
    latency_s: Floats,
    bytes_per_s: Floats,
    stages: int,
    dp_bytes: float,
    pp_bytes: float,
    *,
    symmetrised: bool = False,
) -> Problem:
    """The problem with symmetric `latency_s` and `bytes_per_s`, shape (N, N); N is a multiple of `stages`."""
    replicas = len(latency_s) // stages
    data_s = 2 * (latency_s + dp_bytes / (replicas * bytes_per_s))
    pipeline_s = 2 * (latency_s + pp_bytes / bytes_per_s)
    for seconds in (data_s, pipeline_s):
        np.fill_diagonal(seconds, 0.0)
    return Problem(
        stages=stages, replicas=replicas, data_s=data_s, pipeline_s=pipeline_s, symmetrised=symmetrised
    )


def data_cost_s(problem: Problem, members: Ints) -> Floats:
    """Eq. 2 of every group of `members`, shape (P, D) → (P,)."""
    inside = problem.data_s[members[:, :, None], members[:, None, :]]
    most: Floats = inside.sum(axis=2).max(axis=1)
    return most


def hop_cost_s(problem: Problem, pipelines: Ints) -> Floats:
    """The slowest link of every hop between stages of `pipelines`, shape (D, P) → (P − 1,)."""
    most: Floats = problem.pipeline_s[pipelines[:, :-1], pipelines[:, 1:]].max(axis=0)
    return most
