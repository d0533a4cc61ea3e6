"""The state of a search over partitions: the kernels' memory, the book of results, and the limits."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement import kernel_dice, kernel_search
from engine.plan.placement.kernel_cost import TOTAL, Costs, Room, State, new_room, new_state
from engine.plan.placement.kernel_search import Book, CircleRoom, circle_room, new_book
from engine.plan.placement.problem import Problem
from engine.plan.placement.result import StoppedBy

Ints = NDArray[np.int64]

Report = Callable[[int, float], None]


@dataclass(slots=True, kw_only=True)
class PartitionSearch:
    """One search: counts evaluations, stores the best, and knows when to stop.

    limit : most evaluations;  seconds : wall time after which no more begin;  cancelled : called between
        batches;
    report : called with the evaluations so far and the least cost.
    """

    problem: Problem
    seed: int = 0
    limit: int
    seconds: float | None = None
    cancelled: Callable[[], bool] = lambda: False
    report: Report = lambda _at, _cost: None
    costs: Costs = field(init=False)
    state: State = field(init=False)
    room: Room = field(init=False)
    book: Book = field(init=False)
    circle: CircleRoom = field(init=False)
    dice: NDArray[np.uint64] = field(init=False)
    stopped_by: StoppedBy | None = field(init=False, default=None)
    began: float = field(init=False, default_factory=time.monotonic)

    def __post_init__(self) -> None:
        shape = (self.problem.stages, self.problem.replicas)
        self.costs = self.problem.costs
        self.state, self.room, self.book = new_state(*shape), new_room(*shape), new_book(*shape)
        self.circle = circle_room(*shape)
        self.dice = np.array([self.seed], dtype=np.uint64)

    @property
    def spent(self) -> int:
        """Evaluations so far."""
        return int(self.book.evaluations[0])

    @property
    def left(self) -> int:
        """Evaluations that may still be made."""
        return max(0, self.limit - self.spent)

    @property
    def best_s(self) -> float:
        """The least cost so far."""
        return float(self.book.cost[0])

    @property
    def is_over(self) -> bool:
        """Whether a limit is reached; also reports the progress."""
        self.report(self.spent, self.best_s)
        if self.stopped_by is None:
            if self.left == 0:
                self.stopped_by = "evaluations"
            elif self.cancelled():
                self.stopped_by = "cancelled"
            elif self.seconds is not None and time.monotonic() - self.began > self.seconds:
                self.stopped_by = "seconds"
        return self.stopped_by is not None

    def draw(self, below: int) -> int:
        """A random number from 0 to below − 1."""
        return int(kernel_dice.draw(self.dice, below))

    def shuffled(self) -> Ints:
        """A random partition, shape (P, D)."""
        devices = np.arange(self.problem.devices)
        for last in range(len(devices) - 1, 0, -1):
            other = self.draw(last + 1)
            devices[last], devices[other] = devices[other], devices[last]
        return devices.reshape(self.problem.stages, self.problem.replicas)

    def score(self, members: Ints, exact: bool = True) -> float:
        """The cost of a partition, shape (P, D); one evaluation. Leaves it in `state`.

        exact : see `kernel_cost.evaluate`; if false, the cost may be a little too high.
        """
        self.state.members[:] = members
        return float(kernel_search.score(self.costs, self.state, exact, self.room, self.book))

    def circles(self, most: int) -> float:
        """The paper's local search from `state`, at most `most` evaluations; returns the final cost."""
        return float(
            kernel_search.circles(
                self.costs, self.state, self.room, self.book, self.circle, min(most, self.left)
            )
        )

    def anneal(self, evaluations: int, hot: float = 0.0, cold: float = 0.0) -> float:
        """Single swaps from `state` (see `kernel_search.anneal`); returns the final cost."""
        count = min(evaluations, self.left)
        return float(
            kernel_search.anneal(self.costs, self.state, self.room, self.book, self.dice, count, hot, cold)
        )

    @property
    def cost_s(self) -> float:
        """The cost of `state`."""
        return float(self.state.cost[TOTAL])
