"""Earliest release times of the ops at every position, compiled; bounds of idle time use them.

Op j of a kind at a position is the j-th of that kind there in time: of one pipeline, or of all `sharers` that
share links. An order statistic needs no names: if every B starts a trip after its F, the j-th B starts a
trip after the j-th F.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.schedule.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class PathTimes(NamedTuple):
    """Times by position, shape (L,); see `Paths`. They are seen from one end of the schedule.

    Seen forward: `first` F, then `trip`, then B, then W. Seen from the end, backwards in time: W is free to
    run at once, `first` is B, then `trip`, then F.
    """

    begin: Floats  # earliest start of the first op, on the path through all positions
    soonest: Floats  # the same, if another path is longer; it need not keep their pace
    first: Floats  # its duration
    trip: Floats
    second: Floats  # duration of the op after the trip
    again: Floats
    weight: Floats
    recomputes: NDArray[np.bool_]
    cross: Floats  # (L − 1,), transfer and latency of each edge
    stage: Ints
    order: Ints  # number of positions of the same stage up to this one
    pace: Floats  # least time between two firsts of one pipeline
    turn: Floats  # least time between two firsts of any pipelines that share a link on the path here
    turn_beyond: Floats  # and on the trip
    sharers: int
    held: Ints  # (stages,), most chunks of one pipeline that a stage holds
    full: Ints


class Releases(NamedTuple):
    """Earliest starts, shape (count, L)."""

    first: Floats
    again: Floats
    second: Floats
    weight: Floats
    done: Floats  # end of what `held` counts
    shut: Floats  # seen backward: end of what `full` counts


class Closed(NamedTuple):
    """By stage, shape (stages, count · chunks), ascending: earliest times at which it holds one less."""

    done: Floats
    shut: Floats


@compiled
def _busy_downstream(times, v, turn, so_far):
    """Delay of second op number `turn` after the first one, as GPUs beyond do all those before it."""
    span = times.first[v] + times.trip[v] + times.second[v]
    work = times.first[v] + times.again[v] + times.second[v]
    return max(so_far, (turn + 1) * work - span)


@compiled
def _start(times, v, j):
    paced = times.begin[v] + max(j * times.turn[v], (j // times.sharers) * times.pace[v])
    return max(times.soonest[v], paced)


@compiled
def _second(times, v, j, late):
    return times.soonest[v] + times.first[v] + times.trip[v] + max(late, j * times.turn_beyond[v])


@compiled
def _waits(times, closed, limit, v, j):
    """At the j-th first op at v, j + 1 of each earlier position of the stage have begun; `limit` may stay."""
    gone = times.order[v] * (j + 1) - limit
    return closed[times.stage[v], gone - 1] if gone > 0 else 0.0


@compiled
def _arrives(times, releases, v, j):
    """The j-th first op at v comes after the j-th at the position before."""
    return releases.first[j, v - 1] + times.first[v - 1] + times.cross[v - 1] if v > 0 else 0.0


@compiled
def _returns(times, releases, v, j):
    """The j-th second op at v comes after the j-th at the position behind."""
    if v + 1 == len(times.begin):
        return 0.0
    return releases.second[j, v + 1] + times.second[v + 1] + times.cross[v]


@compiled
def seen_forward(times, closed, releases):
    """F, again, B, W from time 0 on. A limit makes F (or `again`) wait for the W of an earlier microbatch."""
    for j in range(len(releases.first)):
        for v in range(len(times.begin)):
            held = times.held[times.stage[v]] * times.sharers
            full = times.full[times.stage[v]] * times.sharers
            start = max(_start(times, v, j), _arrives(times, releases, v, j))
            if j >= held:
                start = max(start, releases.done[j - held, v])
            start = max(start, _waits(times, closed.done, held, v, j))
            again = start + times.first[v]
            if times.recomputes[v] and j >= full:
                again = max(again, releases.done[j - full, v])
            releases.first[j, v] = start
            releases.again[j, v] = again
        late = 0.0
        for v in range(len(times.begin) - 1, -1, -1):
            late = _busy_downstream(times, v, j // times.sharers, late)
            second = releases.first[j, v] + times.first[v] + times.trip[v]
            second = max(second, releases.again[j, v] + times.again[v])
            second = max(second, _second(times, v, j, late), _returns(times, releases, v, j))
            releases.second[j, v] = second
            releases.weight[j, v] = second + times.second[v]
            releases.done[j, v] = second + times.second[v] + times.weight[v]


@compiled
def seen_backward(times, closed, releases):
    """W, B, again, F from the end on, backwards. `done` is the start of F, as seen forward, `shut` of R."""
    for j in range(len(releases.first)):
        for v in range(len(times.begin)):
            held = times.held[times.stage[v]] * times.sharers
            full = times.full[times.stage[v]] * times.sharers
            weight = 0.0
            if j >= held:
                weight = max(weight, releases.done[j - held, v])
            if times.recomputes[v] and j >= full:
                weight = max(weight, releases.shut[j - full, v])
            start = max(weight + times.weight[v], _start(times, v, j), _arrives(times, releases, v, j))
            start = max(start, _waits(times, closed.done, held, v, j))
            if times.recomputes[v]:
                start = max(start, _waits(times, closed.shut, full, v, j))
            releases.weight[j, v] = weight
            releases.first[j, v] = start
            releases.again[j, v] = start + times.first[v]
            releases.shut[j, v] = start + times.first[v] + times.again[v]
        late = 0.0
        for v in range(len(times.begin) - 1, -1, -1):
            late = _busy_downstream(times, v, j // times.sharers, late)
            second = releases.first[j, v] + times.first[v] + times.trip[v]
            second = max(second, releases.shut[j, v])
            second = max(second, _second(times, v, j, late), _returns(times, releases, v, j))
            releases.second[j, v] = second
            releases.done[j, v] = second + times.second[v]


@compiled
def add_idle(begin, end, since, rest, last, moment, least):
    """Least idle time of each stage up to each begin or end of an op: fills `moment` and `least`.

    begin, end : (stages, ops), each ascending: earliest start of each op, and the end that follows from it.
    since : (stages, sharers), when their GPUs can begin to work at all.
    rest : (stages,), work that may run at any time.  last : (stages,), the latest known moment.
    """
    sharers = since.shape[1]
    for s in range(len(begin)):
        i, j, running = 0, 0, 0
        released, before, most = 0.0, 0.0, 0.0
        for x in range(moment.shape[1]):
            starts = i < begin.shape[1] and begin[s, i] <= end[s, j]
            now = begin[s, i] if starts else end[s, j]
            released += running * (now - before)
            before = now
            if starts:
                i += 1
                running += 1
            else:
                j += 1
                running -= 1
            now = min(now, last[s])
            capacity = 0.0
            for k in range(sharers):
                capacity += max(0.0, now - since[s, k])
            most = max(most, sharers * now - min(released + rest[s], capacity))
            moment[s, x] = now
            least[s, x] = most


@compiled
def add_windows(ahead, ahead_least, behind, behind_least, makespan, best):
    """Fills `best`, shape (stages,), with the most idle time of two windows that together fit `makespan`.

    ahead, behind : (stages, moments), ascending, lengths of the windows at each end.
    """
    for s in range(len(best)):
        j = behind.shape[1] - 1
        best[s] = 0.0
        for i in range(ahead.shape[1]):
            if ahead[s, i] > makespan:
                break
            while j >= 0 and behind[s, j] > makespan - ahead[s, i]:
                j -= 1
            later = behind_least[s, j] if j >= 0 else 0.0
            best[s] = max(best[s], ahead_least[s, i] + later)
