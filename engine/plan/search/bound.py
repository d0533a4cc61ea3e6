"""Lower bounds on the time of one cell, from prefix sums alone: no schedule is built.

Let W be the time of one microbatch alone, forward and back. A stage does all its work after the first
microbatch has reached it and before the last gradient has left it. Each microbatch occupies it for F, B and
the lesser of R and the rest of W beyond the stage, since without R nothing runs there between F and B. A hop
carries all microbatches in one direction, and only the last of them still has to go on: W and all transfers
less one. The first stage holds a microbatch for all of W, so with room for L of M there W passes M/L times.

This holds for policies that go straight through the stages, a stage's work in one piece. For policies that
cut it into two chunks, only half of the work before a stage surely runs before, half of R always runs, and
one of two chunks may be held for a short time only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from engine.inputs import parse
from engine.plan.search.problem import Floats, Problem
from engine.schedule import policy_of
from engine.schedule.scenario import Scenario

# Candidates that are bounded together: each takes some arrays of one number per stage.
AT_ONCE = 4096
Indexes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Proven milliseconds of one cell's forward and backward passes, shape (candidates,).

    tried : with the request's policy; for `auto`, with the fast ones. any : for `auto`, with any policy.
    """

    tried: Floats
    any: Floats


@cache
def cuts_stages(policy: str) -> bool:
    """Whether a policy cuts a stage's work into chunks. `auto` may, but its fast policies do not."""
    if policy == "auto":
        return False
    small = {"stages": 2, "microbatches": 2, "times": {"forward": 1, "backward": 2}, "policy": policy}
    frames = policy_of(policy).frames(parse(Scenario, small))
    return any(frame.traversal.chunks > 1 for frame in frames)


def least_ms(problem: Problem, placed: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Bounds:
    """A bound on one cell of each of `placed`: (route, split)."""
    parts = [_least_ms(problem, placed[i : i + AT_ONCE]) for i in range(0, len(placed), AT_ONCE)]
    straight, chunked = np.concatenate([np.zeros((2, 0)), *parts], axis=1)
    if cuts_stages(problem.request.policy):
        return Bounds(tried=chunked, any=chunked)
    is_free = problem.request.policy == "auto"
    return Bounds(tried=straight, any=np.minimum(straight, chunked) if is_free else straight)


def _least_ms(problem: Problem, placed: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Floats:
    """Straight through the stages, and in two chunks; shape (2, candidates)."""
    microbatches, pipelines = problem.job.microbatches, problem.job.cell_pipelines
    routes, ends = _padded(placed)
    index = _hop_index_of_stage(ends, problem.job.partitions)
    forward, backward, recompute, in_flight = _of_stages(problem, np.take_along_axis(routes, index, axis=1))
    transfer, latency = _hops(problem, placed, routes.shape[1])
    # either a cell's links together carry one transfer at a time in an n-th of the time, or each its own
    round_trip = 2 * np.take_along_axis(np.cumsum(transfer / pipelines + latency, axis=1), index, axis=1)
    own = forward + backward
    work = np.cumsum(own, axis=1)
    # time of one microbatch alone before it is at a stage, and in total
    before, alone = work - own + round_trip, work[:, -1] + round_trip[:, -1]
    beyond = alone[:, None] - before - own
    beyond[:, -1] = 0.0
    busy = microbatches * (own + np.minimum(recompute, beyond))
    longest = np.max(transfer, axis=1)
    # the schedule's limit is that of the stage with least room; if not even one fits, no cell is timed
    passes = microbatches / np.maximum(1.0, np.min(in_flight, axis=1))
    straight = np.maximum.reduce(
        [np.max(before + busy, axis=1), alone + longest * (microbatches - 1 / pipelines), passes * alone]
    )
    half = (work - own) / 2 + round_trip
    again = np.minimum(recompute, work[:, -1:]) / 2
    chunked = np.maximum.reduce(
        [
            np.max(half + microbatches * (own + again), axis=1),
            alone,
            longest * microbatches,
            passes * alone / 2,
        ]
    )
    return np.array([straight, chunked])


def _padded(placed: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Indexes, Indexes]:
    """Data centres and ends of their stages, shape (candidates, longest route); the last one is repeated."""
    longest = max(len(route) for route, _ in placed)
    routes = np.array([[*route, *[route[-1]] * (longest - len(route))] for route, _ in placed])
    splits = np.array([[*split, *[0] * (longest - len(split))] for _, split in placed])
    return routes, np.cumsum(splits, axis=1)


def _hop_index_of_stage(ends: Indexes, stages: int) -> Indexes:
    """Index in its route of each stage's data centre, shape (candidates, stages)."""
    return np.asarray((ends[:, :, None] <= np.arange(stages)).sum(axis=1))


def _of_stages(problem: Problem, dc_of_stage: Indexes) -> tuple[Floats, Floats, Floats, Floats]:
    """Forward, backward and recompute time of each stage in its data centre, and the microbatches that fit
    it.

    All have shape (candidates, stages).
    """
    types = list(problem.times)
    index = {name: i for i, name in enumerate(types)}
    type_of_dc = np.array([index.get(dc.gpu.name, 0) for dc in problem.cluster.datacenters])
    gpu, stage = type_of_dc[dc_of_stage], np.arange(dc_of_stage.shape[1])

    def of(kind: str) -> Floats:
        return np.array([getattr(problem.times[name], kind) for name in types])[gpu, stage]

    return of("forward"), of("backward"), of("recompute"), of("in_flight")


def _hops(
    problem: Problem, placed: Sequence[tuple[Sequence[int], Sequence[int]]], longest: int
) -> tuple[Floats, Floats]:
    """Transfer and latency of the hop into each data centre of a route; 0 into the first."""
    transfer, latency = np.zeros((2, len(placed), longest))
    for i, (route, _) in enumerate(placed):
        for j in range(1, len(route)):
            hop = problem.hops[route[j - 1], route[j]]
            transfer[i, j], latency[i, j] = hop.transfer, hop.latency
    return transfer, latency
