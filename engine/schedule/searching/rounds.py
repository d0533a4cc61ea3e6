"""The rounds of the search: build in every frame, then go on where it looks best."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from engine.schedule.ir import OpKind
from engine.schedule.scenario import Scenario
from engine.schedule.search import Frame
from engine.schedule.searching.bench import Bench
from engine.schedule.searching.incumbent import SAME, Incumbent
from engine.schedule.searching.orders import keys_of, limits_hold
from engine.schedule.searching.portfolio import Portfolio
from engine.schedule.searching.shop import Shop
from engine.schedule.searching.starts import Start, starts
from engine.schedule.searching.workshop import Workshop
from engine.schedule.timing import time_ops

# Operations that one search visits, about half a minute; and the share of them for beginnings.
EFFORT = 300_000_000
BEGINNINGS = 0.3
# One pass over more operations takes longer than a cancel may wait.
MOST_OPERATIONS = 1_000_000
# After the first beginning in each, this many frames are searched.
MOST_BENCHES = 6


def improve(portfolio: Portfolio, frames: tuple[Frame, ...], effort: int = EFFORT) -> None:
    """Looks for something better in `frames` until the search is over or its effort spent."""
    best = portfolio.best
    benches = [Bench(best=best, workshop=Workshop(shop, best.over)) for shop in shops(best.scenario, frames)]
    _plant(best, benches)
    _begin(best, benches, effort)
    portfolio.try_variants()
    _plant(best, benches)
    benches = [bench for bench in benches if bench.starts is not None]
    random = np.random.default_rng(best.search.seed)
    while benches and not best.over() and _work(benches) < effort:
        benches.sort(key=lambda bench: bench.length)
        del benches[MOST_BENCHES:]
        which = min(int(random.geometric(0.5)) - 1, len(benches) - 1)
        benches[which].go_on(random)


def hold_back(best: Incumbent) -> None:
    """Lets F and R of a policy's schedule wait where that costs no time; the search's own do so already.

    The order alone says when R runs then: no recompute rule does.
    """
    schedule, chosen = best.schedule, best.chosen
    if schedule is None or chosen is None or chosen.policy == "auto" or schedule.ops.size > MOST_OPERATIONS:
        return
    frame = Frame(traversal=schedule.traversal, sharing=schedule.sharing)
    workshop = Workshop(Shop(scenario=best.scenario, frame=frame, split=schedule.has(OpKind.W)))
    workshop.in_order(keys_of(workshop.shop, schedule, time_ops(best.scenario, schedule)))
    horizon = round(best.makespan / workshop.shop.tick)
    workshop.delay_forwards(workshop.starts(), horizon)
    later = workshop.schedule()
    makespan = time_ops(best.scenario, later).makespan
    if limits_hold(best.scenario, later) and makespan <= best.makespan * (1 + SAME):
        best.schedule, best.chosen = later, replace(chosen, recompute_rule=None)
        best.makespan = makespan


def shops(scenario: Scenario, frames: tuple[Frame, ...]) -> list[Shop]:
    """One for each frame and each way to run B, small enough to search in."""
    splits = (False, True) if scenario.per_stage("weight").any() else (False,)
    ops = scenario.pipelines * scenario.stages * scenario.microbatches * 4
    return [
        Shop(scenario=scenario, frame=frame, split=split)
        for frame in frames
        for split in splits
        if ops * frame.traversal.chunks <= MOST_OPERATIONS
    ]


def _plant(best: Incumbent, benches: list[Bench]) -> None:
    """Gives each bench the best schedule of a policy in its frame, where it has none as good."""
    for bench in benches:
        seed = best.seeds.get((bench.workshop.shop.frame, bench.workshop.shop.split))
        if best.over():
            return
        if seed is not None and seed.timing.makespan < bench.length * (1 - SAME):
            bench.plant(seed)


def _begin(best: Incumbent, benches: list[Bench], effort: int) -> None:
    """Beginnings, in turn over the benches; only the best benches get all of theirs."""
    waiting: list[tuple[Bench, Iterator[Start]]] = [(bench, starts(bench.workshop)) for bench in benches]
    while waiting and _work(benches) < BEGINNINGS * effort:
        for bench, ways in list(waiting):
            start = next(ways, None)
            if best.over():
                return
            if start is None:
                waiting.remove((bench, ways))
            else:
                bench.build(start)
        waiting.sort(key=lambda entry: entry[0].length)
        del waiting[MOST_BENCHES:]


def _work(benches: list[Bench]) -> int:
    return sum(bench.work for bench in benches)
