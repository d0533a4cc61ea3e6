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

JUSTIFY_ROUNDS = 6
DISTURBED_ROUNDS = 3
# Operations that one call of a kernel may visit: it cannot be cancelled meanwhile.
SLICE = 1_000_000
# Moves without anything better until the orders are disturbed.
PATIENCE = 2_000
MOVED = "; moves along the longest path"
DISTURBED = "; order disturbed"


@dataclass(slots=True, kw_only=True)
class DisjunctiveSearch:
    """A schedule builder and the best schedule that it has built.

    makespan, starts : of that best, in ticks.
    idea : where it came from.
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
        """Builds from nothing and justifies."""
        makespan = start.build(self.builder)
        if makespan is not None:
            self._keep(self.builder.justify(makespan, JUSTIFY_ROUNDS), self.builder.starts(), start.idea)

    def plant(self, seed: Seed) -> None:
        """Starts from a policy's schedule: from its own order, and from its order placed into gaps."""
        keys = keys_of(self.builder.problem, seed.schedule, seed.timing)
        self.builder.in_order(keys)
        self._set_orders(self.builder.starts(), f"order of {seed.policy}")
        makespan = self.builder.justify(self.builder.place(keys), JUSTIFY_ROUNDS)
        self._keep(makespan, self.builder.starts(), f"order of {seed.policy}, justified")

    def go_on(self, random: np.random.Generator) -> None:
        """A slice of moves; or, when they have led nowhere for long, a new place to move from."""
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
            self.graph = graph_of(self.builder.plan, self.best.search.seed)
        take_orders(self.graph, starts)
        makespan = tabu_search.improve(self.builder.plan, self.graph, tabu_search.FAR, 0, 0)
        found = self.graph.best.reshape(starts.shape)
        problem = self.builder.problem
        if makespan < self.makespan and limits_hold(problem.scenario, schedule_of(problem, found)):
            self._keep(makespan, found, idea)

    def _move(self) -> None:
        assert self.graph is not None
        assert self.starts is not None
        step = int(self.graph.step[0])
        enough = int(self.best.search.bound * (1 + SAME) / self.builder.problem.tick)
        makespan = tabu_search.improve(self.builder.plan, self.graph, int(self.makespan), enough, SLICE)
        # Where no move is left, there is nothing to be patient for.
        self.stale += int(self.graph.step[0]) - step or PATIENCE + 1
        if makespan < self.makespan:
            self.stale = 0
            self._keep(makespan, self.graph.best.reshape(self.starts.shape), _with(self.idea, MOVED))

    def _disturb(self, random: np.random.Generator) -> None:
        """Places the best again after shifting some operations' turns; the moves go on from there."""
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
        makespan = self.builder.justify(self.builder.place(self.starts + shift), DISTURBED_ROUNDS)
        starts = self.builder.starts()
        self._keep(makespan, starts, _with(self.idea, DISTURBED))
        take_orders(self.graph, starts)

    def _keep(self, makespan: int, starts: Ints, idea: str) -> None:
        """Remembers what is not worse, and offers what beats everything."""
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
