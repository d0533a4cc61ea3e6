"""Least idle time of GPUs: at the beginning, before work has arrived, and at the end.

On a GPU of a stage, makespan = work + idle time. Let `released(t)` be an upper limit of the work that can be
done before time t: each op counts from its earliest release on. Then the GPU is idle for at least
t − released(t) before t. The same holds backwards from the end. Two windows that do not overlap add up.

If n pipelines share links, the sum over their n GPUs of a stage is bounded instead. The j-th arrival of any
of them comes j turns of the link after the earliest one, so early work of one is missing in another.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.simulate import bounds_kernel as kernel
from engine.simulate.bounds_paths import Paths

Floats = NDArray[np.float64]
# Ops whose releases are computed one by one, over all positions; later ones only shorten the window.
MOST_RELEASES = 8_000
FEWEST_PER_POSITION = 16
MORE_PASSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Microbatches per pipeline, and the most chunks that each stage may hold, shape (stages,)."""

    pipelines: int
    microbatches: int
    held: NDArray[np.int64]
    full: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Least idle time of each stage up to some moments, both shapes (stages, moments), moments ascending."""

    moment: Floats
    least: Floats


def times_forward(paths: Paths, limits: Limits, sharers: int) -> kernel.PathTimes:
    """Releases seen from time 0."""
    upstream = np.maximum.accumulate(np.maximum(paths.forward, np.append(0.0, paths.held)))
    return _path_times(
        paths, limits, sharers, (paths.head, paths.head), paths.forward, paths.backward, upstream
    )


def times_backward(paths: Paths, limits: Limits, sharers: int) -> kernel.PathTimes:
    """Releases seen backwards from the end."""
    upstream = np.maximum.accumulate(np.maximum(paths.backward, np.append(0.0, paths.held)))
    return _path_times(
        paths, limits, sharers, (paths.back, paths.tail), paths.backward, paths.forward, upstream
    )


def _path_times(
    paths: Paths,
    limits: Limits,
    sharers: int,
    begin: tuple[Floats, Floats],
    first: Floats,
    second: Floats,
    pace: Floats,
) -> kernel.PathTimes:
    turns = np.where(paths.shared | (sharers == 1), paths.held, 0.0)
    row = np.ascontiguousarray  # kernels are compiled again for arrays with gaps, and are slower on them
    return kernel.PathTimes(
        begin=begin[0],
        soonest=begin[1],
        first=row(first),
        trip=row(paths.trip),
        second=row(second),
        again=paths.again,
        weight=row(paths.weight),
        recomputes=paths.recompute > 0,
        cross=paths.held + paths.latency,
        stage=paths.traversal.stage_of,
        order=_order(paths.traversal.stage_of),
        pace=pace,
        turn=np.maximum.accumulate(np.append(0.0, turns)),
        turn_beyond=row(np.maximum.accumulate(np.append(turns, 0.0)[::-1])[::-1]),
        sharers=sharers,
        held=limits.held,
        full=limits.full,
    )


def _order(stage: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each position, the number of positions up to it on its stage."""
    seen = np.zeros(int(stage.max()) + 1, dtype=np.int64)
    order = np.empty_like(stage)
    for position, s in enumerate(stage.tolist()):
        seen[s] += 1
        order[position] = seen[s]
    return order


def releases_of(times: kernel.PathTimes, count: int, *, forward: bool) -> kernel.Releases:
    """The first `count` releases of every position."""
    releases = kernel.Releases(*(np.zeros((count, len(times.begin))) for _ in kernel.Releases._fields))
    positions = _positions_by_stage(times)
    nothing = np.zeros((len(positions), positions.shape[1] * count))
    closed = kernel.Closed(done=nothing, shut=nothing)
    seen = kernel.seen_forward if forward else kernel.seen_backward
    seen(times, closed, releases)
    for _ in range(_more_passes(times, positions, count)):
        seen(times, closed_of(times, releases), releases)
    return releases


def _positions_by_stage(times: kernel.PathTimes) -> NDArray[np.int64]:
    """Positions of each stage, shape (stages, chunks)."""
    stages = int(times.stage.max()) + 1
    return np.argsort(times.stage, kind="stable").reshape(stages, -1)


def _more_passes(times: kernel.PathTimes, positions: NDArray[np.int64], count: int) -> int:
    """Number of passes that apply limits over several positions of a stage to the releases so far."""
    least = min(int(times.held.min()), int(times.full.min()))
    limited = least * times.sharers < positions.shape[1] * count
    return MORE_PASSES if limited and positions.shape[1] > 1 else 0


def closed_of(times: kernel.PathTimes, releases: kernel.Releases) -> kernel.Closed:
    """When each stage, over all its positions, holds one less."""
    positions = _positions_by_stage(times)
    done, shut = (np.sort(_by_stage(values, positions), axis=1) for values in (releases.done, releases.shut))
    return kernel.Closed(done=done, shut=shut)


def idle_of(paths: Paths, times: kernel.PathTimes, limits: Limits, *, forward: bool) -> Idle:
    """Least idle time, summed over the sharers' GPUs of each stage, within windows at one end."""
    every = times.sharers * limits.microbatches
    count = min(every, max(MOST_RELEASES // len(times.begin), FEWEST_PER_POSITION))
    releases = releases_of(times, count, forward=forward)
    positions = paths.traversal.position_of
    kinds = [
        (releases.first, times.first),
        (releases.again, times.again),
        (releases.second, times.second),
        (releases.weight, times.weight),
    ]
    kinds = [(start, length) for start, length in kinds if length.any()]
    opening = (releases.first,) if forward else (releases.first, releases.weight)
    begin = np.concatenate(
        [_starts(times, releases, opening, start, positions) for start, _ in kinds], axis=1
    )
    end = begin + np.concatenate(
        [_by_stage(np.broadcast_to(length, start.shape), positions) for start, length in kinds], axis=1
    )
    rest, last = np.zeros(len(positions)), np.full(len(positions), np.inf)
    if count < every:
        # Beyond `count`: W, which seen backwards may run at any time, and ops after the last one counted.
        if not forward:
            rest = (every - count) * times.weight[positions].sum(axis=1)
        last = releases.first[-1][positions].min(axis=1)
    begin, end = np.sort(begin, axis=1), np.sort(end, axis=1)
    since = _since(times, positions, forward=forward)
    moment, least = (np.empty((len(positions), 2 * begin.shape[1])) for _ in range(2))
    kernel.add_idle(begin, end, since, rest, last, moment, least)
    return Idle(moment=moment, least=least)


def _starts(
    times: kernel.PathTimes,
    releases: kernel.Releases,
    opening: tuple[Floats, ...],
    start: Floats,
    positions: NDArray[np.int64],
) -> Floats:
    """Releases of one kind by stage.

    A chunk is already held during `opening` kinds (seen backwards, W is one). Of these, the m-th over all
    positions waits until few enough are held.
    """
    starts = _by_stage(start, positions)
    most = times.held * times.sharers
    if not any(start is kind for kind in opening) or np.all(most >= starts.shape[1]):
        return starts
    starts = np.sort(starts, axis=1)
    done = closed_of(times, releases).done
    for stage in np.flatnonzero(most < starts.shape[1]).tolist():
        held = int(most[stage])
        starts[stage, held:] = np.maximum(starts[stage, held:], done[stage, :-held])
    return starts


def _since(times: kernel.PathTimes, positions: NDArray[np.int64], *, forward: bool) -> Floats:
    """When the sharers' GPUs can begin to work: each at its first arrival, shape (stages, sharers)."""
    lowest = positions.min(axis=1)
    rank = np.arange(times.sharers)
    since = np.maximum(
        times.soonest[lowest][:, None], times.begin[lowest][:, None] + rank * times.turn[lowest][:, None]
    )
    if not forward:
        # Seen backwards, a GPU that has W has work from the end on.
        since = np.where((times.weight[lowest] > 0)[:, None], 0.0, since)
    return since


def _by_stage(values: Floats, positions: NDArray[np.int64]) -> Floats:
    """(count, L) to (stages, count · chunks)."""
    return values[:, positions].transpose(1, 0, 2).reshape(len(positions), -1)


def idle_within(ahead: Idle, behind: Idle, makespan: float) -> Floats:
    """Most of both ends' idle times whose windows together fit into a makespan, per stage."""
    best = np.zeros(len(ahead.moment))
    kernel.add_windows(ahead.moment, ahead.least, behind.moment, behind.least, makespan, best)
    return best
