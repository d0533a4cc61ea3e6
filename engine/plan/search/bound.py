"""Lower bounds on the time of one cell, from prefix sums alone: no schedule is built.

Let W be the time of one microbatch alone, forward and back. A stage does all its work after the first
microbatch has reached it and before the last gradient has left it. Each microbatch occupies it for F, B and
the lesser of R and the rest of W beyond the stage, since without R nothing runs there between F and B. A hop
carries all microbatches in one direction, and only the last of them still has to go on: W and all transfers
less one. A stage holds a microbatch for the rest H of W, without the time before the stage and after it. With
room for L of M there, H passes M/L times. The first stage holds it for all of W.

Transfer and latency of a hop between data centres are T and L. If a cell's n pipelines take turns, they are
at least T/n, and L with scatter and gather. W has the lesser of the two. So a hop carries beyond W the lesser
of (M − 1)·T with the rest of a whole transfer both ways, and n·M − 1 transfers of T/n.

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
from engine.plan.layers import Balance
from engine.plan.search.problem import Floats, Problem
from engine.schedule import Frame, policy_of
from engine.schedule.scenario import Scenario

# Candidates that are bounded together: each takes some arrays of one number per stage.
AT_ONCE = 4096
BEYOND_MS = 1e15
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
    return policy != "auto" and any(frame.traversal.chunks > 1 for frame in _frames(policy))


@cache
def ends_together(policy: str) -> bool:
    """Whether a policy has the first and the last part of the model on one GPU, as a wave has.

    `auto` may, but its fast policies do not.
    """
    return policy != "auto" and all(frame.traversal.ends_together for frame in _frames(policy))


def _frames(policy: str) -> tuple[Frame, ...]:
    small = {"stages": 2, "microbatches": 2, "times": {"forward": 1, "backward": 2}, "policy": policy}
    return policy_of(policy).frames(parse(Scenario, small))


def least_ms(problem: Problem, placed: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Bounds:
    """A bound on one cell of each of `placed`: (route, split)."""
    parts = [_least_ms(problem, placed[i : i + AT_ONCE]) for i in range(0, len(placed), AT_ONCE)]
    straight, chunked = np.concatenate([np.zeros((2, 0)), *parts], axis=1)
    if cuts_stages(problem.request.policy):
        return Bounds(tried=chunked, any=chunked)
    is_free = problem.request.policy == "auto"
    return Bounds(tried=straight, any=np.minimum(straight, chunked) if is_free else straight)


def _least_ms(problem: Problem, placed: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Floats:
    """Straight through the stages, and in two chunks; shape (2, candidates).

    Of several spreads of the layers the least.
    """
    routes, ends = _padded(placed)
    index = _hop_index_of_stage(ends, problem.job.partitions)
    dc_of_stage = np.take_along_axis(routes, index, axis=1)
    hops = _hops(problem, placed, routes.shape[1])
    inside = _inside(problem, dc_of_stage, index)
    least = _of_spread(problem, index, hops, inside, _of_stages(problem, dc_of_stage))
    if problem.job.balance is None:
        return least
    balanced = _of_balanced(problem, problem.job.balance, dc_of_stage)
    return np.minimum(least, _of_spread(problem, index, hops, inside, balanced))


def _of_spread(
    problem: Problem,
    index: Indexes,
    hops: "_Hops",
    hops_inside: tuple[Floats, Floats],
    stages: tuple[Floats, Floats, Floats, Floats],
) -> Floats:
    microbatches, (inside, queue) = problem.job.microbatches, hops_inside
    forward, backward, recompute, in_flight = stages
    round_trip = 2 * (np.take_along_axis(np.cumsum(hops.crossing, axis=1), index, axis=1) + inside)
    own = forward + backward
    work = np.cumsum(own, axis=1)
    # time of one microbatch alone before it is at a stage, and in total
    before, alone = work - own + round_trip, work[:, -1] + round_trip[:, -1]
    beyond = alone[:, None] - before - own
    beyond[:, -1] = 0.0
    busy = microbatches * (own + np.minimum(recompute, beyond))
    longest = np.max(hops.transfer, axis=1)
    queue = np.maximum(queue, np.max(hops.queue, axis=1))
    # if not even one microbatch fits a stage, no cell is timed
    passes = microbatches / np.maximum(1.0, in_flight)
    in_turns = np.max(before + passes * (alone[:, None] - before), axis=1)
    straight = np.maximum.reduce([np.max(before + busy, axis=1), alone + queue, in_turns])
    half = (work - own) / 2 + round_trip
    again = np.minimum(recompute, work[:, -1:]) / 2
    chunked = np.maximum.reduce(
        [
            np.max(half + microbatches * (own + again), axis=1),
            alone,
            longest * microbatches,
            passes[:, 0] * alone / 2,
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


def _of_balanced(
    problem: Problem, balance: Balance, dc_of_stage: Indexes
) -> tuple[Floats, Floats, Floats, Floats]:
    """The same with the layers as balanced; times beyond all bounds where none fit."""
    gpus, stage = problem.types, np.arange(dc_of_stage.shape[1])
    index = {gpu.name: i for i, gpu in enumerate(gpus)}
    type_of_dc = np.array([index.get(dc.gpu.name, 0) for dc in problem.cluster.datacenters])
    placed = type_of_dc[dc_of_stage]
    layers = balance.layers_at(placed, gpus)

    def of(kind: str) -> Floats:
        lines = [balance.figures((gpu,) * len(stage), kind) for gpu in gpus]
        fixed, each = (np.array([getattr(line, part) for line in lines]) for part in ("fixed", "each"))
        return np.where(layers > 0, 1e3 * (fixed[placed, stage] + each[placed, stage] * layers), BEYOND_MS)

    memory_bytes = np.array([gpu.usable_bytes for gpu in gpus])[placed]
    most = problem.request.memory_limit or problem.job.microbatches
    in_flight = np.minimum(balance.in_flight(memory_bytes, np.maximum(layers, 1)), most)
    return of("forward_s"), of("backward_s"), of("recompute_s"), in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hops:
    """Hops of candidates, one array each of shape (candidates, hops).

    transfer : of one microbatch on a link of its own.
    crossing : least time of one microbatch alone, whichever way pipelines share the hop.
    queue : least time in which a hop carries all but what `crossing` counts of one microbatch.
    """

    transfer: Floats
    crossing: Floats
    queue: Floats


def _hops(problem: Problem, placed: Sequence[tuple[Sequence[int], Sequence[int]]], longest: int) -> _Hops:
    """The hop into each data centre of a route; 0 into the first."""
    n, microbatches = problem.job.cell_pipelines, problem.job.microbatches

    @cache
    def of_pair(a: int, b: int) -> tuple[float, float, float]:
        hop = problem.hops[a, b]
        own = hop.transfer + hop.latency
        relay = sum((1 - 1 / n) * lan.transfer + lan.latency for lan in (problem.lans[a], problem.lans[b]))
        crossing = min(own, hop.transfer / n + hop.latency + relay) if n > 1 else own
        more = min(2 * (own - crossing), hop.transfer * (1 - 1 / n))
        return hop.transfer, crossing, hop.transfer * (microbatches - 1) + more

    hops = np.zeros((3, len(placed), longest))
    for i, (route, _) in enumerate(placed):
        for j in range(1, len(route)):
            hops[:, i, j] = of_pair(route[j - 1], route[j])
    return _Hops(transfer=hops[0], crossing=hops[1], queue=hops[2])


def _inside(problem: Problem, dc_of_stage: Indexes, index: Indexes) -> tuple[Floats, Floats]:
    """Of hops inside data centres, what one microbatch needs from the first stage on, and the longest queue.

    Shapes (candidates, stages) and (candidates,).

    index : of each stage's data centre in its route, shape (candidates, stages).
    """
    crossing, transfer = np.array([(lan.transfer + lan.latency, lan.transfer) for lan in problem.lans]).T
    continues = np.zeros(index.shape, dtype=np.bool_)
    continues[:, 1:] = index[:, 1:] == index[:, :-1]
    if np.ptp(crossing) == 0 == np.ptp(transfer):  # nearly always
        each, queues = continues * crossing[0], np.any(continues, axis=1) * transfer[0]
    else:
        each = np.where(continues, crossing[dc_of_stage], 0.0)
        queues = np.max(np.where(continues, transfer[dc_of_stage], 0.0), axis=1)
    return np.cumsum(each, axis=1), queues * (problem.job.microbatches - 1)
