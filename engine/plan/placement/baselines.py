"""What the search is compared with: each scored with the same matching and path order as ours.

(The authors' random baseline is neither matched nor ordered, which makes any search look better than it is.)
"""

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.bench import Bench
from engine.plan.placement.genetic import crossover
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
    return Bench(problem=problem, limit=1).score(members)


def random_s(problem: Problem, seed: int) -> float:
    """Mean cost (s) of random partitions."""
    bench = Bench(problem=problem, seed=seed, limit=DRAWS)
    return sum(bench.score(bench.shuffled()) for _ in range(DRAWS)) / DRAWS


def plain_genetic(problem: Problem, seed: int, evaluations: int = GENERATIONS) -> Bench:
    """A genetic algorithm without local search and structured starts.

    Of two parents drawn a child is made: a random number of devices of the one are swapped into the groups
    that they have in the other. The child replaces the worst where it is better.
    """
    bench = Bench(problem=problem, seed=seed, limit=evaluations)
    population = [bench.shuffled() for _ in range(POPULATION)]
    costs = np.array([bench.score(members) for members in population])
    while not bench.is_over:
        one, other = bench.draw(POPULATION), bench.draw(POPULATION)
        child = random_swap(bench, population[one], population[other])
        cost = bench.score(child)
        worst = int(costs.argmax())
        if cost < costs[worst]:
            population[worst], costs[worst] = child, cost
    return bench


def published_search(problem: Problem, seed: int, evaluations: int = GENERATIONS) -> Bench:
    """The paper's hybrid genetic algorithm as its §3.4 describes it, from random partitions.

    A child by swaps between two parents, circular local search by the paper's gain (each circle is an
    evaluation), and the worst of the population gives way where the child is better.
    """
    bench = Bench(problem=problem, seed=seed, limit=evaluations)
    population = [bench.shuffled() for _ in range(POPULATION)]
    costs = np.array([bench.score(members) for members in population])
    while not bench.is_over:
        one, other = bench.draw(POPULATION), bench.draw(POPULATION)
        bench.score(crossover(bench, population[one], population[other]))
        bench.circles(problem.stages)
        worst = int(costs.argmax())
        if bench.cost_s < costs[worst]:
            population[worst], costs[worst] = bench.state.members.copy(), bench.cost_s
    return bench


def random_swap(bench: Bench, one: Ints, other: Ints) -> Ints:
    """`one` with devices swapped so that they are in the group of the same number as in `other`."""
    groups, size = one.shape
    child: list[int] = one.ravel().tolist()
    target: list[int] = other.ravel().tolist()
    where = {device: place for place, device in enumerate(child)}
    for _ in range(1 + bench.draw(max(1, groups * size // 2))):
        chosen = bench.draw(groups * size)
        device, place = target[chosen], chosen // size * size + bench.draw(size)
        partner = child[place]
        child[where[device]], child[place] = partner, device
        where[partner], where[device] = where[device], place
    return np.array(child, dtype=np.int64).reshape(groups, size)


def kernighan_lin(problem: Problem, seed: int) -> Ints:
    """Groups by recursive Kernighan–Lin bisection (networkx): least total exchange time inside groups.

    Kernighan–Lin makes the weight between the parts small: that of two devices is what being together saves.
    """
    import networkx as nx  # type: ignore[import-untyped]  # half a second: only where asked for

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

    shuffled = Bench(problem=problem, seed=seed, limit=1).shuffled().ravel().tolist()
    return np.array(split(shuffled, problem.stages), dtype=np.int64)
