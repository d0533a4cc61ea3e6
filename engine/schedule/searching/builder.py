"""Builds schedules of one problem, justifies them, and counts the work."""

from collections.abc import Callable

import numpy as np

from engine.schedule.ir import Schedule
from engine.schedule.searching import arrivals, chains, justify, ring
from engine.schedule.searching.orders import schedule_of
from engine.schedule.searching.problem import Ints, SchedulingProblem
from engine.schedule.searching.timelines import UNPLACED, MachineTimelines, clear, empty_timelines, last_end

# The interpreter's share of a pass costs about as much as this many operations.
PASS_OVERHEAD = 1_000


class ScheduleBuilder:
    """Holds one tentative schedule in its timelines.

    over : called before each pass of justification; a true result ends it.
    work : operations placed so far, over all passes; evaluation budgets count it.
    """

    def __init__(self, problem: SchedulingProblem, over: Callable[[], object] = lambda: None) -> None:
        self.problem = problem
        self.over = over
        self.arrays = problem.arrays
        self.timelines: MachineTimelines = empty_timelines(self.arrays)
        self.work = 0
        self._ring: MachineTimelines | None = None
        n, m = self.arrays.pipelines, self.arrays.microbatches
        self._rows = np.flatnonzero(problem.exists)
        nodes = (self._rows[:, None, None] * n + np.arange(n)[:, None]) * m + np.arange(m)
        self._nodes: Ints = nodes.ravel()
        self._length = self.arrays.duration[self._rows][:, None, None]

    @property
    def operations(self) -> int:
        return len(self._nodes)

    def starts(self) -> Ints:
        """A copy of the starts, shape (rows, pipelines, microbatches)."""
        return self.timelines.start.copy()

    def schedule(self) -> Schedule:
        """The schedule that the timelines hold."""
        return schedule_of(self.problem, self.timelines.start)

    def insert(self, order: Ints, release: Ints, *, late: bool) -> int:
        """Inserts whole chains in `order` (``pipeline · M + microbatch``); returns the makespan."""
        clear(self.timelines)
        chains.insert_chains(self.arrays, self.timelines, order, release, late)
        return self._settle()

    def insert_periodic(self, order: Ints, release: Ints, period: int, *, late: bool) -> int | None:
        """Builds a periodic schedule; returns None if it does not fit the period."""
        if self._ring is None:
            self._ring = empty_timelines(self.arrays, 1, ring.TURNS)
        clear(self._ring)
        clear(self.timelines)
        self._count()
        if not ring.insert_periodic(self.arrays, self._ring, self.timelines, order, release, period, late):
            return None
        return self._settle()

    def serve(self, release: Ints, turns: Ints | None = None, *, forwards_first: bool = False) -> int | None:
        """First come, first served; None if operations wait for each other.

        turns : the pipelines in the order in which they take links that they share; None: in order of
            arrival.
        forwards_first : F goes before a B that came little earlier.
        """
        clear(self.timelines)
        self._count()
        queues = arrivals.queues_of(self.arrays, release, turns, forwards_first=forwards_first)
        served = arrivals.serve(self.arrays, self.timelines.start, queues, self.operations)
        return int(last_end(self.arrays, self.timelines)) if served == self.operations else None

    def place(self, keys: Ints) -> int:
        """Places every operation in its earliest gap, in the order of `keys` (shaped as starts)."""
        self.timelines.start[:] = keys
        return self._settle()

    def justify(self, makespan: int, passes: int) -> int:
        """Justifies right and left until that gains nothing, at most `passes` times; returns the makespan."""
        for _ in range(passes):
            if self.over():
                break
            order = self._order(by_end=True)
            clear(self.timelines)
            justify.place_late(self.arrays, self.timelines, order, makespan)
            self._count()
            before, makespan = makespan, self._place_early()
            if makespan >= before:
                break
        return makespan

    def delay_forwards(self, start: Ints, makespan: int) -> None:
        """Moves F, R and activations of `start` as late as the B's allow: less is held, no time lost."""
        self.timelines.start[:] = start
        order = self._order(by_end=True)
        row = order // (self.arrays.pipelines * self.arrays.microbatches)
        positions, edges = self.arrays.positions, self.arrays.positions - 1
        moves = (row < 2 * positions) | ((row >= 4 * positions) & (row < 4 * positions + edges))
        clear(self.timelines)
        justify.place_at(self.arrays, self.timelines, order[~moves], start)
        justify.place_late(self.arrays, self.timelines, order[moves], makespan)
        self._count()

    def in_order(self, keys: Ints) -> None:
        """Sets the starts to `keys`, microbatches in order and causes first, without a search for gaps."""
        missing = bool(np.any(keys[self._rows] == UNPLACED))
        self.timelines.start[:] = keys
        self.timelines.start.sort(axis=2)
        # An R that is missing must be placed within the limits.
        justify.lift(self.arrays, self.timelines, missing)
        self._count()

    def _settle(self) -> int:
        """Sorts the starts in microbatch order, then causes first, and places each in its earliest gap."""
        self.timelines.start.sort(axis=2)
        justify.lift(self.arrays, self.timelines, True)
        self._count()
        return self._place_early()

    def _place_early(self) -> int:
        order = self._order(by_end=False)
        clear(self.timelines)
        self._count()
        return int(justify.place_early(self.arrays, self.timelines, order))

    def _order(self, *, by_end: bool) -> Ints:
        """Nodes by start, or in reverse by end. A W of no duration comes before ops that start with it."""
        start = self.timelines.start[self._rows]
        keys = 2 * (start + self._length) + (self._length == 0) if by_end else 2 * start + (self._length > 0)
        order = self._nodes[np.argsort(keys.ravel(), kind="stable")]
        return np.ascontiguousarray(order[::-1]) if by_end else order

    def _count(self) -> None:
        self.work += self.operations + PASS_OVERHEAD
