"""The search over partitions: a hybrid genetic algorithm (DT-FM §3.4) between walks by single swaps.

The best structured start goes downhill first. Then come generations: two parents are drawn, a child takes the
groups of some devices from one and of the rest from the other, the paper's local search and a short walk
downhill improve it, and it replaces the worst of the population where it is better. What is left anneals the
best.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.bench import Bench
from engine.plan.placement.result import Start
from engine.plan.placement.starts import structured

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the evaluations are spent.

    downhill, generations : shares of the evaluations for the first walk and for the genetic algorithm.
    population : partitions kept.
    descent : evaluations of the walk that follows the local search of each child, per group.
    legs : annealing walks, each from the best partition so far; more follow, to most_legs, where bounds rule
        so much out that evaluations are left.
    hot, cold : what a swap of these may add to the cost at their first and last step, as a share of the mean
        cost of a stage (a swap changes the links of few stages).
    """

    downhill: float = 0.1
    generations: float = 0.2
    population: int = 12
    descent: int = 30
    legs: int = 2
    most_legs: int = 6
    hot: float = 0.04
    cold: float = 0.0012


DEFAULT = Settings()
LONGEST_BATCH = 512
READ_AT_ONCE = 2e7


@dataclass(slots=True, kw_only=True)
class Member:
    """One partition of the population."""

    members: Ints
    cost_s: float


def search(bench: Bench, settings: Settings = DEFAULT) -> tuple[Start, ...]:
    """Searches until the bench is over; returns what the structured starts cost. Its book has the best."""
    starts = score_starts(bench)
    if bench.problem.replicas > 1 and bench.problem.stages > 1:
        _anneal(bench, int(settings.downhill * bench.limit), 0.0, 0.0)
        population = [Member(members=members, cost_s=start.cost_s) for start, members in starts]
        _generations(bench, settings, population)
        for leg in range(settings.most_legs):
            stage_s = bench.best_s / bench.problem.stages
            share = max(1, settings.legs - leg)
            _anneal(bench, bench.left // share, settings.hot * stage_s, settings.cold * stage_s)
    return tuple(start for start, _ in starts)


def score_starts(bench: Bench) -> list[tuple[Start, Ints]]:
    """Scores the structured starts; stripe and block whatever the limits."""
    scored = []
    for i, (name, members) in enumerate(structured(bench.problem)):
        if i >= 2 and bench.is_over:
            break
        scored.append((Start(name=name, cost_s=bench.score(members)), members))
    return scored


def _generations(bench: Bench, settings: Settings, population: list[Member]) -> None:
    population.append(Member(members=bench.book.members.copy(), cost_s=bench.best_s))
    last = bench.spent + int(settings.generations * bench.limit)
    while len(population) < settings.population and bench.spent < last and not bench.is_over:
        members = bench.shuffled()
        population.append(Member(members=members, cost_s=bench.score(members, exact=False)))
    while bench.spent < last and not bench.is_over:
        _generation(bench, settings, population)


def _generation(bench: Bench, settings: Settings, population: list[Member]) -> None:
    one, other = (population[bench.draw(len(population))] for _ in range(2))
    bench.score(crossover(bench, one.members, other.members), exact=False)
    groups = bench.problem.stages
    bench.circles(groups)
    _walk(bench, settings.descent * groups, 0.0, 0.0)
    worst = max(range(len(population)), key=lambda i: population[i].cost_s)
    known = any(member.cost_s == bench.cost_s for member in population)
    if bench.cost_s < population[worst].cost_s and not known:
        population[worst] = Member(members=bench.state.members.copy(), cost_s=bench.cost_s)


def crossover(bench: Bench, one: Ints, other: Ints) -> Ints:
    """`other`, with some devices swapped into the group that they have in `one` (Kang and Moon 2000)."""
    groups, size = one.shape
    target = np.empty(groups * size, dtype=np.int64)
    target[relabel(one, other)] = np.arange(groups)[:, None]
    child = other.copy()
    where = np.empty(groups * size, dtype=np.int64)
    where[child] = np.arange(groups * size).reshape(groups, size)
    for _ in range(1 + bench.draw(max(1, groups * size // 4))):
        device = bench.draw(groups * size)
        group = target[device]
        if where[device] // size == group:
            continue
        strangers = [slot for slot in range(size) if target[child[group, slot]] != group]
        slot = strangers[bench.draw(len(strangers))]
        partner, place = child[group, slot], where[device]
        child[group, slot], child.flat[place] = device, partner
        where[device], where[partner] = group * size + slot, place
    return child


def relabel(one: Ints, other: Ints) -> Ints:
    """The groups of `one` in the order in which they share most devices with those of `other`, greedily."""
    groups, size = one.shape
    group_of = np.empty(groups * size, dtype=np.int64)
    group_of[one] = np.arange(groups)[:, None]
    shared = np.zeros((groups, groups), dtype=np.int64)
    np.add.at(shared, (group_of[other], np.arange(groups)[:, None]), 1)
    place = np.full(groups, -1, dtype=np.int64)
    free = np.ones(groups, dtype=bool)
    for pair in np.argsort(-shared, axis=None, kind="stable"):
        a, b = divmod(int(pair), groups)
        if free[a] and place[b] < 0:
            place[b], free[a] = a, False
    return one[place]


def _anneal(bench: Bench, evaluations: int, hot: float, cold: float) -> None:
    """A walk from the best partition so far."""
    if evaluations >= 2 and not bench.is_over:
        bench.score(bench.book.members, exact=False)
        _walk(bench, evaluations - 1, hot, cold)


def _walk(bench: Bench, evaluations: int, hot: float, cold: float) -> None:
    """A walk in batches, so that clock and cancel are heard."""
    batches = -(-evaluations // batch(bench.problem.devices, bench.problem.stages))
    for i in range(batches):
        if bench.is_over:
            return
        made = evaluations * (i + 1) // batches - evaluations * i // batches
        ends = [hot * (cold / hot) ** (j / batches) if hot > 0 else 0.0 for j in (i, i + 1)]
        bench.walk(made, *ends)


def batch(devices: int, stages: int) -> int:
    """Evaluations between two looks at the clock: a fraction of a second, by N and P alone."""
    return max(1, min(LONGEST_BATCH, int(READ_AT_ONCE // costs_read(devices, stages))))


def costs_read(devices: int, stages: int) -> int:
    """About how many costs a swap reads: 2·P·D² for its matchings, and about 8·P² for the path."""
    return 2 * devices * (devices // stages) + 8 * stages * stages
