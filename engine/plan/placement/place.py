"""`place`: searches the best groups, then matches and orders them into pipelines."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement import baselines, exhaustive, genetic, kernel_moves, kernel_path, kernel_search
from engine.plan.placement.bench import Bench, Report
from engine.plan.placement.kernel_cost import evaluate
from engine.plan.placement.kernel_matching import bottleneck
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
MOST_ROUNDS = 2_000
MOST_EXCHANGED = 1e7


def default_evaluations(devices: int, stages: int) -> int:
    """How many partitions are looked at where the request does not say: by N and P alone."""
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
    bench = Bench(
        problem=problem,
        seed=request.seed,
        limit=limit,
        seconds=request.seconds,
        cancelled=cancelled,
        report=report,
    )
    placement = solve(bench)
    if not with_baselines:
        return placement
    return replace(placement, baselines=baselines.all_of(problem, request.seed))


def solve(bench: Bench) -> Placement:
    """Searches on `bench` and returns the best: by looking at every partition where they are few enough."""
    problem = bench.problem
    stages, replicas = problem.stages, problem.replicas
    if problem.devices <= MOST_ENUMERATED and exhaustive.count(stages, replicas) <= bench.limit:
        return _answer(bench, (), exhaustive.look_at_all(bench))
    return _answer(bench, genetic.search(bench), False)


def _answer(bench: Bench, starts: tuple[Start, ...], all_seen: bool) -> Placement:
    problem, book = bench.problem, bench.book
    groups, pipelines = lay_out(bench, book.members)
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
        seed=bench.seed,
        limit=bench.limit,
        evaluations=bench.spent,
        stopped_by="proven" if all_seen else _stopped_by(bench),
        search_s=time.monotonic() - bench.began,
        history=_history(bench, dp_cost_s + pp_cost_s),
        starts=starts,
    )


def _history(bench: Bench, final_s: float) -> tuple[tuple[int, float], ...]:
    """Where the least cost fell; last to that of the answer, whose path is searched more thoroughly."""
    book, entries = bench.book, int(bench.book.entries[0])
    falls = list(zip(book.at[:entries].tolist(), book.fell_to[:entries].tolist(), strict=True))
    if final_s < falls[-1][1] * kernel_search.LESS:
        falls.append((bench.spent, final_s))
    return tuple(falls)


def _stopped_by(bench: Bench) -> StoppedBy:
    if bench.stopped_by is not None:
        return bench.stopped_by
    return "evaluations" if bench.left == 0 else "bounds"


def lay_out(bench: Bench, members: Ints) -> tuple[Ints, Ints]:
    """Groups (P, D) in pipeline order and pipelines (D, P), matched and on the shortest path."""
    state, room = bench.state, bench.room
    state.members[:] = members
    evaluate(bench.costs, state, True, room)
    if members is bench.book.members:
        _take_shorter(state.between, bench.book.order, state.order)
    _put_in_order(bench)
    order = state.order
    slots = np.empty((bench.problem.replicas, bench.problem.stages), dtype=np.int64)
    slots[:, 0] = np.arange(bench.problem.replicas)
    for place in range(1, bench.problem.stages):
        bottleneck(bench.costs.pipeline, state.members, order[place - 1], order[place], 0.0, room.match)
        slots[:, place] = room.match.column_of[slots[:, place - 1]]
    pipelines = state.members[order, slots]
    return pipelines.T.copy(), pipelines


def _take_shorter(between: Floats, other: Ints, order: Ints) -> None:
    """Writes `other` into `order` where it is the shorter path."""
    if kernel_moves.length(between, other) < kernel_moves.length(between, order):
        order[:] = other


def _put_in_order(bench: Bench) -> None:
    """Orders the groups of the evaluated state by Held–Karp, past EXACT groups by iterated local search."""
    state, path = bench.state, bench.room.path
    stages = bench.problem.stages
    if stages <= kernel_path.EXACT:
        kernel_path.held_karp(state.between, path)
        kernel_path.trace(state.between, state.order, path)
        return
    rounds = min(MOST_ROUNDS, int(MOST_EXCHANGED // stages**2))
    kernel_moves.polish(state.between, state.order, bench.dice, rounds, path)


def _tuples(rows: Ints) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in rows.tolist())
