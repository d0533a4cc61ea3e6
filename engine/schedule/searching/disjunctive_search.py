"""The search in one frame: it builds schedules, keeps the best, and improves it move by move."""

from dataclasses import dataclass
from math import inf

import numpy as np

from engine.schedule.search import Chosen
from engine.schedule.searching import tabu_search
from engine.schedule.searching.builder import ScheduleBuilder
from engine.schedule.searching.disjunctive_graph import DisjunctiveGraph, graph_of, take_orders
from engine.schedule.searching.incumbent import SAME, Incumbent, Seed
from engine.schedule.searching.orders import keys_of, limits_hold, schedule_of
from engine.schedule.searching.problem import Ints
from engine.schedule.searching.starts import Start

JUSTIFY_PASSES = 6
DISTURBED_PASSES = 3
# Most operations that one call of a kernel visits: a cancel takes effect only between calls.
SLICE = 1_000_000
# Moves without a better schedule until the orders are disturbed.
PATIENCE = 2_000
MOVED = "; moves along the longest path"
DISTURBED = "; order disturbed"


@dataclass(slots=True, kw_only=True)
class DisjunctiveSearch:
    """A schedule builder and its best schedule.

    makespan, starts : of the best, in ticks.
    idea : the origin of the best.
    work : operations visited, over all passes.
    """

    best: Incumbent
    builder: ScheduleBuilder
    makespan: float = inf
    starts: Ints | None = None
    idea: str = ""
    stale: int = 0
    graph: DisjunctiveGraph | None = None

    @property
    def length(self) -> float:
        """The best makespan in the scenario's unit."""
        return self.makespan * self.builder.problem.tick

    @property
    def work(self) -> int:
        return self.builder.work + (int(self.graph.visited[0]) if self.graph else 0)

    def build(self, start: Start) -> None:
        """Builds a schedule from nothing and justifies it."""
        makespan = start.build(self.builder)
        if makespan is not None:
            self._keep(self.builder.justify(makespan, JUSTIFY_PASSES), self.builder.starts(), start.idea)

    def plant(self, seed: Seed) -> None:
        """Starts from a policy's schedule: from its own order, and from its order placed into gaps."""
        keys = keys_of(self.builder.problem, seed.schedule, seed.timing)
        self.builder.in_order(keys)
        self._set_orders(self.builder.starts(), f"order of {seed.policy}")
        makespan = self.builder.justify(self.builder.place(keys), JUSTIFY_PASSES)
        self._keep(makespan, self.builder.starts(), f"order of {seed.policy}, justified")

    def go_on(self, random: np.random.Generator) -> None:
        """Makes a slice of moves; or disturbs the orders, if the moves have gained nothing for long."""
        if self.graph is None:
            self._set_orders(self.starts, self.idea)
        elif self.stale > PATIENCE:
            self.stale = 0
            self._disturb(random)
        else:
            self._move()

    def _set_orders(self, starts: Ints | None, idea: str) -> None:
        """Lets the moves begin at `starts`."""
        assert starts is not None
        if self.graph is None:
            self.graph = graph_of(self.builder.arrays, self.best.search.seed)
        take_orders(self.graph, starts)
        makespan = tabu_search.improve(self.builder.arrays, self.graph, tabu_search.FAR, 0, 0)
        start = self.graph.best.reshape(starts.shape)
        problem = self.builder.problem
        if makespan < self.makespan and limits_hold(problem.scenario, schedule_of(problem, start)):
            self._keep(makespan, start, idea)

    def _move(self) -> None:
        assert self.graph is not None
        assert self.starts is not None
        step = int(self.graph.step[0])
        enough = int(self.best.search.bound * (1 + SAME) / self.builder.problem.tick)
        makespan = tabu_search.improve(self.builder.arrays, self.graph, int(self.makespan), enough, SLICE)
        # If no move is left, disturb at once.
        self.stale += int(self.graph.step[0]) - step or PATIENCE + 1
        if makespan < self.makespan:
            self.stale = 0
            self._keep(makespan, self.graph.best.reshape(self.starts.shape), _with(self.idea, MOVED))

    def _disturb(self, random: np.random.Generator) -> None:
        """Shifts some operations of the best schedule and places them again; the moves go on from there."""
        assert self.starts is not None
        assert self.graph is not None
        if random.random() < 0.3:
            take_orders(self.graph, self.starts)
            return
        shape = self.starts.shape
        reach = int(self.makespan * random.choice([0.01, 0.03, 0.1, 0.3])) + 1
        pattern = [(1, 1, 1), (shape[0], 1, 1), (1, *shape[1:]), shape][random.integers(4)]
        shift = random.integers(-reach, reach + 1, size=pattern)
        shift = np.where(random.random(shape) < random.choice([0.05, 0.3, 1.0]), shift, 0)
        makespan = self.builder.justify(self.builder.place(self.starts + shift), DISTURBED_PASSES)
        starts = self.builder.starts()
        self._keep(makespan, starts, _with(self.idea, DISTURBED))
        take_orders(self.graph, starts)

    def _keep(self, makespan: int, starts: Ints, idea: str) -> None:
        """Stores a schedule that is not worse, and offers one that is the best of all searches."""
        if makespan > self.makespan:
            return
        if makespan < self.makespan:
            self.idea = idea
        self.makespan, self.starts = makespan, starts.copy()
        if self.length < self.best.makespan * (1 - SAME):
            self._offer()

    def _offer(self) -> None:
        problem = self.builder.problem
        chosen = Chosen(
            policy="auto",
            traversal=problem.traversal.name,
            sharing=problem.frame.sharing,
            chunks=problem.traversal.chunks,
            idea=self.idea + ("; backward split" if problem.split else ""),
        )
        assert self.starts is not None
        self.builder.delay_forwards(self.starts, int(self.makespan))
        self.best.offer(self.builder.schedule(), chosen)


def _with(idea: str, suffix: str) -> str:
    return (
        idea.removesuffix(MOVED).removesuffix(DISTURBED).removesuffix(MOVED).removesuffix(DISTURBED) + suffix
    )
