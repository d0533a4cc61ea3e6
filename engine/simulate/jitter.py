"""Jitter: random factors for every op and transfer, and a schedule's makespan with them.

A factor has mean 1 and the scenario's `jitter` as its coefficient of variation, from a gamma distribution
(never negative, any variation). The order of a schedule stays; only its times move.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.schedule.scenario import Scenario
from engine.schedule.timing import Jitter, durations, time_ops
from engine.schedule.traversal import WITHIN_STAGE

DRAWS = 100
# Robustness is drawn for schedules up to this size; beyond, 100 timings would take minutes.
MOST_OPS_DRAWN = 200_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """Makespans of one schedule over `draws` independent draws of its times."""

    draws: int
    mean: float
    p95: float
    worst: float


def draw(scenario: Scenario, schedule: Schedule, seed: int) -> Jitter:
    """Factors of one draw: the same for the same scenario, shape of schedule and seed."""
    random = np.random.default_rng([scenario.seed, seed])
    shape = 1 / scenario.jitter**2
    edges = len(schedule.traversal.positions) - 1
    return Jitter(
        ops=random.gamma(shape, 1 / shape, schedule.ops.shape),
        transfers=random.gamma(shape, 1 / shape, (2, edges, schedule.pipelines, schedule.microbatches)),
    )


def robustness(scenario: Scenario, schedule: Schedule) -> Robustness | None:
    """The schedule's makespan over 100 draws; None without jitter, or if that would take too long."""
    if scenario.jitter == 0 or np.count_nonzero(schedule.ops != NO_OP) > MOST_OPS_DRAWN:
        return None
    spans = [
        time_ops(scenario, schedule, draw(scenario, schedule, number)).makespan for number in range(DRAWS)
    ]
    return Robustness(
        draws=DRAWS, mean=float(np.mean(spans)), p95=float(np.quantile(spans, 0.95)), worst=max(spans)
    )


def drawn_bound(scenario: Scenario, schedule: Schedule, jitter: Jitter) -> float:
    """A makespan that no order of the drawn ops and transfers can beat.

    The bounds are: the longest path of one microbatch down and up; for each GPU its F, B and W and the
    shortest paths into its first and out of its last op; for each link its traffic between the shortest head
    and tail. Recomputes are left out: another order may need others.
    """
    ops = _by_position(scenario, schedule, jitter)
    return max(_bound_of(scenario, schedule, jitter, ops, k) for k in range(schedule.pipelines))


def _by_position(scenario: Scenario, schedule: Schedule, jitter: Jitter) -> Floats:
    """Drawn durations of each op, shape (4 kinds, pipelines, positions, microbatches)."""
    k, s, i = np.nonzero(schedule.ops != NO_OP)
    code = schedule.ops[k, s, i]
    chunk, m = np.divmod(code >> 2, schedule.microbatches)
    length = durations(scenario, schedule.chunks, split=schedule.has(OpKind.W))
    lengths = np.zeros((4, schedule.pipelines, len(schedule.traversal.positions), schedule.microbatches))
    lengths[code & 3, k, schedule.traversal.position_of[s, chunk], m] = (
        length[code & 3, s] * jitter.ops[k, s, i]
    )
    return lengths


def _bound_of(scenario: Scenario, schedule: Schedule, jitter: Jitter, ops: Floats, k: int) -> float:
    forward, _, backward, weight = ops[:, k]
    hop = schedule.traversal.hop_of
    crosses = (hop != WITHIN_STAGE)[:, None]
    held = scenario.hop_times(schedule.sharing)[hop][:, None] * jitter.transfers[:, :, k] * crosses
    down, up = held + scenario.hop_delays(schedule.sharing)[hop][:, None] * crosses
    into = np.cumsum(np.vstack([np.zeros(forward.shape[1]), forward[:-1] + down]), axis=0)
    out = np.cumsum(np.vstack([np.zeros(forward.shape[1]), backward[:-1] + up]), axis=0)
    trip = np.vstack([down + up + forward[1:] + backward[1:], np.zeros(forward.shape[1])])
    trip = np.cumsum(trip[::-1], axis=0)[::-1]
    paths = into + forward + trip + backward + out
    best = float(paths.max())
    tail = np.zeros_like(out) if weight.any() else out  # a W comes last, and nothing waits for it
    for stage in range(schedule.stages):
        here = schedule.traversal.stage_of == stage
        work = float((forward + backward + weight)[here].sum())
        best = max(best, float(into[here].min()) + work + float(tail[here].min()))
    return max([best, *_links(schedule, held, into + forward, into + forward + trip + backward, paths)])


def _links(schedule: Schedule, held: Floats, sent: Floats, returned: Floats, paths: Floats) -> list[float]:
    """Head, traffic and tail of every link of one pipeline."""
    bounds = []
    traversal, edges = schedule.traversal, held.shape[1]
    for direction in range(2):
        for hop in range(schedule.stages):
            transfers = [c for c in traversal.transfer_of[direction, hop].tolist() if c >= 0]
            if not transfers:
                continue
            payload, edge = np.divmod(transfers, edges)
            begins = np.where(payload[:, None] == 0, sent[edge], returned[np.minimum(edge + 1, edges)])
            traffic = held[payload, edge]
            after = paths[edge] - begins - traffic
            bounds.append(float(begins.min() + traffic.sum() + after.min()))
    return bounds
