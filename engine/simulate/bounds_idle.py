"""How long GPUs must be idle: at the beginning, while work has yet to arrive, and at the end.

On a GPU of a stage, makespan = work + idle time. Let `released(t)` be an upper limit of the work that can be
done before time t: each op counts from its earliest release on. Then the GPU is idle for at least
t − released(t) before t. The same holds backwards from the end. Two windows that do not overlap add up.

Where n pipelines share links, the sum over their n GPUs of a stage is bounded instead: the j-th arrival of
any of them comes j turns of the link after the earliest one, so early work of one is missing in another.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.simulate import bounds_kernel as kernel
from engine.simulate.bounds_paths import Paths

Floats = NDArray[np.float64]
# Ops whose releases are looked at one by one, over all places; later ones only shorten the window.
MOST_RELEASES = 8_000
FEWEST_PER_PLACE = 16
MORE_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Microbatches per pipeline, and the most that a place may hold, in chunks."""

    pipelines: int
    microbatches: int
    held: int
    full: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Least idle time of each stage up to some moments, both shapes (stages, moments), moments ascending."""

    moment: Floats
    least: Floats


def ways_forward(paths: Paths, limits: Limits, sharers: int) -> kernel.Ways:
    """Releases seen from time 0."""
    upstream = np.maximum.accumulate(np.maximum(paths.forward, np.append(0.0, paths.held)))
    return _ways(paths, limits, sharers, (paths.head, paths.head), paths.forward, paths.backward, upstream)


def ways_backward(paths: Paths, limits: Limits, sharers: int) -> kernel.Ways:
    """Releases seen backwards from the end."""
    upstream = np.maximum.accumulate(np.maximum(paths.backward, np.append(0.0, paths.held)))
    return _ways(paths, limits, sharers, (paths.back, paths.tail), paths.backward, paths.forward, upstream)


def _ways(
    paths: Paths,
    limits: Limits,
    sharers: int,
    begin: tuple[Floats, Floats],
    first: Floats,
    second: Floats,
    pace: Floats,
) -> kernel.Ways:
    turns = np.where(paths.shared | (sharers == 1), paths.held, 0.0)
    row = np.ascontiguousarray  # kernels are compiled again for arrays with gaps, and walk them more slowly
    return kernel.Ways(
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
    """For each place, how many places up to it are on its stage."""
    seen = np.zeros(int(stage.max()) + 1, dtype=np.int64)
    order = np.empty_like(stage)
    for place, s in enumerate(stage.tolist()):
        seen[s] += 1
        order[place] = seen[s]
    return order


def releases_of(ways: kernel.Ways, count: int, *, forward: bool) -> kernel.Releases:
    """The first `count` releases of every place."""
    releases = kernel.Releases(*(np.zeros((count, len(ways.begin))) for _ in kernel.Releases._fields))
    place = _places_by_stage(ways)
    nothing = np.zeros((len(place), place.shape[1] * count))
    closed = kernel.Closed(done=nothing, shut=nothing)
    seen = kernel.seen_forward if forward else kernel.seen_backward
    seen(ways, closed, releases)
    for _ in range(_more_rounds(ways, place, count)):
        seen(ways, closed_of(ways, releases), releases)
    return releases


def _places_by_stage(ways: kernel.Ways) -> NDArray[np.int64]:
    """Places of each stage, shape (stages, chunks)."""
    stages = int(ways.stage.max()) + 1
    return np.argsort(ways.stage, kind="stable").reshape(stages, -1)


def _more_rounds(ways: kernel.Ways, place: NDArray[np.int64], count: int) -> int:
    """How often limits over several places of a stage are applied to what came out before."""
    limited = min(ways.held, ways.full) * ways.sharers < place.shape[1] * count
    return MORE_ROUNDS if limited and place.shape[1] > 1 else 0


def closed_of(ways: kernel.Ways, releases: kernel.Releases) -> kernel.Closed:
    """When each stage, over all its places, holds one less."""
    place = _places_by_stage(ways)
    done, shut = (np.sort(_by_stage(values, place), axis=1) for values in (releases.done, releases.shut))
    return kernel.Closed(done=done, shut=shut)


def idle_of(paths: Paths, ways: kernel.Ways, limits: Limits, *, forward: bool) -> Idle:
    """Least idle time, summed over the sharers' GPUs of each stage, within windows at one end."""
    every = ways.sharers * limits.microbatches
    count = min(every, max(MOST_RELEASES // len(ways.begin), FEWEST_PER_PLACE))
    releases = releases_of(ways, count, forward=forward)
    place = paths.traversal.place_of
    kinds = [
        (releases.first, ways.first), (releases.again, ways.again), (releases.second, ways.second),
        (releases.weight, ways.weight),
    ]  # fmt: skip
    kinds = [(start, length) for start, length in kinds if length.any()]
    opening = (releases.first,) if forward else (releases.first, releases.weight)
    begin = np.concatenate([_starts(ways, releases, opening, start, place) for start, _ in kinds], axis=1)
    end = begin + np.concatenate(
        [_by_stage(np.broadcast_to(length, start.shape), place) for start, length in kinds], axis=1
    )
    rest, last = np.zeros(len(place)), np.full(len(place), np.inf)
    if count < every:
        # Not looked at: W, which seen backwards may run at any time; the rest, after the last one seen.
        if not forward:
            rest = (every - count) * ways.weight[place].sum(axis=1)
        last = releases.first[-1][place].min(axis=1)
    begin, end = np.sort(begin, axis=1), np.sort(end, axis=1)
    since = _since(ways, place, forward=forward)
    moment, least = (np.empty((len(place), 2 * begin.shape[1])) for _ in range(2))
    kernel.add_idle(begin, end, since, rest, last, moment, least)
    return Idle(moment=moment, least=least)


def _starts(
    ways: kernel.Ways,
    releases: kernel.Releases,
    opening: tuple[Floats, ...],
    start: Floats,
    place: NDArray[np.int64],
) -> Floats:
    """Releases of one kind by stage. Of `opening` kinds, during which a chunk is held already (seen
    backwards, W is one), the m-th of all places waits until few enough are held.
    """
    starts = _by_stage(start, place)
    held = ways.held * ways.sharers
    if not any(start is kind for kind in opening) or held >= starts.shape[1]:
        return starts
    starts = np.sort(starts, axis=1)
    starts[:, held:] = np.maximum(starts[:, held:], closed_of(ways, releases).done[:, :-held])
    return starts


def _since(ways: kernel.Ways, place: NDArray[np.int64], *, forward: bool) -> Floats:
    """From when on the sharers' GPUs can work: each only since its first arrival, shape (stages, sharers)."""
    lowest = place.min(axis=1)
    rank = np.arange(ways.sharers)
    since = np.maximum(
        ways.soonest[lowest][:, None], ways.begin[lowest][:, None] + rank * ways.turn[lowest][:, None]
    )
    if not forward:
        # Seen backwards, a GPU that has W has work from the end on.
        since = np.where((ways.weight[lowest] > 0)[:, None], 0.0, since)
    return since


def _by_stage(values: Floats, place: NDArray[np.int64]) -> Floats:
    """(count, L) to (stages, count · chunks)."""
    return values[:, place].transpose(1, 0, 2).reshape(len(place), -1)


def idle_within(ahead: Idle, behind: Idle, makespan: float) -> Floats:
    """Most of both ends' idle times whose windows together fit into a makespan, per stage."""
    best = np.zeros(len(ahead.moment))
    kernel.add_windows(ahead.moment, ahead.least, behind.moment, behind.least, makespan, best)
    return best
