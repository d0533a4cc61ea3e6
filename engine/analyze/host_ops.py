"""Forwards and backwards that a profile does not name: what the host computes between its transfers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.analyze.events import Events
from engine.analyze.trace import BACKWARD, FORWARD, KIND_OF, Floats, Ints

CALLS = r"c10d::.*"
WAITS = r"(gloo|nccl|mpi|ucc):.*"
AUTOGRAD = r"autograd::engine::.*"
OTHER_WORK = r"Optimizer\..*|enumerate\(DataLoader\).*"
STEPS = r"ProfilerStep#\d+"
# Shorter than this share of the median of its kind is a loss or a buffer, not an op of a microbatch; and what
# is shorter than that share of the longest does not count in the median.
SMALL, TINY = 0.25, 0.05


def host_ops(events: Events) -> Iterator[tuple[Any, ...]]:
    """Kind, position (−1), microbatch, start and end of the ops of each step: those of one kind count up.

    Operators run one after another; a transfer that is asked for, or a change between forward and backward,
    ends an op. An op begins when the host has left the wait before it.
    """
    marks = np.flatnonzero(events.matching(STEPS))
    windows = [(events.start[mark], events.end[mark]) for mark in marks] or [(-np.inf, np.inf)]
    for begin, end in windows:
        inside = (events.start >= begin) & (events.start < end)
        yield from _ops_of_step(events, inside, begin)


def _ops_of_step(events: Events, inside: Any, begin: float) -> Iterator[tuple[Any, ...]]:
    calls = np.flatnonzero(inside & events.matching(CALLS))
    waits = np.flatnonzero(inside & events.matching(WAITS))
    work = np.flatnonzero(
        inside & events.of_category("cpu_op") & ~events.matching(CALLS) & ~_within(events, OTHER_WORK)
    )
    if not len(work):
        return
    # Operators call each other: the outermost ones are not covered by those before.
    covered = np.concatenate([[-np.inf], np.maximum.accumulate(events.end[work])[:-1]])
    work = work[events.start[work] >= covered]
    backward = events.matching(AUTOGRAD)[work]
    other = np.flatnonzero(inside & events.matching(OTHER_WORK))
    left = np.sort(np.concatenate([[begin], *(events.end[which] for which in (calls, waits, other))]))
    launch = events.start[calls]
    cut = np.searchsorted(launch, events.start[work])
    first = np.concatenate([[True], (backward[1:] != backward[:-1]) | (cut[1:] != cut[:-1])])
    begins = np.flatnonzero(first)
    lasts = np.concatenate([begins[1:] - 1, [len(work) - 1]])
    start, end = _times(events.start[work[begins]], events.end[work[lasts]], launch, left)
    yield from _counted(backward[begins], cut[begins], start, end)


def _times(start: Floats, end: Floats, launch: Floats, left: Floats) -> tuple[Floats, Floats]:
    """From the wait or op before to the transfer behind: what Python does in between belongs to the op."""
    before = np.concatenate([[-np.inf], end[:-1]])
    waited = np.searchsorted(left, start, side="right") - 1
    known = np.maximum(before, np.where(waited >= 0, left[np.maximum(waited, 0)], -np.inf))
    begin = np.where(np.isfinite(known), known, start)
    if not len(launch):
        return begin, end
    following = np.searchsorted(launch, end)
    sent = np.where(following < len(launch), launch[np.minimum(following, len(launch) - 1)], np.inf)
    behind = np.concatenate([start[1:], [np.inf]])
    return begin, np.where(sent <= behind, np.where(np.isfinite(sent), sent, end), end)


def _counted(backward: Any, cut: Ints, start: Floats, end: Floats) -> Iterator[tuple[Any, ...]]:
    included = np.zeros(len(start), dtype=np.bool_)
    for is_backward in (False, True):
        of_kind = backward == is_backward
        if of_kind.any():
            took = end - start
            counted = took[of_kind & (took >= TINY * took[of_kind].max())]
            included |= of_kind & (took >= SMALL * np.median(counted))
    if backward.any():  # what is computed behind the last backward is of no microbatch
        included[int(np.flatnonzero(backward)[-1]) + 1 :] = False
    backward, cut, start, end = backward[included], cut[included], start[included], end[included]
    # What stood between the parts of one op was too small to count.
    apart = (backward[1:] != backward[:-1]) | (cut[1:] != cut[:-1])
    begins = np.flatnonzero(np.concatenate([[True], apart]))
    lasts = np.concatenate([begins[1:] - 1, [len(start) - 1]])
    for name, is_backward in ((FORWARD, False), (BACKWARD, True)):
        chosen = backward[begins] == is_backward
        count = int(chosen.sum())
        kind, none = np.full(count, KIND_OF[name]), np.full(count, -1)
        yield kind, none, np.arange(count), start[begins][chosen], end[lasts][chosen]


def _within(events: Events, pattern: str) -> Any:
    """Which events start within one of this name."""
    outer = np.flatnonzero(events.matching(pattern))
    if not len(outer):
        return np.zeros(len(events.start), dtype=np.bool_)
    at = np.searchsorted(events.start[outer], events.start, side="right") - 1
    return (at >= 0) & (events.start < events.end[outer][np.maximum(at, 0)])
