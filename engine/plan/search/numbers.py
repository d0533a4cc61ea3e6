"""Numbers of DP-cells: those to try, and a bound on each before its routes are known."""

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from engine.plan.dc_selection import most_dp_cells
from engine.plan.layers import Balance
from engine.plan.search.bound import cuts_stages
from engine.plan.search.problem import Floats, Problem
from engine.plan.search.routes import Route
from engine.plan.search.splits import Split

# Beyond this only some are tried, in even ratios.
MOST_EXACT = 256
SAMPLED = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Least milliseconds forward and back of one microbatch, however the stages are placed.

    total : on all stages.  most : on the slowest.  rest : from each stage to the last, shape (stages,).
    in_flight : most microbatches that fit each stage, shape (stages,).
    """

    total: float
    most: float
    rest: Floats
    in_flight: Floats


class Numbers:
    """Every D for which the data centres hold a cell's stages, or, of very many, a sample.

    step : D is a multiple of it.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.capacities = cache(self._capacities)
        self._bound_over = cache(self._least_over)
        self.step = problem.job.step_of_cells
        most = self._most(most_dp_cells(problem.request, problem.job)) // self.step
        self.is_sampled = most > MOST_EXACT
        steps = _evenly(most, SAMPLED) if self.is_sampled else range(1, most + 1)
        self.all = [self.step * n for n in steps]

    def _capacities(self, number: int) -> tuple[int, ...]:
        """Stages that each data centre holds of so many DP-cells."""
        return self.problem.capacities(number * self.problem.job.cell_pipelines)

    def grown(self, number: int, route: Route, split: Split) -> int:
        """`number`, or, if D is sampled and more are better, the largest D with room for this route and
        split.
        """
        if not self.is_sampled or self.problem.request.objective != "throughput":
            return number
        job, datacenters = self.problem.job, self.problem.cluster.datacenters
        per_cell = job.cell_pipelines * job.gpus_per_stage
        room = min(datacenters[dc].gpus // (n * per_cell) for dc, n in zip(route, split, strict=True))
        limit = self.problem.request.max_dp_cells
        room = room if limit is None else min(room, limit)
        return room // self.step * self.step

    def spread(self, count: int) -> list[int]:
        """Some of them, in even ratios."""
        if len(self.all) <= count:
            return self.all
        wanted = _evenly(self.all[-1], count)
        return sorted({min(self.all, key=lambda n: abs(n - want)) for want in wanted})

    def potential(self, number: int) -> float:
        """A score that no option of this D can exceed; approximate if D is sampled."""
        problem = self.problem
        objective, cell = problem.request.objective, problem.job.cell_pipelines
        least_ms = self._least_ms(self.capacities(number))
        if objective == "throughput":
            most = problem.most_anywhere(number) if self.is_sampled else number
            return most * cell * problem.job.tokens_per_pipeline / least_ms * 1e3
        gpus = number * cell * problem.job.gpus_per_stage * problem.job.partitions
        price = min(problem.cluster.datacenters[dc].price_per_gpu_hour for dc in problem.usable)
        dollars = least_ms / 3.6e6 * gpus * price
        if objective == "cost":
            return -dollars
        return -dollars / (number * cell * problem.job.tokens_per_pipeline) * 1e6

    def _least_ms(self, capacities: Sequence[int]) -> float:
        """The bound of a cell on the fastest GPUs over the best link, in the fewest data centres that hold
        it.
        """
        return self._bound_over(_fewest(capacities, self.problem.job.partitions) - 1)

    def _least_over(self, hops: int) -> float:
        """The same over `hops` hops; counted as in `bound`."""
        job = self.problem.job
        work = self._least_work()
        links = self.problem.hops.values()
        one_way = min((hop.transfer / job.cell_pipelines + hop.latency for hop in links), default=0.0)
        inside = min(
            self.problem.lans[dc].transfer + self.problem.lans[dc].latency for dc in self.problem.usable
        )
        transfer = min((hop.transfer for hop in links), default=0.0) if hops else 0.0
        rest = job.partitions - 1 - hops  # inside data centres, or between more of them
        alone = work.total + 2 * hops * one_way + 2 * rest * (min(inside, one_way) if links else inside)
        more = job.microbatches / np.maximum(1.0, work.in_flight) - 1
        busiest = job.microbatches * work.most
        if cuts_stages(self.problem.request.policy):
            return max(alone, busiest, job.microbatches * transfer, (1 + more[0]) * alone / 2)
        return max(
            alone + (job.microbatches - 1) * work.rest[-1],
            busiest,
            alone + (job.microbatches - 1 / job.cell_pipelines) * transfer,
            (1 + more[0]) * alone,
            alone + float(np.max(more * work.rest)),
        )

    def _least_work(self) -> "_Work":
        """On the fastest GPUs, and in flight on the largest."""
        job, times = self.problem.roomiest, self.problem.times.values()
        if job.balance is None:
            work = np.min([t.forward + t.backward for t in times], axis=0)
            in_flight = np.max([t.in_flight for t in times], axis=0)
            rest = np.cumsum(work[::-1])[::-1]
            return _Work(total=float(rest[0]), most=float(np.max(work)), rest=rest, in_flight=in_flight)
        return self._least_balanced(job.balance)

    def _least_balanced(self, balance: Balance) -> "_Work":
        """The same, however the layers are spread."""
        stages, layers = balance.stages, balance.layers
        lines = [
            [balance.figures((gpu,) * stages, kind) for kind in ("forward_s", "backward_s")]
            for gpu in self.problem.types
        ]
        fixed = 1e3 * np.min([forward.fixed + back.fixed for forward, back in lines], axis=0)
        each = 1e3 * min(float((forward.each + back.each)[0]) for forward, back in lines)
        total = float(np.sum(fixed)) + each * layers
        held = [balance.smallest.in_flight_on(gpu, balance.microbatches) for gpu in self.problem.types]
        most = max(total / stages, float(np.max(fixed)) + each)
        rest = np.cumsum((fixed + each)[::-1])[::-1]  # each with one layer
        return _Work(total=total, most=most, rest=rest, in_flight=np.max(held, axis=0))

    def _most(self, limit: int) -> int:
        """The largest D with room for every stage, by bisection: if D fits, so does D − 1."""
        stages = self.problem.job.partitions
        return bisect_left(
            range(1, limit + 1), True, key=lambda number: sum(self._capacities(number)) < stages
        )


def _fewest(capacities: Sequence[int], stages: int) -> int:
    """The fewest data centres that hold the stages, or all."""
    held = list(itertools.accumulate(sorted(capacities, reverse=True)))
    return min(bisect_left(held, stages) + 1, len(held))


def _evenly(most: int, count: int) -> list[int]:
    """About `count` whole numbers from 1 to `most`, in even ratios, both ends with them."""
    if most < 1:
        return []
    return sorted({round(most ** (i / (count - 1))) for i in range(count)} | {1, most})
