"""Lower bounds on the makespan of any schedule of a scenario that runs B whole, each with its proof.

Notation, for stage s: ``head`` the earliest start of any op there, ``tail`` the time that must follow the end
of its last op, ``trip`` the least time between the end of F(m) and the arrival of its gradient. All three
count only work of one microbatch and crossings, without any waiting, so no schedule can be shorter.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.schedule.scenario import Scenario, Sharing
from engine.simulate.bounds_shared import staggered_one_full_set

Floats = NDArray[np.float64]
# A whole multiple of a time unit is recognised, and a bound rounded up to one, within this share.
ROUNDING = 1e-9
FINEST_UNIT = 120  # parts of one time unit
MOST_UNITS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Shortest paths around each stage, shapes (stages,) and (stages − 1,); see the module's notation."""

    forward: Floats
    recompute: Floats
    backward: Floats
    transfer: Floats
    latency: Floats
    head: Floats
    tail: Floats
    trip: Floats

    @classmethod
    def of(cls, scenario: Scenario, sharing: Sharing) -> "Paths":
        """Paths under one way of sharing WAN hops."""
        forward = scenario.per_stage("forward")
        backward = scenario.per_stage("backward") + scenario.per_stage("weight")
        transfer = scenario.hop_transfer.copy()
        if sharing == "temporal":
            transfer[list(scenario.wan_hops)] /= scenario.pipelines
        cross = transfer + scenario.hop_latency
        round_trip = np.append(2 * cross + forward[1:] + backward[1:], 0.0)
        return cls(
            forward=forward,
            recompute=scenario.per_stage("recompute"),
            backward=backward,
            transfer=transfer,
            latency=scenario.hop_latency,
            head=np.concatenate([[0.0], np.cumsum(forward[:-1] + cross)]),
            tail=np.concatenate([[0.0], np.cumsum(backward[:-1] + cross)]),
            trip=np.cumsum(round_trip[::-1])[::-1],
        )


def lower_bound(scenario: Scenario, sharing: Sharing) -> float:
    """A makespan that no schedule of `scenario` under `sharing` can beat, whatever its policy."""
    paths = Paths.of(scenario, sharing)
    stagger = _stagger(scenario, paths)
    bounds = [
        float(np.max(_gpu(scenario, paths) + stagger)),
        float(np.max(_path(paths))),
        float(np.max(_links(scenario, paths), initial=0.0)),
        float(np.max(_memory(scenario, paths))),
        float(np.max(_one_full_set(scenario, paths) + stagger)),
        _shared_one_full_set(scenario, paths),
    ]
    return _next_unit(max(bounds), scenario, paths)


def _path(paths: Paths) -> Floats:
    """The longest dependency path: one microbatch down and up again."""
    return paths.head + paths.forward + paths.trip + paths.tail


def _gpu(scenario: Scenario, paths: Paths) -> Floats:
    """Head, work and tail of each GPU.

    Each microbatch needs F, B and either R, or B as the very next op after F: then the GPU is idle for the
    round trip. So it takes the GPU at least F + B + min(R, trip) of time that no other microbatch uses.
    """
    each = paths.forward + paths.backward + np.minimum(paths.recompute, paths.trip)
    return paths.head + scenario.microbatches * each + paths.tail


def _links(scenario: Scenario, paths: Paths) -> Floats:
    """Head, traffic and tail of each link, shape (2, stages − 1).

    A pipeline's own link carries M transfers; a shared one n·M of 1/n of the time: both take M transfer times
    of one share. The last transfer is followed by the rest of its microbatch's path.
    """
    share = np.where(_shared(scenario, paths), scenario.pipelines, 1)
    traffic = scenario.microbatches * paths.transfer * share
    there_and_back = paths.forward + paths.trip + paths.backward
    down = (paths.head + paths.forward)[:-1] + traffic + paths.latency + (there_and_back + paths.tail)[1:]
    up = (paths.head + there_and_back)[1:] + traffic + paths.latency + (paths.backward + paths.tail)[:-1]
    return np.stack([down, up])


def _shared(scenario: Scenario, paths: Paths) -> NDArray[np.bool_]:
    return paths.transfer < scenario.hop_transfer


def _stagger(scenario: Scenario, paths: Paths) -> Floats:
    """By how much the last pipeline must start later than the first, at each stage.

    Transfers on a shared link cannot coincide: the pipeline whose first activation is sent last over a hop
    gets it (n − 1) transfers later than the hop's earliest, and every stage behind the hop starts later by as
    much.
    """
    delay = np.where(_shared(scenario, paths), (scenario.pipelines - 1) * paths.transfer, 0.0)
    return np.concatenate([[0.0], np.maximum.accumulate(delay)])


def _memory(scenario: Scenario, paths: Paths) -> Floats:
    """With L in flight, F number L + 1 waits for a B, and so on: ⌈M / L⌉ round trips in sequence."""
    limit = scenario.memory_limit or scenario.microbatches
    turns = -(-scenario.microbatches // limit)
    return paths.head + turns * (paths.forward + paths.trip + paths.backward) + paths.tail


def _one_full_set(scenario: Scenario, paths: Paths) -> Floats:
    """With full_limit 1, R and B alternate on a GPU: work that only one R can be done ahead of the first B.

    Let the first B start at β, after k forwards. β is at least: the first F, then its trip; the k-th F, which
    comes at the pace of what is slowest upstream; and k forwards with one R (or one trip waited out). From β
    on the GPU still has all M backwards, M − k forwards, and M − 1 times R (or a trip). No k does better than
    the best.
    """
    if scenario.full_limit != 1 or not paths.recompute.any():
        return np.zeros(scenario.stages)
    m = scenario.microbatches
    k = np.arange(1, m + 1)[:, None]
    upstream = np.concatenate([[0.0], paths.transfer])
    pace = np.maximum.accumulate(np.maximum(paths.forward, upstream))
    again = np.minimum(paths.recompute, paths.trip)
    first_backward = np.maximum.reduce(
        [
            paths.forward + paths.trip + 0.0 * k,
            (k - 1) * pace + paths.forward,
            k * paths.forward + again,
        ]
    )
    rest = m * paths.backward + (m - k) * paths.forward + (m - 1) * again
    return paths.head + np.min(first_backward + rest, axis=0) + paths.tail


def _shared_one_full_set(scenario: Scenario, paths: Paths) -> float:
    """The best of `bounds_shared` over the stages that recompute, each behind its slowest shared hop."""
    if scenario.full_limit != 1 or not paths.recompute.any() or not _shared(scenario, paths).any():
        return 0.0
    slowest = np.maximum.accumulate(np.where(_shared(scenario, paths), paths.transfer, 0.0))
    return max(
        staggered_one_full_set(
            pipelines=scenario.pipelines,
            microbatches=scenario.microbatches,
            head=float(paths.head[s]),
            tail=float(paths.tail[s]),
            trip=float(paths.trip[s]),
            forward=float(paths.forward[s]),
            again=float(min(paths.recompute[s], paths.trip[s])),
            backward=float(paths.backward[s]),
            transfer=float(slowest[s - 1]),
        )
        for s in range(1, scenario.stages)
        if slowest[s - 1] > 0
    )


def _next_unit(bound: float, scenario: Scenario, paths: Paths) -> float:
    """Rounds up to a common unit of all durations, where there is one.

    A schedule whose ops start as early as its order allows has all times in that unit, and any schedule can
    be made so without ending later (its limits depend on order alone).
    """
    times = np.concatenate(
        [paths.forward, paths.recompute, paths.backward, paths.transfer, scenario.hop_latency]
    )
    times = np.unique(times[times > 0])
    for parts in range(1, FINEST_UNIT + 1):
        units = np.round(times * parts)
        if units.max() > MOST_UNITS:
            return bound
        if np.all(units > 0) and np.all(np.abs(times * parts - units) <= ROUNDING * units):
            unit = float(np.gcd.reduce(units.astype(np.int64))) / parts
            return float(np.ceil(bound / unit * (1 - ROUNDING)) * unit)
    return bound
