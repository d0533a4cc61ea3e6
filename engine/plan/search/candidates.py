"""Candidates of one class of D: routes and splits with bounds on their scores."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from engine.plan import tied
from engine.plan.dc_selection import assign, datacenter_order
from engine.plan.search.bound import Bounds, ends_together, least_ms
from engine.plan.search.problem import Floats, Problem
from engine.plan.search.routes import Route, longer_routes, routes
from engine.plan.search.splits import Split, splits


@dataclass(frozen=True, kw_only=True)  # no slots: bounds are computed once, on first use
class Candidates:
    """The candidates of one number of DP-cells: routes with splits, and arrays of that length.

    complete : whether these are all routes with all their splits.
    """

    problem: Problem
    placed: tuple[tuple[Route, Split], ...]
    complete: bool

    def __len__(self) -> int:
        return len(self.placed)

    @cached_property
    def bounds(self) -> Bounds:
        """On the time of one cell of each."""
        return least_ms(self.problem, self.placed)

    def best_scores(self, pipelines: int) -> Floats:
        """The score of each for the request's objective if it were as fast as its bound; more is better."""
        iteration_ms = self.bounds.tried + self._allreduce_ms(pipelines)
        job = self.problem.job
        if self.problem.request.objective == "throughput":
            return pipelines * job.tokens_per_pipeline / iteration_ms * 1e3
        dollars = iteration_ms / 3.6e6 * self._rate(pipelines) + self._egress(pipelines)
        if self.problem.request.objective == "cost":
            return -dollars
        return -dollars / (pipelines * job.tokens_per_pipeline) * 1e6

    def _allreduce_ms(self, pipelines: int) -> Floats:
        problem = self.problem
        if not problem.request.allreduce:
            return np.zeros(len(self))
        job = problem.least_job
        inside_s = [job.all_reduce_in_s(pipelines, dc) for dc in problem.cluster.datacenters]
        slowest = np.array([max(inside_s[dc] for dc in route) for route, _ in self.placed])
        return 1e3 * slowest + self._tied[0]

    @cached_property
    def _tied(self) -> tuple[Floats, Floats]:
        """Of the gradients of a tied embedding between first and last stage: ms, and dollars per GB."""
        problem = self.problem
        counts = problem.request.allreduce and not ends_together(problem.request.policy)
        if not (problem.job.tied_bytes and counts):
            return np.zeros(len(self)), np.zeros(len(self))
        cluster = problem.cluster

        @cache
        def of_route(route: Route) -> tuple[float, float]:
            names = [cluster.datacenters[dc].name for dc in route]
            return 1e3 * tied.exchange_s(cluster, problem.job, names), tied.egress_price(cluster, names)

        ms, prices = np.array([of_route(route) for route, _ in self.placed]).reshape(-1, 2).T
        return ms, prices

    def _rate(self, pipelines: int) -> Floats:
        """Dollars an hour."""
        datacenters, per_stage = (
            self.problem.cluster.datacenters,
            pipelines * self.problem.job.gpus_per_stage,
        )
        whole = self.problem.request.bill == "whole"
        return np.array(
            [
                sum(
                    datacenters[dc].price_per_gpu_hour * (datacenters[dc].gpus if whole else n * per_stage)
                    for dc, n in zip(route, split, strict=True)
                )
                for route, split in self.placed
            ]
        )

    def _egress(self, pipelines: int) -> Floats:
        """Dollars an iteration."""
        job = self.problem.job
        gb = 2 * job.microbatches * (job.activation_bytes or 0.0) * pipelines / 1e9
        prices = self.problem.egress_price
        dollars = np.array(
            [gb * sum(prices[pair] for pair in itertools.pairwise(route)) for route, _ in self.placed]
        )
        return dollars + tied.egress_gb_per_link(job, pipelines) * self._tied[1]


def candidates(problem: Problem, capacities: Sequence[int]) -> Candidates:
    """Routes that hold all stages, each with its splits."""
    stages = problem.job.partitions
    holding, complete = routes(problem, capacities)
    placed: list[tuple[Route, Split]] = []
    for route in holding:
        held = [capacities[dc] for dc in route]
        some, are_all = splits(held, stages)
        placed += [(route, split) for split in some]
        complete = complete and are_all
    filled = _filled_in_order(problem, capacities)
    if filled and filled not in placed:
        placed.append(filled)
    return Candidates(problem=problem, placed=tuple(placed), complete=complete)


def with_longer_routes(known: Candidates, capacities: Sequence[int], most: int) -> Candidates | None:
    """`known` and, after them, those on routes with data centres that are not needed.

    None if these are more than `most`, or some of their splits were left out.

    known : complete.
    """
    listed = set(known.placed)
    placed = list(known.placed)
    for route in longer_routes(known.problem, capacities):
        some, are_all = splits([capacities[dc] for dc in route], known.problem.job.partitions)
        placed += [(route, split) for split in some if (route, split) not in listed]
        if not are_all or len(placed) - len(known) > most:
            return None
    return Candidates(problem=known.problem, placed=tuple(placed), complete=True)


def _filled_in_order(problem: Problem, capacities: Sequence[int]) -> tuple[Route, Split] | None:
    """Algorithm 1's choice: the search is never worse. None if links or room are missing."""
    index = {dc.name: i for i, dc in enumerate(problem.cluster.datacenters)}
    held = [(name, capacities[index[name]]) for name in datacenter_order(problem.request)]
    parts = assign(held, problem.job.partitions, 1)
    route = tuple(index[part.dc] for part in parts)
    linked = all(pair in problem.hops for pair in itertools.pairwise(route))
    if not linked or sum(part.stages for part in parts) < problem.job.partitions:
        return None
    return route, tuple(part.stages for part in parts)
