"""Runs the search: builds schedules in every frame, then improves the most promising ones."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from engine.schedule.ir import OpKind
from engine.schedule.scenario import Scenario
from engine.schedule.search import Frame
from engine.schedule.searching.builder import ScheduleBuilder
from engine.schedule.searching.disjunctive_search import DisjunctiveSearch
from engine.schedule.searching.incumbent import SAME, Incumbent
from engine.schedule.searching.orders import keys_of, limits_hold
from engine.schedule.searching.portfolio import Portfolio
from engine.schedule.searching.problem import SchedulingProblem
from engine.schedule.searching.starts import Start, starts
from engine.schedule.timing import time_ops

# Operations that one search visits, about half a minute; and the share of them for starts.
EFFORT = 300_000_000
BEGINNINGS = 0.3
# One pass over more operations takes longer than a cancel may wait.
MOST_OPERATIONS = 1_000_000
# After the first start in each, this many frames are searched.
MOST_SEARCHES = 6


def improve(portfolio: Portfolio, frames: tuple[Frame, ...], effort: int) -> None:
    """Improves on the best in `frames` until the search is over or its effort spent."""
    best = portfolio.best
    searches = [
        DisjunctiveSearch(best=best, builder=ScheduleBuilder(problem, best.over))
        for problem in problems(best.scenario, frames)
    ]
    _plant(best, searches)
    _begin(best, searches, effort)
    portfolio.try_variants()
    _plant(best, searches)
    searches = [search for search in searches if search.starts is not None]
    random = np.random.default_rng(best.search.seed)
    while searches and not best.over() and _work(searches) < effort:
        searches.sort(key=lambda search: search.length)
        del searches[MOST_SEARCHES:]
        which = min(int(random.geometric(0.5)) - 1, len(searches) - 1)
        searches[which].go_on(random)


def hold_back(best: Incumbent) -> None:
    """Delays F and R of a policy's schedule if that costs no time; the search's own are delayed already.

    The order alone decides when R runs then, without a recompute rule.
    """
    schedule, chosen = best.schedule, best.chosen
    if schedule is None or chosen is None or chosen.policy == "auto" or schedule.ops.size > MOST_OPERATIONS:
        return
    frame = Frame(traversal=schedule.traversal, sharing=schedule.sharing)
    builder = ScheduleBuilder(
        SchedulingProblem(scenario=best.scenario, frame=frame, split=schedule.has(OpKind.W))
    )
    builder.in_order(keys_of(builder.problem, schedule, time_ops(best.scenario, schedule)))
    horizon = round(best.makespan / builder.problem.tick)
    builder.delay_forwards(builder.starts(), horizon)
    later = builder.schedule()
    makespan = time_ops(best.scenario, later).makespan
    if limits_hold(best.scenario, later) and makespan <= best.makespan * (1 + SAME):
        best.schedule, best.chosen = later, replace(chosen, recompute_rule=None)
        best.makespan = makespan


def problems(scenario: Scenario, frames: tuple[Frame, ...]) -> list[SchedulingProblem]:
    """One for each frame and each form of B, small enough to search in."""
    splits = (False, True) if scenario.per_stage("weight").any() else (False,)
    ops = scenario.pipelines * scenario.stages * scenario.microbatches * 4
    return [
        SchedulingProblem(scenario=scenario, frame=frame, split=split)
        for frame in frames
        for split in splits
        if ops * frame.traversal.chunks <= MOST_OPERATIONS
    ]


def _plant(best: Incumbent, searches: list[DisjunctiveSearch]) -> None:
    """Gives each search the best policy's schedule in its frame if its own best is worse."""
    for search in searches:
        seed = best.seeds.get((search.builder.problem.frame, search.builder.problem.split))
        if best.over():
            return
        if seed is not None and seed.timing.makespan < search.length * (1 - SAME):
            search.plant(seed)


def _begin(best: Incumbent, searches: list[DisjunctiveSearch], effort: int) -> None:
    """Runs the starts of the searches in turn; only the best searches run all of theirs."""
    waiting: list[tuple[DisjunctiveSearch, Iterator[Start]]] = [
        (search, starts(search.builder)) for search in searches
    ]
    while waiting and _work(searches) < BEGINNINGS * effort:
        for search, remaining in list(waiting):
            start = next(remaining, None)
            if best.over():
                return
            if start is None:
                waiting.remove((search, remaining))
            else:
                search.build(start)
        waiting.sort(key=lambda entry: entry[0].length)
        del waiting[MOST_SEARCHES:]


def _work(searches: list[DisjunctiveSearch]) -> int:
    return sum(search.work for search in searches)
