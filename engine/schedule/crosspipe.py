"""CrossPipe's greedy: list scheduling that knows latency, transfer times and both limits.

Source: Chen et al., "CrossPipe" (ATC 2025), "Greedy Schedule" for the traversals UD, UDSub, Loop, Wave. The
paper leaves the rules open; here every op has a key. A free GPU starts the op with the smallest key among
those that can run; a link sends the message whose receiver has the smallest (`position_kernel`). The key of
an op of microbatch m is its start time if microbatches followed each other at an even tempo and none ever
waited. A short tempo prefers ops early on the path, a long one old microbatches (backward first).
`crosspipe_ideas` sets how fast microbatches may enter, and other settings.

Each run is then justified, as in project scheduling with limited resources (Valls, Ballestín and Quintanilla,
EJOR 2005). The latest start of each op that would not delay the end becomes its key, and the loop runs again,
until that gains nothing. The static orders of the same traversal are justified too. From the best settings
on, one setting is changed at a time; then microbatches get times of their own (`crosspipe_uneven`). Work is
counted in ops, not in seconds: same input, same answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine.errors import Infeasible
from engine.schedule import interleaved, one_f_one_b, position_kernel, zb_h1, zb_v
from engine.schedule.crosspipe_ideas import Idea, neighbours, starts
from engine.schedule.crosspipe_uneven import Uneven
from engine.schedule.ir import NO_OP, OpKind
from engine.schedule.latest_kernel import latest
from engine.schedule.position_loop import PositionLoop
from engine.schedule.position_state import Cell, State
from engine.schedule.scenario import MOST_CHUNKS, RecomputeRule, Scenario
from engine.schedule.search import Built, Chosen, Frame, OneTraversal, Search
from engine.schedule.static import Codes, in_sub_blocks, with_recompute
from engine.schedule.traversal import Traversal, straight

Orders = Callable[[Scenario, Traversal], Codes | Infeasible]
# No further run starts once all runs together have started this many ops (about 1.5 s).
MOST_STARTED = 4_000_000
MOST_PASSES = 12
FOLLOWED = 2  # of the first settings, the number whose neighbours are tried
PERTURBED = 8  # ideas that are perturbed
MOST_VAIN = 4  # perturbed ideas in a row that gain nothing
MOST_IDLE = 60  # changes in a row that gain nothing
SLACK = 0.01  # most by which a change may worsen the makespan
SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossPipe(OneTraversal):
    """The greedy on one traversal.

    static : orders of the same traversal that are justified too.
    """

    chunks_to: int = MOST_CHUNKS
    static: tuple[Orders, ...] = ()

    def build(self, scenario: Scenario, search: Search) -> Built:
        """The best schedule. There always is one: the limits hold at least one microbatch."""
        (frame,) = self.frames(scenario)
        attempts = _Attempts(scenario=scenario, frame=frame, search=search)
        attempts.explore(self.static)
        best = attempts.best
        chosen = Chosen(
            policy=scenario.policy,
            traversal=self.traversal,
            sharing=frame.sharing,
            chunks=frame.traversal.chunks,
            recompute_rule=best.loop.rule,
            idea=best.idea,
        )
        return Built(schedule=best.loop.schedule(best.state), chosen=chosen)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Best:
    makespan: float
    loop: PositionLoop
    state: State
    idea: str


@dataclass(slots=True, kw_only=True)
class _Attempts:
    """Runs of the loop on one scenario; keeps the best."""

    scenario: Scenario
    frame: Frame
    search: Search
    started: int = 0
    incumbent: _Best | None = None
    loops: dict[RecomputeRule, PositionLoop] = field(default_factory=dict)
    tried: dict[Idea, float] = field(default_factory=dict)

    @property
    def best(self) -> _Best:
        assert self.incumbent is not None
        return self.incumbent

    @property
    def ended(self) -> bool:
        """Whether the search must end: proven best, out of time, or cancelled."""
        if self.incumbent is None:
            return False
        reached = self.best.makespan <= self.search.bound * (1 + SAME)
        return reached or self.search.stopped_by() is not None

    @property
    def over(self) -> bool:
        """Whether to try nothing more: ended, or enough work done."""
        return self.ended or self.started > MOST_STARTED

    @property
    def rules(self) -> tuple[RecomputeRule, ...]:
        """Recompute rules that may be tried."""
        if self.scenario.recompute_rule is not None:
            return (self.scenario.recompute_rule,)
        return ("idle", "late") if self.scenario.per_stage("recompute").any() else ("idle",)

    def explore(self, static: tuple[Orders, ...]) -> None:
        """One setting; static orders, however large the cell; other settings; neighbours of the best."""
        first, *further = starts(self.loop(self.rules[0]).cell, self.rules)
        self.attempt(first)
        for orders in static:
            self.repair(orders)
        for idea in further:
            self.attempt(idea)
        if self.frame.traversal.name == "straight" and self.frame.traversal.chunks > 1:
            self.repair(self.whole_stages)
        for idea in sorted(self.tried, key=self.tried.__getitem__)[:FOLLOWED]:
            self.follow(idea)
        if self.frame.traversal.name != "straight":
            # On straight traversals, even settings are within 3 % of the bound.
            self.local_search()

    def follow(self, idea: Idea) -> None:
        """Changes one setting at a time until that gains nothing."""
        cell = self.loop(idea.rule).cell
        least = self.tried[idea]
        gained = True
        while gained:
            gained = False
            for other in neighbours(idea, cell, self.rules):
                if self.over:
                    return
                if other not in self.tried and self.attempt(other) < least * (1 - SAME):
                    idea, least, gained = other, self.tried[other], True

    def local_search(self) -> None:
        """Perturbs unlike ideas until several in a row gain nothing."""
        vain = 0
        for idea in self.most_unlike(PERTURBED):
            before = self.best.makespan
            self.perturb(idea)
            vain = 0 if self.best.makespan < before * (1 - SAME) else vain + 1
            if vain == MOST_VAIN:
                break

    def most_unlike(self, count: int) -> list[Idea]:
        """The best ideas, one of each makespan."""
        by_makespan = {makespan: idea for idea, makespan in reversed(self.tried.items())}
        return [by_makespan[makespan] for makespan in sorted(by_makespan)[:count]]

    def perturb(self, idea: Idea) -> None:
        """Random small changes of an idea, undone if much worse, until many in a row gain nothing."""
        random = np.random.default_rng(self.search.seed)
        loop = self.loop(idea.rule)
        here = Uneven.of(idea, loop.cell.microbatches)
        least, idle = self.attempt_uneven(loop, here), 0
        while idle < MOST_IDLE and not self.over:
            there = here.changed(random)
            makespan = self.attempt_uneven(loop, there)
            idle = 0 if makespan < least * (1 - SAME) else idle + 1
            if makespan <= least * (1 + SLACK):
                here, least = there, makespan

    def attempt_uneven(self, loop: PositionLoop, uneven: Uneven) -> float:
        """One run, then justification without the times at which microbatches may enter."""
        cell = uneven.applied(loop.cell)
        state = self.run(loop, cell, str(uneven))
        free = cell._replace(release=np.zeros(cell.microbatches))
        return self.justify(loop, free, state, str(uneven))

    def loop(self, rule: RecomputeRule) -> PositionLoop:
        """The event loop under one recompute rule."""
        if rule not in self.loops:
            self.loops[rule] = PositionLoop.of(
                self.scenario,
                self.frame,
                split=bool(np.any(self.scenario.per_stage("weight") > 0)),
                rule=rule,
                contention=self.scenario.contention or "rank",
            )
        return self.loops[rule]

    def attempt(self, idea: Idea) -> float:
        """One run, then justification; returns the best makespan of these."""
        if self.over:
            return np.inf
        loop = self.loop(idea.rule)
        cell = idea.applied(loop.cell)
        state = self.run(loop, cell, str(idea))
        makespan = self.justify(loop, cell, state, str(idea))
        if idea.pace:
            free = cell._replace(release=np.zeros(cell.microbatches))
            makespan = min(makespan, self.justify(loop, free, state, str(idea)))
        self.tried[idea] = makespan
        return makespan

    def run(self, loop: PositionLoop, cell: Cell, idea: str, given: Codes | None = None) -> State:
        """One run of the event loop; the best so far is stored."""
        state = loop.state(given, log=True)
        position_kernel.run(cell, state)
        self.started += int(state.length.sum())
        makespan = float(state.free.max())
        if self.incumbent is None or makespan < self.incumbent.makespan * (1 - SAME):
            self.incumbent = _Best(makespan=makespan, loop=loop, state=state, idea=idea)
            self.search.tell(makespan, idea)
        return state

    def justify(self, loop: PositionLoop, cell: Cell, state: State, idea: str) -> float:
        """Runs again with the latest starts of the last run as keys, until that gains nothing."""
        after = np.empty((cell.pipelines, 3 * len(cell.position_of) + len(cell.link_of) * cell.microbatches))
        keys = np.zeros((3, cell.pipelines, len(cell.stage_of), cell.microbatches))
        makespan = float(state.free.max())
        for _ in range(MOST_PASSES):
            if self.over:
                break
            latest(cell, state, keys, after)
            state = self.run(loop, cell._replace(keys=keys), f"{idea}, justified")
            if float(state.free.max()) >= makespan * (1 - SAME):
                break
            makespan = float(state.free.max())
        return makespan

    def whole_stages(self, scenario: Scenario, traversal: Traversal) -> Codes:
        """The greedy's order of whole stages, each op cut into sub-blocks: as fast, and no more is held."""
        frame = Frame(traversal=straight(traversal.stages), sharing=self.frame.sharing)
        whole = _Attempts(scenario=scenario, frame=frame, search=self.search)
        whole.explore(UD.static)
        self.started += whole.started
        return in_sub_blocks(whole.best.state.order[0], traversal.chunks, scenario.microbatches)

    def repair(self, orders: Orders) -> None:
        """Runs and justifies a static order of the same traversal."""
        if self.ended:
            return
        given = orders(self.scenario, self.frame.traversal)
        loop = self.loop(self.rules[0])
        if isinstance(given, Infeasible) or _is_split(given) != loop.cell.split:
            return
        given = with_recompute(given, self.scenario.per_stage("recompute") > 0)
        state = self.run(loop, loop.cell._replace(fixed=True), "static order", given)
        self.justify(loop, loop.cell, state, "static order")


def _is_split(orders: Codes) -> bool:
    return bool(np.any((orders != NO_OP) & ((orders & 3) == OpKind.W)))


UD = CrossPipe(chunks_to=1, static=(one_f_one_b.orders, zb_h1.orders))
UDSUB = CrossPipe(chunks=2)
LOOP = CrossPipe(traversal="loop", chunks=2, chunks_from=2, static=(interleaved.orders,))
WAVE = CrossPipe(traversal="wave", chunks=2, chunks_from=2, static=(zb_v.orders,))
