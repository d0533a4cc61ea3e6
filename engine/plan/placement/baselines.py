"""Baselines of the search, each scored with the same matching and path order as ours.

(The authors' random baseline is neither matched nor ordered, which makes any search look better than it is.)
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.genetic import crossover
from engine.plan.placement.partition_search import PartitionSearch
from engine.plan.placement.problem import Problem
from engine.plan.placement.result import Start

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DRAWS = 20
POPULATION, GENERATIONS = 100, 5_000
KERNIGHAN_LIN_SWEEPS = 10


def all_of(problem: Problem, seed: int) -> tuple[Start, ...]:
    """Every baseline, by name; the searches with 5,000 evaluations."""
    return (
        Start(name=f"random, mean of {DRAWS}", cost_s=random_s(problem, seed)),
        Start(name="Kernighan–Lin", cost_s=score(problem, kernighan_lin(problem, seed))),
        Start(name="plain genetic", cost_s=plain_genetic(problem, seed).best_s),
        Start(name="the paper's search", cost_s=published_search(problem, seed).best_s),
    )


def score(problem: Problem, members: Ints) -> float:
    """The cost (s) of one partition, shape (P, D)."""
    return PartitionSearch(problem=problem, limit=1).score(members)


def random_s(problem: Problem, seed: int) -> float:
    """Mean cost (s) of random partitions."""
    search = PartitionSearch(problem=problem, seed=seed, limit=DRAWS)
    return sum(search.score(search.shuffled()) for _ in range(DRAWS)) / DRAWS


def plain_genetic(problem: Problem, seed: int, evaluations: int = GENERATIONS) -> PartitionSearch:
    """A genetic algorithm without local search and structured starts.

    A child comes from two random parents: a random number of devices of the one are swapped into the groups
    that they have in the other. The child replaces the worst if it is better.
    """

    def child_of(search: PartitionSearch, one: Ints, other: Ints) -> tuple[Ints, float]:
        child = random_swap(search, one, other)
        return child, search.score(child)

    return _evolved(PartitionSearch(problem=problem, seed=seed, limit=evaluations), child_of)


def published_search(problem: Problem, seed: int) -> PartitionSearch:
    """The paper's hybrid genetic algorithm as its §3.4 describes it, from random partitions.

    A child comes from swaps between two parents and the circular local search by the paper's gain (each
    circle is an evaluation). It replaces the worst of the population if it is better.
    """

    def child_of(search: PartitionSearch, one: Ints, other: Ints) -> tuple[Ints, float]:
        search.score(crossover(search, one, other))
        search.circles(problem.stages)
        return search.state.members.copy(), search.cost_s

    return _evolved(PartitionSearch(problem=problem, seed=seed, limit=GENERATIONS), child_of)


def _evolved(
    search: PartitionSearch, child_of: Callable[[PartitionSearch, Ints, Ints], tuple[Ints, float]]
) -> PartitionSearch:
    """`search` after its evaluations; a child of two random parents replaces the worst if it is better."""
    population = [search.shuffled() for _ in range(POPULATION)]
    costs = np.array([search.score(members) for members in population])
    while not search.is_over:
        one, other = search.draw(POPULATION), search.draw(POPULATION)
        child, cost = child_of(search, population[one], population[other])
        worst = int(costs.argmax())
        if cost < costs[worst]:
            population[worst], costs[worst] = child, cost
    return search


def random_swap(search: PartitionSearch, one: Ints, other: Ints) -> Ints:
    """`one` with devices swapped so that they are in the group of the same number as in `other`."""
    groups, size = one.shape
    child: list[int] = one.ravel().tolist()
    target: list[int] = other.ravel().tolist()
    where = {device: index for index, device in enumerate(child)}
    for _ in range(1 + search.draw(max(1, groups * size // 2))):
        chosen = search.draw(groups * size)
        device, index = target[chosen], chosen // size * size + search.draw(size)
        partner = child[index]
        child[where[device]], child[index] = partner, device
        where[partner], where[device] = where[device], index
    return np.array(child, dtype=np.int64).reshape(groups, size)


def kernighan_lin(problem: Problem, seed: int) -> Ints:
    """Groups by recursive Kernighan–Lin bisection (networkx): least total exchange time inside groups.

    Kernighan–Lin minimises the weight between the parts; the weight of two devices is the time saved if they
    are together.
    """
    import networkx as nx  # type: ignore[import-untyped]  # half a second: only if needed

    weights = problem.data_s.max() - problem.data_s
    graph = nx.from_numpy_array(weights * ~np.eye(problem.devices, dtype=bool))

    def split(devices: list[int], stages: int) -> list[list[int]]:
        if stages == 1:
            return [devices]
        left = stages // 2
        cut = left * problem.replicas
        a, b = nx.community.kernighan_lin_bisection(
            graph.subgraph(devices),
            partition=(devices[:cut], devices[cut:]),
            max_iter=KERNIGHAN_LIN_SWEEPS,
            seed=seed,
        )
        if len(a) != cut:
            a, b = b, a
        return split(sorted(a), left) + split(sorted(b), stages - left)

    shuffled = PartitionSearch(problem=problem, seed=seed, limit=1).shuffled().ravel().tolist()
    return np.array(split(shuffled, problem.stages), dtype=np.int64)
