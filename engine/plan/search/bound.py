"""What one cell takes at least, from running sums alone: no schedule is built.

Let W be the time of one microbatch alone, all the way there and back. A stage does all its work after the
first microbatch has reached it and before the last gradient has gone back from it; each microbatch keeps it
busy for F, B and the lesser of R and the rest of W beyond the stage, since without R nothing runs there
between F and B. A hop carries all microbatches one way, and only the last of them still has to go on: W and
all transfers less one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.plan.search.problem import Floats, Problem

# Candidates that are bounded at once: each takes some arrays of one number a stage.
AT_ONCE = 4096
Indexes = NDArray[np.int64]


def least_ms(problem: Problem, placed: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Floats:
    """A proven bound on the milliseconds of one cell's forward and backward passes, for each of `placed`:
    (route, split)."""
    parts = [placed[i : i + AT_ONCE] for i in range(0, len(placed), AT_ONCE)]
    return np.concatenate([_least_ms(problem, part) for part in parts]) if parts else np.zeros(0)


def _least_ms(problem: Problem, placed: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Floats:
    microbatches, pipelines = problem.job.microbatches, problem.job.cell_pipelines
    routes, ends = _padded(placed)
    place = _place_of_stage(ends, problem.job.partitions)
    forward, backward, recompute = _times(problem, np.take_along_axis(routes, place, axis=1))
    transfer, latency = _hops(problem, placed, routes.shape[1])
    # a cell's links together carry one transfer at a time in an n-th of the time, or each carries its own
    way = np.cumsum(transfer / pipelines + latency, axis=1)
    work = np.cumsum(forward + backward, axis=1)
    # there and back, of one microbatch alone, before it is at a stage
    before = work - forward - backward + 2 * np.take_along_axis(way, place, axis=1)
    alone = before[:, -1] + forward[:, -1] + backward[:, -1]
    beyond = alone[:, None] - before - forward - backward
    beyond[:, -1] = 0.0
    busy = microbatches * (forward + backward + np.minimum(recompute, beyond))
    carried = alone + np.max(transfer, axis=1) * (microbatches - 1 / pipelines)
    return np.maximum(np.max(before + busy, axis=1), carried)


def _padded(placed: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Indexes, Indexes]:
    """Data centres and ends of their stages, shape (candidates, longest route); the last one is repeated."""
    longest = max(len(route) for route, _ in placed)
    routes = np.array([[*route, *[route[-1]] * (longest - len(route))] for route, _ in placed])
    splits = np.array([[*split, *[0] * (longest - len(split))] for _, split in placed])
    return routes, np.cumsum(splits, axis=1)


def _place_of_stage(ends: Indexes, stages: int) -> Indexes:
    """On which place of its route each stage is, shape (candidates, stages)."""
    return np.asarray((ends[:, :, None] <= np.arange(stages)).sum(axis=1))


def _times(problem: Problem, dc_of_stage: Indexes) -> tuple[Floats, Floats, Floats]:
    """Forward, backward and recompute time of each stage where it is, shape (candidates, stages)."""
    types = list(problem.times)
    index = {name: i for i, name in enumerate(types)}
    type_of_dc = np.array([index.get(dc.gpu.name, 0) for dc in problem.cluster.datacenters])
    gpu, stage = type_of_dc[dc_of_stage], np.arange(dc_of_stage.shape[1])

    def of(kind: str) -> Floats:
        return np.array([getattr(problem.times[name], kind) for name in types])[gpu, stage]

    return of("forward"), of("backward"), of("recompute")


def _hops(
    problem: Problem, placed: Sequence[tuple[Sequence[int], Sequence[int]]], longest: int
) -> tuple[Floats, Floats]:
    """Transfer and latency of the hop into each place of a route, 0 into the first and beyond the last."""
    transfer, latency = np.zeros((2, len(placed), longest))
    for i, (route, _) in enumerate(placed):
        for j in range(1, len(route)):
            hop = problem.hops[route[j - 1], route[j]]
            transfer[i, j], latency[i, j] = hop.transfer, hop.latency
    return transfer, latency
