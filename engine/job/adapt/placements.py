"""Placements for what a run measured: which GPU computes which stage of which pipeline.

DT-FM's own search (§3) proposes them by Eqs. 1 to 4, with the measured links in place of the document's and
the present placement among its starts. Eq. 1 adds up messages: it knows no microbatches, no slow GPU and not
the all-reduce that runs. So exchanges of two GPUs then improve each proposal, and the present placement, by
an estimate of an iteration.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import combinations, combinations_with_replacement, islice

import numpy as np

from engine.job.adapt.layouts import Conditions
from engine.job.adapt.measured import work_ms
from engine.job.all_reduce import gradient_bytes, replicas_in, sum_over_s
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.plan.placement.genetic import evolve
from engine.plan.placement.partition_search import PartitionSearch
from engine.plan.placement.place import default_evaluations, lay_out, solve
from engine.plan.placement.problem import Problem, problem

MOST_GIVEN = 32  # placements, the fastest by their estimate
DESCENT_S = 1.0  # of CPU, for the exchanges from all starts together
MOST_SUBSETS = 16  # choices of the GPUs that are left out, where there are more than a placement takes
SEARCH_S = 1.0  # of DT-FM's search, over all of these choices

Grid = tuple[tuple[RankAssignment, ...], ...]  # the rank of each stage, by pipeline
Kind = tuple[int, float]  # data centre of a GPU, and how many times as long as planned its ops take


def present(spec: LaunchSpec) -> Grid:
    """The placement of a run."""
    at = {(a.pipeline, a.stage): a for a in spec.ranks}
    cell = spec.job.cell
    return tuple(tuple(at[p, s] for s in range(cell.stages)) for p in range(cell.pipelines))


def placements(
    spec: LaunchSpec, here: Sequence[RankAssignment], pipelines: int, conditions: Conditions
) -> list[Grid]:
    """Up to MOST_GIVEN placements of so many pipelines on ranks `here`, the fastest by its estimate first.

    Each kind of placement once: GPUs of one data centre that are equally fast count as the same. If the first
    rank is here, it computes the first stage of the first pipeline.
    """
    estimate = Estimate(spec.job, pipelines, conditions)
    starts = [*_proposed(spec, here, pipelines, conditions)]
    if pipelines == spec.job.cell.pipelines and len(here) == len(spec.ranks):
        starts.append(present(spec))
    seen: dict[tuple[tuple[Kind, ...], ...], tuple[float, Grid]] = {
        estimate.name(start): (estimate.iteration_s(start), start) for start in starts
    }
    ends = time.thread_time() + DESCENT_S
    for _, start in sorted(seen.values(), key=lambda row: row[0]):
        _descend(start, here, estimate, seen, locked=start[0][0].rank == spec.first_rank, ends=ends)
    ordered = sorted(seen.values(), key=lambda row: row[0])[:MOST_GIVEN]
    return [_settled(spec, grid, here, estimate) for seconds, grid in ordered if seconds < float("inf")]


def compile_search() -> None:
    """Compile DT-FM's search, or read it from disk: else the first run of it takes half a minute."""
    seconds = np.ones((4, 4)) - np.eye(4)
    search = PartitionSearch(problem=problem(seconds, seconds + np.eye(4), 2, 1.0, 1.0), limit=32)
    evolve(search)
    lay_out(search, search.book.members, 0)


class Estimate:
    """About how long an iteration takes on a placement, from its busiest stage and hop; not a bound."""

    def __init__(self, job: TrainJob, pipelines: int, conditions: Conditions) -> None:
        self._job, self._of_gpu = job, conditions.of_gpu
        self._between = conditions.between(job)
        self._microbatches = job.cell.pipelines * job.cell.microbatches_of_step // pipelines
        self._work_s = work_ms(job.scenario) / 1e3
        self._hop_s = cache(self._of_hop)
        self._sum_s = cache(partial(sum_over_s, job, between=self._between))

    def kind(self, a: RankAssignment) -> Kind:
        """What tells a GPU from others."""
        return a.dc, round(self._of_gpu.get(a.rank, 1.0), 1)

    def name(self, grid: Grid) -> tuple[tuple[Kind, ...], ...]:
        """What tells a placement from others: the kinds of GPUs of each pipeline, in any order of these."""
        return tuple(sorted(tuple(map(self.kind, pipeline)) for pipeline in grid))

    def iteration_s(self, grid: Grid) -> float:
        """Seconds: the first microbatch's way there and back, the others at the slowest, the slowest sum.

        Infinite where a link is missing.
        """
        stages = tuple(zip(*grid, strict=True))
        slow = [max(self.kind(a)[1] for a in stage) for stage in stages]
        work_s = [float(seconds) * factor for seconds, factor in zip(self._work_s, slow, strict=True)]
        ways = {tuple(a.dc for a in pipeline) for pipeline in grid}
        hops = [max(self._hop_s(way[s], way[s + 1]) for way in ways) for s in range(len(stages) - 1)]
        busiest_s = max([*work_s, *(transfer_s for _, transfer_s in hops)])
        once_s = sum(work_s) + 2 * sum(latency_s + transfer_s for latency_s, transfer_s in hops)
        sums_s = max(self._sum_s(s, tuple(sorted(a.dc for a in stage))) for s, stage in enumerate(stages))
        return once_s + (self._microbatches - 1) * busiest_s + sums_s

    def _of_hop(self, a: int, b: int) -> tuple[float, float]:
        """Seconds of latency, and for which a microbatch's message holds the link."""
        if a == b:
            return 0.0, 0.0
        network = self._between(a, b)
        if network is None:
            return float("inf"), float("inf")
        return network.latency_ms / 1e3, network.transfer_ms(self._job.wan_bytes) / 1e3


def _proposed(
    spec: LaunchSpec, here: Sequence[RankAssignment], pipelines: int, conditions: Conditions
) -> Iterator[Grid]:
    """What DT-FM's search finds for each choice of the GPUs, and every path that the first rank may begin."""
    job = spec.job
    subsets = list(islice(_subsets(spec, here, job.cell.stages * pipelines, conditions), MOST_SUBSETS))
    for ranks in subsets:
        costs = _problem(job, ranks, pipelines, conditions)
        limit = max(1, default_evaluations(costs.devices, costs.stages) // len(subsets))
        search = PartitionSearch(problem=costs, limit=limit, seconds=SEARCH_S / len(subsets))
        if len(ranks) == len(spec.ranks):
            index = {a.rank: i for i, a in enumerate(ranks)}
            now = [[index[a.rank] for a in stage] for stage in zip(*present(spec), strict=True)]
            search.score(np.array(now, dtype=np.int64))
        solve(search)
        yield from _paths(spec, ranks, search, conditions)


def _subsets(
    spec: LaunchSpec, here: Sequence[RankAssignment], size: int, conditions: Conditions
) -> Iterator[list[RankAssignment]]:
    """`size` of the ranks, for each number that each data centre leaves out: its slowest."""
    last = sorted(
        here, key=lambda a: (a.rank == spec.first_rank, -conditions.of_gpu.get(a.rank, 1.0), -a.rank)
    )
    free = Counter(a.dc for a in here if a.rank != spec.first_rank)
    for dcs in combinations_with_replacement(sorted(free), len(here) - size):
        left_out = Counter(dcs)
        if all(left_out[dc] <= free[dc] for dc in left_out):
            out = {a.rank for dc, n in left_out.items() for a in [a for a in last if a.dc == dc][:n]}
            yield [a for a in here if a.rank not in out]


def _problem(
    job: TrainJob, ranks: Sequence[RankAssignment], pipelines: int, conditions: Conditions
) -> Problem:
    """The costs of Eqs. 2 and 3 between every two ranks by the measured links."""
    network = replicas_in(job, [a.dc for a in ranks], conditions.between(job))
    rate = np.maximum(network.bytes_per_s, 1.0)  # so slow without a link that no search takes it
    microbatches = job.cell.pipelines * job.cell.microbatches_of_step // pipelines
    stages = range(job.cell.stages)
    return problem(
        network.latency_s,
        (rate + rate.T) / 2,
        job.cell.stages,
        dp_bytes=max(gradient_bytes(job, stage) for stage in stages),
        pp_bytes=microbatches * job.wan_bytes,
    )


def _paths(
    spec: LaunchSpec, ranks: Sequence[RankAssignment], search: PartitionSearch, conditions: Conditions
) -> Iterator[Grid]:
    """The best groups as pipelines, with a path for each GPU that may begin it: one like the first rank."""
    members = search.book.members.copy()
    leader = next((a for a in ranks if a.rank == spec.first_rank), None)
    begins = range(len(ranks)) if leader is None else [i for i, a in enumerate(ranks) if a.dc == leader.dc]
    group_of = {int(device): group for group, row in enumerate(members) for device in row}
    for first in {group_of[i]: i for i in begins}.values():
        groups, pipelines = lay_out(search, members, first)
        if first not in groups[0]:
            continue
        grid = [[ranks[device] for device in pipeline] for pipeline in pipelines]
        yield _led(grid, leader, ranks[first])


def _led(grid: list[list[RankAssignment]], leader: RankAssignment | None, first: RankAssignment) -> Grid:
    """The pipeline that begins with `first` comes first, and the first rank changes places with `first`."""
    grid.sort(key=lambda pipeline: pipeline[0].rank != first.rank)
    if leader is None:
        return tuple(map(tuple, grid))
    swapped = {leader.rank: first, first.rank: leader}
    return tuple(tuple(swapped.get(a.rank, a) for a in pipeline) for pipeline in grid)


def _descend(
    start: Grid,
    here: Sequence[RankAssignment],
    estimate: Estimate,
    seen: dict[tuple[tuple[Kind, ...], ...], tuple[float, Grid]],
    *,
    locked: bool,
    ends: float,
) -> None:
    """Exchange two ranks at a time while that shortens the iteration; notes every placement in `seen`.

    locked : the first stage of the first pipeline keeps its rank.  ends : of time.thread_time().
    """

    def note(grid: Grid) -> float:
        name = estimate.name(grid)
        if name not in seen:
            seen[name] = estimate.iteration_s(grid), grid
        return seen[name][0]

    at, best_s = start, note(start)
    improves = True
    while improves:
        improves = False
        for grid in _exchanges(at, here, estimate, locked=locked):
            if time.thread_time() > ends:
                return
            if note(grid) < best_s * (1 - 1e-9):
                at, best_s, improves = grid, note(grid), True
                break


def _exchanges(
    grid: Grid, here: Sequence[RankAssignment], estimate: Estimate, *, locked: bool
) -> Iterator[Grid]:
    """Every placement that differs by the exchange of two ranks of different kinds; one may be idle."""
    taken = [a for pipeline in grid for a in pipeline]
    used = {a.rank for a in taken}
    movable = taken[1:] if locked else taken
    idle = [a for a in here if a.rank not in used]
    for one, other in [*combinations(movable, 2), *((a, b) for a in movable for b in idle)]:
        if estimate.kind(one) != estimate.kind(other):
            swapped = {one.rank: other, other.rank: one}
            yield tuple(tuple(swapped.get(a.rank, a) for a in pipeline) for pipeline in grid)


def _settled(spec: LaunchSpec, grid: Grid, here: Sequence[RankAssignment], estimate: Estimate) -> Grid:
    """The same placement with as few ranks as possible in another stage than now: among those of one kind."""
    pool = sorted(here, key=lambda a: (a.pipeline, a.stage))
    led = any(a.rank == spec.first_rank for a in here)
    chosen: dict[tuple[int, int], RankAssignment] = {}
    places = [(p, s) for p in range(len(grid)) for s in range(len(grid[0]))]
    if led:
        chosen[0, 0] = grid[0][0]
        pool = [a for a in pool if a.rank != spec.first_rank]
    for keeps in (True, False):
        for p, s in places:
            kind = estimate.kind(grid[p][s])
            fits = (a for a in pool if estimate.kind(a) == kind and (a.stage == s or not keeps))
            if (p, s) not in chosen and (rank := next(fits, None)) is not None:
                chosen[p, s] = rank
                pool.remove(rank)
    return tuple(tuple(chosen[p, s] for s in range(len(grid[0]))) for p in range(len(grid)))
