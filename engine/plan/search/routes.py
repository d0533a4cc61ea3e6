"""Routes: data centres in pipeline order that together hold every stage.

With few data centres all routes are listed. With many, partial routes are extended side by side and the most
promising stay. Of equal data centres only the first unused one extends a route: permuting them changes
nothing.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from engine.plan.search.problem import Problem

Route = tuple[int, ...]

# This many data centres have at most 1,956 routes; of more, the best partial routes are extended.
MOST_EXACT = 6
BEAM = 48
NEIGHBOURS = 12


def routes(problem: Problem, capacities: Sequence[int]) -> tuple[list[Route], bool]:
    """Routes whose data centres hold every stage, and whether these are all that end as soon as they do."""
    candidates = [dc for dc in problem.usable if capacities[dc]]
    if len(candidates) <= MOST_EXACT:
        return list(_all(problem, capacities, candidates, (), 0, _may_gain)), True
    return _beam(problem, capacities, candidates), False


def longer_routes(problem: Problem, capacities: Sequence[int]) -> Iterator[Route]:
    """Every route that holds every stage, those of `routes` included, with any number of data centres not
    needed.

    Such a route is better only by chance of the policy: none of its data centres is faster, or cheaper if
    that counts. For at most `MOST_EXACT` data centres.
    """
    candidates = [dc for dc in problem.usable if capacities[dc]]
    return _all(problem, capacities, candidates, (), 0, lambda *_: True)


def _all(
    problem: Problem,
    capacities: Sequence[int],
    candidates: Sequence[int],
    route: Route,
    held: int,
    goes_on: Callable[[Problem, Sequence[int], Route], bool],
) -> Iterator[Route]:
    """Every route that begins with `route`: up to the point where it holds all stages, and beyond if it
    `goes_on`.

    A data centre that is not needed may still stand between two with only a slow link.
    """
    if held >= problem.job.partitions:
        yield route
        if not goes_on(problem, candidates, route):
            return
    if len(route) < problem.job.partitions:
        for dc in _extensions(problem, candidates, route):
            yield from _all(problem, capacities, candidates, (*route, dc), held + capacities[dc], goes_on)


def _may_gain(problem: Problem, candidates: Sequence[int], route: Route) -> bool:
    """Whether a stage could be faster, or cheaper if that counts, in another data centre."""
    datacenters, request = problem.cluster.datacenters, problem.request
    counts_money = request.objective != "throughput" or request.budget_per_iteration is not None
    return any(
        datacenters[new].gpu.name != datacenters[dc].gpu.name
        or (counts_money and datacenters[new].price_per_gpu_hour < datacenters[dc].price_per_gpu_hour)
        for new in candidates
        if new not in route
        for dc in route
    )


def _extensions(problem: Problem, among: Sequence[int], route: Route) -> Iterator[int]:
    """Data centres that may follow: linked, unused, and the first of equal ones."""
    tried = set()
    for dc in among:
        twin = problem.twins[dc]
        if dc in route or twin in tried:
            continue
        if route and (route[-1], dc) not in problem.hops:
            continue
        tried.add(twin)
        yield dc


def _beam(problem: Problem, capacities: Sequence[int], candidates: Sequence[int]) -> list[Route]:
    """Routes by extending the most promising partial ones: those that hold most, then those with short paths.

    A route is extended by the data centres nearest to its last one and by those with most room.
    """
    stages = problem.job.partitions
    roomy = sorted(candidates, key=lambda dc: (-capacities[dc], dc))[:NEIGHBOURS]
    near = {dc: _nearest(problem, capacities, dc) + roomy for dc in candidates}
    complete: list[Route] = []
    partial: list[tuple[int, float, Route]] = [
        (-min(stages, capacities[dc]), 0.0, (dc,)) for dc in candidates if problem.twins[dc] == dc
    ]
    while partial and len(complete) < BEAM:
        longer: set[tuple[int, float, Route]] = set()
        for held, path_ms, route in sorted(partial)[:BEAM]:
            if -held >= stages:
                complete.append(route)
                continue
            for dc in _extensions(problem, near[route[-1]], route):
                hop = problem.hops[route[-1], dc]
                now = -min(stages, capacities[dc] - held)
                longer.add((now, path_ms + hop.transfer + hop.latency, (*route, dc)))
        partial = list(longer)
    return complete


def _nearest(problem: Problem, capacities: Sequence[int], dc: int) -> list[int]:
    """The data centres with room that have the fastest links to `dc`."""
    return list(itertools.islice((n for n in problem.nearest[dc] if capacities[n]), NEIGHBOURS))
