"""Lower bounds on the makespan of any schedule in a frame, each with its proof.

They hold whatever the policy, B split or not. `head`, `trip` and `tail` of a position are the shortest
paths of one microbatch to it, around it and from it (`bounds_paths.Paths`).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.schedule.scenario import LIMITS, Scenario
from engine.schedule.search import Frame
from engine.schedule.units import ROUNDING, common_unit
from engine.simulate.bounds_idle import (
    Limits,
    idle_of,
    idle_within,
    releases_of,
    times_backward,
    times_forward,
)
from engine.simulate.bounds_paths import Paths
from engine.simulate.bounds_shared import staggered_one_full_set

Floats = NDArray[np.float64]
MOST_SHARERS = 16


def lower_bound(scenario: Scenario, frame: Frame) -> float:
    """A makespan that no schedule of `scenario` in this frame can beat, whatever its policy."""
    paths = Paths.of(scenario, frame)
    limits = _limits(scenario, frame)
    bound = max(
        float(np.max(paths.head + paths.work - paths.again + paths.trip + paths.tail)),
        float(np.max(_turns(paths, limits))),
        _links(paths, limits),
        float(np.max(_one_full_set(scenario, paths), initial=0.0)),
        _shared_one_full_set(scenario, paths),
    )
    bound = max(bound, _alone(paths, limits, bound))
    if paths.shared.any() and limits.pipelines <= MOST_SHARERS:
        bound = max(bound, _together(paths, limits, bound))
    return _next_unit(bound, paths)


def _limits(scenario: Scenario, frame: Frame) -> Limits:
    held, full = (frame.traversal.chunks * scenario.limits(name) for name in LIMITS)
    return Limits(pipelines=scenario.pipelines, microbatches=scenario.microbatches, held=held, full=full)


def _turns(paths: Paths, limits: Limits) -> Floats:
    """With L in flight at a position, F number L + 1 waits for a B, and so on: ⌈M / L⌉ round trips."""
    turns = -(-limits.microbatches // limits.held[paths.traversal.stage_of])
    there_and_back = paths.forward + paths.trip + paths.backward
    return paths.head + turns * there_and_back + (turns - 1) * paths.weight + paths.tail


def _work(paths: Paths, limits: Limits) -> Floats:
    """Work of each stage's GPU, shape (stages,)."""
    each = (paths.work + paths.weight)[paths.traversal.position_of].sum(axis=1)
    return np.asarray(limits.microbatches * each)


def _alone(paths: Paths, limits: Limits, bound: float) -> float:
    """One pipeline by itself: work and idle time of each GPU; its last B, and all that must follow.

    Of pipelines that share a link, the first activation of one crosses n − 1 turns of the link after the
    first of all: behind the link every arrival of that pipeline is that much later.
    """
    shared = np.where(paths.shared, (limits.pipelines - 1) * paths.held, 0.0)
    stagger = np.maximum.accumulate(np.append(0.0, shared))
    late = replace(paths, head=paths.head + stagger)
    ahead = times_forward(late, limits, 1)
    behind = times_backward(late, limits, 1)
    count = min(limits.microbatches, 64)
    releases = releases_of(ahead, count, forward=True)
    bound = max(bound, float(np.max(releases.second[-1] + paths.backward + paths.tail)))
    releases = releases_of(behind, count, forward=False)
    bound = max(bound, float(np.max(releases.second[-1] + paths.forward + paths.head)))
    idle = idle_within(
        idle_of(late, ahead, limits, forward=True), idle_of(late, behind, limits, forward=False), bound
    )
    return float(np.max(_work(paths, limits) + idle))


def _together(paths: Paths, limits: Limits, bound: float) -> float:
    """All n pipelines: n makespans are at least the work and the idle time of n GPUs of a stage."""
    n = limits.pipelines
    idle = idle_within(
        idle_of(paths, times_forward(paths, limits, n), limits, forward=True),
        idle_of(paths, times_backward(paths, limits, n), limits, forward=False),
        bound,
    )
    return float(np.max(_work(paths, limits) + idle / n))


def _links(paths: Paths, limits: Limits) -> float:
    """Head, traffic and tail of each link.

    A pipeline's own link carries M transfers of each kind, a shared one n·M. The first starts after the
    shortest head among its producers. After the last, the rest of its microbatch's path follows.
    """
    edges = len(paths.held)
    if edges == 0:
        return 0.0
    around = paths.forward + paths.trip + paths.backward
    sends = np.stack([(paths.head + paths.forward)[:-1], (paths.head + around)[1:]])
    follows = np.stack([(around + paths.tail)[1:], (paths.backward + paths.tail)[:-1]])
    transfers = np.concatenate(list(paths.traversal.transfer_of))
    transfers = transfers[(transfers >= 0).any(axis=1)]
    crosses = transfers >= 0
    payload, edge = np.divmod(np.where(crosses, transfers, 0), edges)
    first_sent = np.where(crosses, sends[payload, edge], np.inf).min(axis=1)
    after = np.where(crosses, follows[payload, edge], np.inf).min(axis=1)
    link = np.take_along_axis(edge, crosses.argmax(axis=1)[:, None], axis=1)[:, 0]
    sharers = np.where(paths.shared[link], limits.pipelines, 1)
    traffic = sharers * limits.microbatches * crosses.sum(axis=1) * paths.held[link]
    return float(np.max(first_sent + traffic + paths.latency[link] + after, initial=0.0))


def _one_full_set(scenario: Scenario, paths: Paths) -> Floats:
    """On a stage with full_limit 1, R and B alternate on a GPU: only one R can run ahead of the first B.

    Let the first B start at β, after k forwards. β is at least: the first F, then its trip; the k-th F, which
    comes at the pace of the slowest stage or link upstream; and k forwards with one R (or the wait for one
    trip). From β on the GPU still has all M backwards (with all W but the last, as the next set opens after
    W), M − k forwards, and M − 1 times R (or a trip). The bound takes the best k.
    """
    if paths.traversal.chunks > 1:
        return np.zeros(0)
    m = scenario.microbatches
    k = np.arange(1, m + 1)[:, None]
    pace = np.maximum.accumulate(np.maximum(paths.forward, np.append(0.0, paths.held)))
    first_backward = np.maximum.reduce(
        [
            paths.forward + paths.trip + 0.0 * k,
            (k - 1) * pace + paths.forward,
            k * paths.forward + paths.again,
        ]
    )
    rest = (
        m * paths.backward
        + (m - 1) * paths.weight
        + (m - k) * paths.forward
        + (m - 1) * paths.again
        + paths.tail
    )
    return np.where(_holds_one_set(scenario, paths), paths.head + np.min(first_backward + rest, axis=0), 0.0)


def _shared_one_full_set(scenario: Scenario, paths: Paths) -> float:
    """The best of `bounds_shared` over the stages with one full set, each behind its slowest shared hop."""
    if paths.traversal.chunks > 1 or not paths.shared.any():
        return 0.0
    slowest = np.maximum.accumulate(np.append(0.0, np.where(paths.shared, paths.held, 0.0)))
    return max(
        (
            staggered_one_full_set(
                pipelines=scenario.pipelines,
                microbatches=scenario.microbatches,
                head=float(paths.head[s]),
                tail=float(paths.back[s] - paths.weight[s]),
                trip=float(paths.trip[s]),
                forward=float(paths.forward[s]),
                again=float(paths.again[s]),
                backward=float(paths.backward[s] + paths.weight[s]),
                transfer=float(slowest[s]),
            )
            for s in np.flatnonzero(_holds_one_set(scenario, paths) & (slowest > 0)).tolist()
        ),
        default=0.0,
    )


def _holds_one_set(scenario: Scenario, paths: Paths) -> NDArray[np.bool_]:
    """The stages that recompute and hold one full set of activations, shape (stages,)."""
    return (paths.recompute > 0) & (scenario.limits("full_limit") == 1)


def _next_unit(bound: float, paths: Paths) -> float:
    """Rounds up to a common unit of all durations, if there is one.

    A schedule whose ops start as early as its order allows has all times in that unit, and any schedule can
    be changed to such a one without ending later (its limits depend on order alone).
    """
    times = (paths.forward, paths.recompute, paths.backward, paths.weight, paths.held, paths.latency)
    unit = common_unit(np.concatenate(times))
    return bound if unit is None else float(np.ceil(bound / unit * (1 - ROUNDING)) * unit)
