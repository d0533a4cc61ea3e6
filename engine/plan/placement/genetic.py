"""The search over partitions: a hybrid genetic algorithm (DT-FM §3.4) between annealing by single swaps.

The best structured start first goes downhill. Then come generations. Two parents are drawn, and a child takes
the groups of some devices from one and of the rest from the other. The paper's local search and a short
descent improve it, and it replaces the worst of the population if it is better. The remaining evaluations
anneal the best.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.partition_search import PartitionSearch
from engine.plan.placement.result import Start
from engine.plan.placement.starts import structured

Ints = NDArray[np.int64]


# How the evaluations are spent: shares of them for the first descent and for the genetic algorithm.
DOWNHILL, GENERATIONS = 0.1, 0.2
POPULATION = 12
# Evaluations of the descent that follows the local search of each child, per group.
DESCENT = 30
# Annealing runs, each from the best partition so far; more follow, up to the most, if bounds rule so much out
# that evaluations remain.
LEGS, MOST_LEGS = 2, 6
# Cost that a swap may add at the first and last step of these, as a share of the mean cost of a stage (a swap
# changes the links of few stages).
HOT, COLD = 0.04, 0.0012
LONGEST_BATCH = 512
READ_AT_ONCE = 2e7


@dataclass(slots=True, kw_only=True)
class Member:
    """One partition of the population."""

    members: Ints
    cost_s: float


def evolve(search: PartitionSearch) -> tuple[Start, ...]:
    """Searches until a limit is reached; returns the costs of the structured starts. The best is in the
    search's book.
    """
    starts = score_starts(search)
    if search.problem.replicas > 1 and search.problem.stages > 1:
        _anneal_best(search, int(DOWNHILL * search.limit), 0.0, 0.0)
        population = [Member(members=members, cost_s=start.cost_s) for start, members in starts]
        _generations(search, population)
        for leg in range(MOST_LEGS):
            stage_s = search.best_s / search.problem.stages
            share = max(1, LEGS - leg)
            _anneal_best(search, search.left // share, HOT * stage_s, COLD * stage_s)
    return tuple(start for start, _ in starts)


def score_starts(search: PartitionSearch) -> list[tuple[Start, Ints]]:
    """Scores the structured starts; stripe and block whatever the limits."""
    scored = []
    for i, (name, members) in enumerate(structured(search.problem)):
        if i >= 2 and search.is_over:
            break
        scored.append((Start(name=name, cost_s=search.score(members)), members))
    return scored


def _generations(search: PartitionSearch, population: list[Member]) -> None:
    population.append(Member(members=search.book.members.copy(), cost_s=search.best_s))
    last = search.spent + int(GENERATIONS * search.limit)
    while len(population) < POPULATION and search.spent < last and not search.is_over:
        members = search.shuffled()
        population.append(Member(members=members, cost_s=search.score(members, exact=False)))
    while search.spent < last and not search.is_over:
        _generation(search, population)


def _generation(search: PartitionSearch, population: list[Member]) -> None:
    one, other = (population[search.draw(len(population))] for _ in range(2))
    search.score(crossover(search, one.members, other.members), exact=False)
    groups = search.problem.stages
    search.circles(groups)
    _anneal_in_batches(search, DESCENT * groups, 0.0, 0.0)
    worst = max(range(len(population)), key=lambda i: population[i].cost_s)
    known = any(member.cost_s == search.cost_s for member in population)
    if search.cost_s < population[worst].cost_s and not known:
        population[worst] = Member(members=search.state.members.copy(), cost_s=search.cost_s)


def crossover(search: PartitionSearch, one: Ints, other: Ints) -> Ints:
    """`other`, with some devices swapped into the group that they have in `one` (Kang and Moon 2000)."""
    groups, size = one.shape
    target = np.empty(groups * size, dtype=np.int64)
    target[relabel(one, other)] = np.arange(groups)[:, None]
    child = other.copy()
    where = np.empty(groups * size, dtype=np.int64)
    where[child] = np.arange(groups * size).reshape(groups, size)
    for _ in range(1 + search.draw(max(1, groups * size // 4))):
        device = search.draw(groups * size)
        group = target[device]
        if where[device] // size == group:
            continue
        strangers = [slot for slot in range(size) if target[child[group, slot]] != group]
        slot = strangers[search.draw(len(strangers))]
        partner, index = child[group, slot], where[device]
        child[group, slot], child.flat[index] = device, partner
        where[device], where[partner] = group * size + slot, index
    return child


def relabel(one: Ints, other: Ints) -> Ints:
    """The groups of `one` in the order in which they share most devices with those of `other`, greedily."""
    groups, size = one.shape
    group_of = np.empty(groups * size, dtype=np.int64)
    group_of[one] = np.arange(groups)[:, None]
    shared = np.zeros((groups, groups), dtype=np.int64)
    np.add.at(shared, (group_of[other], np.arange(groups)[:, None]), 1)
    label = np.full(groups, -1, dtype=np.int64)
    free = np.ones(groups, dtype=bool)
    for pair in np.argsort(-shared, axis=None, kind="stable"):
        a, b = divmod(int(pair), groups)
        if free[a] and label[b] < 0:
            label[b], free[a] = a, False
    return one[label]


def _anneal_best(search: PartitionSearch, evaluations: int, hot: float, cold: float) -> None:
    """Anneals from the best partition so far."""
    if evaluations >= 2 and not search.is_over:
        search.score(search.book.members, exact=False)
        _anneal_in_batches(search, evaluations - 1, hot, cold)


def _anneal_in_batches(search: PartitionSearch, evaluations: int, hot: float, cold: float) -> None:
    """Anneals in batches, so clock and cancel take effect between them."""
    batches = -(-evaluations // batch(search.problem.devices, search.problem.stages))
    for i in range(batches):
        if search.is_over:
            return
        count = evaluations * (i + 1) // batches - evaluations * i // batches
        ends = [hot * (cold / hot) ** (j / batches) if hot > 0 else 0.0 for j in (i, i + 1)]
        search.anneal(count, *ends)


def batch(devices: int, stages: int) -> int:
    """Evaluations between two looks at the clock: a fraction of a second, by N and P alone."""
    return max(1, min(LONGEST_BATCH, int(READ_AT_ONCE // costs_read(devices, stages))))


def costs_read(devices: int, stages: int) -> int:
    """About how many costs a swap reads: 2·P·D² for its matchings, and about 8·P² for the path."""
    return 2 * devices * (devices // stages) + 8 * stages * stages
