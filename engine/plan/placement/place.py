"""`place`: searches the best groups, then matches and orders them into pipelines."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement import baselines, exhaustive, genetic, kernel_moves, kernel_path, kernel_search
from engine.plan.placement.kernel_cost import evaluate
from engine.plan.placement.kernel_matching import bottleneck
from engine.plan.placement.partition_search import PartitionSearch, Report
from engine.plan.placement.problem import data_cost_s, hop_cost_s, problem_of
from engine.plan.placement.request import PlacementRequest
from engine.plan.placement.result import Placement, Start, StoppedBy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_EVALUATIONS = 20_000
FEWEST_EVALUATIONS = 200
# Costs of pairs of devices read in a default search: what bounds its time, to about 15 s.
MOST_READ = 1.2e9
MOST_ENUMERATED = 16  # devices: with more, counting partitions gives huge numbers
# Rounds of iterated local search on the path of the answer, past EXACT groups, each of about 20·P² steps.
MOST_EXCHANGES = 2_000
MOST_EXCHANGED = 1e7


def default_evaluations(devices: int, stages: int) -> int:
    """The default number of evaluations, from N and P alone."""
    fit = int(MOST_READ // genetic.costs_read(devices, stages))
    return min(MOST_EVALUATIONS, max(FEWEST_EVALUATIONS, fit))


def place(
    request: PlacementRequest,
    *,
    report: Report = lambda _at, _cost: None,
    cancelled: Callable[[], bool] = lambda: False,
    with_baselines: bool = False,
) -> Placement:
    """The placement of a request.

    Parameters
    ----------
    with_baselines : also what random placement, Kernighan–Lin and a plain genetic algorithm reach.
    report : called now and then with the evaluations so far and the least cost (s).
    cancelled : asked now and then; True ends the search with the best so far.
    """
    problem = problem_of(request)
    limit = request.evaluations or default_evaluations(problem.devices, problem.stages)
    search = PartitionSearch(
        problem=problem,
        seed=request.seed,
        limit=limit,
        seconds=request.seconds,
        cancelled=cancelled,
        report=report,
    )
    placement = solve(search)
    if not with_baselines:
        return placement
    return replace(placement, baselines=baselines.all_of(problem, request.seed))


def solve(search: PartitionSearch) -> Placement:
    """Searches on `search` and returns the best: by looking at every partition where they are few enough."""
    problem = search.problem
    stages, replicas = problem.stages, problem.replicas
    if problem.devices <= MOST_ENUMERATED and exhaustive.count(stages, replicas) <= search.limit:
        return _answer(search, (), exhaustive.score_all(search))
    return _answer(search, genetic.evolve(search), False)


def _answer(search: PartitionSearch, starts: tuple[Start, ...], all_seen: bool) -> Placement:
    problem, book = search.problem, search.book
    groups, pipelines = lay_out(search, book.members)
    inside, hops = data_cost_s(problem, groups), hop_cost_s(problem, pipelines)
    dp_cost_s, pp_cost_s = float(inside.max()), float(hops.sum())
    return Placement(
        groups=_tuples(groups),
        pipelines=_tuples(pipelines),
        dp_cost_s=dp_cost_s,
        pp_cost_s=pp_cost_s,
        cost_s=dp_cost_s + pp_cost_s,
        group_cost_s=tuple(float(cost) for cost in inside),
        hop_cost_s=tuple(float(cost) for cost in hops),
        exact_order=problem.stages <= kernel_path.EXACT,
        optimal=all_seen and problem.stages <= kernel_path.EXACT,
        symmetrised=problem.symmetrised,
        seed=search.seed,
        limit=search.limit,
        evaluations=search.spent,
        stopped_by="proven" if all_seen else _stopped_by(search),
        search_s=time.monotonic() - search.began,
        history=_history(search, dp_cost_s + pp_cost_s),
        starts=starts,
    )


def _history(search: PartitionSearch, final_s: float) -> tuple[tuple[int, float], ...]:
    """The evaluations at which the least cost fell; last the answer's, whose path is searched more
    thoroughly.
    """
    book, entries = search.book, int(search.book.entries[0])
    falls = list(zip(book.at[:entries].tolist(), book.fell_to[:entries].tolist(), strict=True))
    if final_s < falls[-1][1] * kernel_search.LESS:
        falls.append((search.spent, final_s))
    return tuple(falls)


def _stopped_by(search: PartitionSearch) -> StoppedBy:
    if search.stopped_by is not None:
        return search.stopped_by
    return "evaluations" if search.left == 0 else "bounds"


def lay_out(search: PartitionSearch, members: Ints, first: int | None = None) -> tuple[Ints, Ints]:
    """Groups (P, D) in pipeline order and pipelines (D, P), matched and on the shortest path.

    first : a device whose group is to be the first one: the path is then the shortest of those that begin or
        end there, to EXACT groups.
    """
    state, room = search.state, search.room
    state.members[:] = members
    evaluate(search.costs, state, True, room)
    if members is search.book.members:
        _take_shorter(state.between, search.book.order, state.order)
    if first is not None:
        _pin(state.between, int(state.group[first]))
    _order_groups(search)
    order = state.order
    if first is not None and order[-1] == state.group[first]:
        order[:] = order[::-1].copy()
    slots = np.empty((search.problem.replicas, search.problem.stages), dtype=np.int64)
    slots[:, 0] = np.arange(search.problem.replicas)
    for stage in range(1, search.problem.stages):
        bottleneck(search.costs.pipeline, state.members, order[stage - 1], order[stage], 0.0, room.match)
        slots[:, stage] = room.match.column_of[slots[:, stage - 1]]
    pipelines = state.members[order, slots]
    return pipelines.T.copy(), pipelines


def _pin(between: Floats, group: int) -> None:
    """Makes every hop of a group dearer than any path: inside a path it would take two, at an end one."""
    dear = between.sum() + 1
    between[group] += dear
    between[:, group] += dear


def _take_shorter(between: Floats, other: Ints, order: Ints) -> None:
    """Writes `other` into `order` if it is the shorter path."""
    if kernel_moves.length(between, other) < kernel_moves.length(between, order):
        order[:] = other


def _order_groups(search: PartitionSearch) -> None:
    """Orders the groups of the evaluated state by Held–Karp, past EXACT groups by iterated local search."""
    state, path = search.state, search.room.path
    stages = search.problem.stages
    if stages <= kernel_path.EXACT:
        kernel_path.held_karp(state.between, path)
        kernel_path.trace(state.between, state.order, path)
        return
    exchanges = min(MOST_EXCHANGES, int(MOST_EXCHANGED // stages**2))
    kernel_moves.polish(state.between, state.order, search.dice, exchanges, path)


def _tuples(rows: Ints) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in rows.tolist())
