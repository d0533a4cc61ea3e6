"""The search for a placement, compiled: which pipeline begins a request first, and when each chunk runs.

A pipeline of pp_degree stages is the GPUs of one rank in adjacent DP-cells (BubbleTea §5.1). Stage i computes
its share of the layers for chunk after chunk. A chunk of n tokens after p tokens takes
(a + b·n + c·((p + n)² − p²)) / pp_degree on each stage.
"""

from typing import NamedTuple

import numpy as np

from engine.prefill.kernels.gaps import EPS, HEAD, NONE, NOW, TAIL, Floats, Ints, fit, forget_past, give, take
from engine.schedule.compiled import compiled

# Columns of a placed interval.
GPU, BEGIN, END, TOKENS = 0, 1, 2, 3
# Rows of `Room.soonest`.
ANY, CHUNK = 0, 1


class Room(NamedTuple):
    """Pipelines, the latency model, and working memory for a search."""

    stages: Ints  # (pipelines, pp_degree): GPU of each stage
    dc: Ints  # (pipelines,)
    first_of: Ints  # (GPUs,): the pipeline whose first stage it is, NONE for other stages
    soonest: Floats  # (2, pipelines): earliest begin on the first stage: any chunk, `smallest` ms
    smallest: Floats  # (1,): of the smallest chunk on a stage; 0 if requests stay whole
    model: Floats  # (5,): a, b, c of the whole model; a hop's ms, and ms per token
    rows: Floats  # (most intervals, 4): the last result, see the columns above
    ready: Floats  # (pp_degree,): when each stage is done with the chunk before
    at: Ints  # (pp_degree,): the gap of that chunk
    last_gap: Ints  # (pp_degree,): the gaps that the smallest chunk would use
    turn: Ints  # (1,): the pipeline with which the next search begins
    nothing: Floats  # (0, 3): the chunks under way of a new request


@compiled
def stage_ms(room, done, tokens):
    """Time of a chunk on one stage."""
    model, degree = room.model, room.stages.shape[1]
    squares = tokens * (2.0 * done + tokens)
    return (model[0] + model[1] * tokens + model[2] * squares) / degree


@compiled
def most_tokens(room, done, span, limit):
    """Most tokens of a chunk, up to `limit`, that one stage computes within `span` ms; 0 if none."""
    if stage_ms(room, done, limit) <= span:
        return limit
    model, degree = room.model, room.stages.shape[1]
    left = span * degree - model[0]
    if left <= 0:
        return 0
    slope = model[1] + 2.0 * model[2] * done
    if model[2] > 0:
        tokens = int((np.sqrt(slope * slope + 4.0 * model[2] * left) - slope) / (2.0 * model[2]))
    else:
        tokens = int(left / slope)
    tokens = min(limit, tokens + 1)
    while tokens > 0 and stage_ms(room, done, tokens) > span:
        tokens -= 1
    return tokens


@compiled
def passes(gaps, room, p, done, tokens, target):
    """Whether a chunk passes all stages; with `target`, in gaps no later than those in `last_gap`.

    Without `target`, the gaps are written there.
    """
    arrives = room.ready[0]
    took = stage_ms(room, done, tokens)
    for j in range(room.stages.shape[1]):
        g = room.stages[p, j]
        begin = max(room.ready[j], arrives)
        i = fit(gaps, g, room.at[j], begin, took, np.inf)
        if i == NONE or (target and i > room.last_gap[j]):
            return False
        if not target:
            room.last_gap[j] = i
        arrives = max(gaps.edges[g, i, 0], begin) + took + room.model[3] + room.model[4] * tokens
    return True


@compiled
def chunk_tokens(gaps, room, p, done, least, limit):
    """Tokens of the next chunk: as many as pass in the gaps that `least` would use; 0: it does not pass."""
    if not passes(gaps, room, p, done, least, False):
        return 0
    g, i = room.stages[p, 0], room.last_gap[0]
    span = gaps.edges[g, i, 1] - max(gaps.edges[g, i, 0], room.ready[0])
    high = max(least, most_tokens(room, done, span, limit))
    if room.stages.shape[1] == 1 or passes(gaps, room, p, done, high, True):
        return high
    low = least
    while high - low > 1:
        middle = (low + high) // 2
        if passes(gaps, room, p, done, middle, True):
            low = middle
        else:
            high = middle
    return low


@compiled
def lay_chunk(gaps, room, p, first, done, size, arrives, count):
    """Places a chunk on the stages from `first` on, its input at `arrives`, after `count` intervals.

    Returns the new number of intervals; NONE if a stage has no gap for it.
    """
    degree, took = room.stages.shape[1], stage_ms(room, done, size)
    if count + degree - first > len(room.rows):
        return NONE
    for j in range(first, degree):
        g = room.stages[p, j]
        begin = max(room.ready[j], arrives)
        i = fit(gaps, g, room.at[j], begin, took, np.inf)
        if i == NONE:
            return NONE
        begin = max(gaps.edges[g, i, 0], begin)
        room.rows[count, GPU] = g
        room.rows[count, BEGIN] = begin
        room.rows[count, END] = begin + took
        room.rows[count, TOKENS] = size
        count += 1
        room.ready[j] = begin + took
        room.at[j] = i
        arrives = begin + took + room.model[3] + room.model[4] * size
    return count


@compiled
def lay_request(gaps, room, p, tokens, done, chunk, not_before, flying):
    """Places a request on pipeline `p` from token `done` on; writes `rows`. (end, intervals), or (inf, 0).

    not_before : on the first stage.  flying : rows (tokens, first stage, arrives) of its next chunks, which
        have passed the stages before that; they stay whole.
    """
    degree, count = room.stages.shape[1], 0
    for j in range(degree):
        room.ready[j] = not_before if j == 0 else -np.inf
        room.at[j] = gaps.book[room.stages[p, j], HEAD]
    for f in range(len(flying)):
        size = int(flying[f, 0])
        count = lay_chunk(gaps, room, p, int(flying[f, 1]), done, size, flying[f, 2], count)
        if count == NONE:
            return np.inf, 0
        done += size
    while done < tokens:
        least = min(chunk, tokens - done)
        size = chunk_tokens(gaps, room, p, done, least, tokens - done)
        if size == 0:
            return np.inf, 0
        count = lay_chunk(gaps, room, p, 0, done, size, room.ready[0], count)
        if count == NONE:
            return np.inf, 0
        done += size
    return room.rows[count - 1, END], count


@compiled
def begins(gaps, room, p, need, not_before, before):
    """When a chunk of `need` ms could begin on the first stage; inf if not before `before`.

    It records the result for the next search, which can then pass over a busy pipeline.
    """
    g = room.stages[p, 0]
    for j in range(room.stages.shape[1]):
        forget_past(gaps, room.stages[p, j])
    i = gaps.book[g, HEAD]
    if i < gaps.book[g, TAIL]:
        room.soonest[ANY, p] = gaps.edges[g, i, 0]
    if need >= room.smallest[0]:
        i = fit(gaps, g, i, gaps.clock[NOW], room.smallest[0], np.inf)
        if i == NONE:
            return np.inf
        room.soonest[CHUNK, p] = gaps.edges[g, i, 0]
    i = fit(gaps, g, i, not_before, need, before)
    return np.inf if i == NONE else max(gaps.edges[g, i, 0], not_before)


@compiled
def find(gaps, room, tokens, chunk, not_before, dc, looks):
    """The pipeline that begins the request first: (pipeline, end, intervals), pipeline NONE if there is none.

    Of those that can begin at once, up to `looks` are tried and the first to end is chosen. Each search
    starts after the last pipeline used, so it need not pass those that it filled before. `dc` NONE: any.
    """
    pipelines, degree = room.stages.shape
    need = stage_ms(room, 0, min(chunk, tokens))
    best, best_begin, best_end, seen = NONE, np.inf, np.inf, 0
    first, soonest = room.turn[0], room.soonest[CHUNK if need >= room.smallest[0] else ANY]
    before = np.inf
    for step in range(pipelines):
        p = first + step if first + step < pipelines else first + step - pipelines
        # Tested here, not in `begins`: most pipelines are passed over, and a call costs more than the test.
        if soonest[p] >= before or (dc != NONE and room.dc[p] != dc):
            continue
        begin = begins(gaps, room, p, need, not_before, before)
        if begin == np.inf:
            continue
        end, count = lay_request(gaps, room, p, tokens, 0, chunk, begin, room.nothing)
        if count == 0:
            continue
        if begin > not_before:
            best, best_begin, before = p, begin, begin
            continue
        seen += 1
        before = not_before + EPS
        if seen == 1 or end < best_end:
            best, best_begin, best_end = p, begin, end
        if seen == looks or count == degree:
            break
    if best == NONE:
        return NONE, np.inf, 0
    room.turn[0] = best + 1 if best + 1 < pipelines else 0
    best_end, count = lay_request(gaps, room, best, tokens, 0, chunk, best_begin, room.nothing)
    return best, best_end, count


@compiled
def take_all(gaps, room, rows):
    """Takes every interval of `rows`; if one does not fit, takes nothing and returns False."""
    for i in range(len(rows)):
        if not take(gaps, int(rows[i, GPU]), rows[i, BEGIN], rows[i, END]):
            give_all(gaps, room, rows[:i])
            return False
    return True


@compiled
def give_all(gaps, room, rows):
    """Returns every interval of `rows`."""
    for i in range(len(rows)):
        g = int(rows[i, GPU])
        give(gaps, g, rows[i, BEGIN], rows[i, END])
        if room.first_of[g] != NONE:
            room.soonest[:, room.first_of[g]] = -np.inf
