"""The answer of `meridian cross-dc`: data against pipeline parallelism over the WAN at each point, and where
they cross over.

Times of stages, memory, and the gradients' all-reduce inside a data centre are the planner's. The schedules
are simulated, and the WAN is CrossPipe's (`cross_dc`).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

from engine.cluster.cluster import Cluster
from engine.errors import Infeasible
from engine.inputs import parse
from engine.model.flops import Recompute
from engine.model.profile import StageProfile
from engine.plan.cross_dc import Boundary, Choice, CrossDcJob, data_parallel, pipeline_parallel
from engine.plan.cross_dc_request import IN_CHUNKS, CrossDcRequest
from engine.plan.job import Job, cluster_of, job_of
from engine.plan.request import JobInput, PlanRequest
from engine.schedule.scenario import Times

Better = Literal["data", "pipeline"]
Axis = Literal["bandwidth_gbps", "latency_ms"]
# A crossover is narrowed down to this share of its value, and no further than this latency.
CLOSE = 0.01
LEAST_MS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One of the two at one point.

    iteration_ms : the schedule, gradients over the WAN (data), all-reduce inside a data centre, update.
    bubble_fraction : share of the iteration in which an average GPU runs no op.
    wan_gb : over all boundaries, both directions, in one iteration.
    egress_cost, cost_per_iteration : None if no egress price is given; the latter has the GPUs' price too.
    """

    policy: str
    iteration_ms: float
    bubble_fraction: float
    wan_gb: float
    egress_cost: float | None
    cost_per_iteration: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Both at one bandwidth and latency. speedup : of pipeline parallelism over data parallelism."""

    bandwidth_gbps: float
    latency_ms: float
    data: Figures
    pipeline: Figures
    speedup: float
    better: Better


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Along `axis` the better one changes at this point, from `before` to the other."""

    axis: Axis
    bandwidth_gbps: float
    latency_ms: float
    before: Better
    after: Better


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossDcResult:
    """The answer. Without points, `reason` says what does not fit."""

    gpus_per_dc: int
    gradient_gb: float
    activation_mb: float
    points: tuple[Point, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    reason: str | None = None
    variants: tuple["Variant", ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `meridian cross-dc`; `variants` if there are any."""
        values = {"feasible": bool(self.points), **asdict(self)}
        if not self.variants:
            del values["variants"]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The same with a larger global batch, or other recomputation. Without points, `reason` says why.

    batch_factor : of the global batch, which both have; recompute : None: the job's.
    """

    batch_factor: int
    recompute: Recompute | None
    points: tuple[Point, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    reason: str | None = None


def compare_cross_dc(request: CrossDcRequest) -> CrossDcResult:
    """Both at every bandwidth and latency of the request, sorted, and the crossovers between them.

    The same for each of the request's other global batches and recomputations.

    Raises
    ------
    InputError
        The job does not fit its model (more partitions than layers).
    """
    variants = [_variant(request, factor, mode) for factor, mode in request.variants]
    return replace(_Comparison(request).result(), variants=tuple(variants))


def _variant(request: CrossDcRequest, factor: int, recompute: Recompute | None) -> Variant:
    changed: dict[str, Any] = {"microbatches": request.job.microbatches * factor}
    if recompute is not None:
        changed["recompute"] = recompute
    result = _Comparison(request, request.job.model_copy(update=changed)).result()
    return Variant(
        batch_factor=factor,
        recompute=recompute,
        points=result.points,
        crossovers=result.crossovers,
        reason=result.reason,
    )


class _Spread:
    """The job with one spread of its layers."""

    def __init__(self, request: CrossDcRequest, cluster: Cluster, planned: Job) -> None:
        self._request, self._cluster, self._planned = request, cluster, planned

    @cached_property
    def _profiles(self) -> tuple[StageProfile, ...]:
        gpu = self._cluster.datacenters[0].gpu
        return self._planned.profiles((gpu,) * self._planned.partitions)

    @cached_property
    def _policies(self) -> list[str]:
        """Those of the request that can be: half a layer is no chunk."""
        whole = self._planned.is_modelled and min(profile.layers for profile in self._profiles) < 2
        return [policy for policy in self._request.policies if not (whole and policy in IN_CHUNKS)]

    @property
    def gradient_bytes(self) -> float:
        """Of the whole model."""
        return float(self._planned.gradient_bytes * sum(profile.parameters for profile in self._profiles))

    @cached_property
    def _job(self) -> CrossDcJob | Infeasible:
        planned, profiles = self._planned, self._profiles
        gpus = (self._cluster.datacenters[0].gpu,) * planned.partitions
        room = planned.stages.room(gpus, planned.microbatches)
        if isinstance(room, Infeasible):
            return room
        # The gradients by inputs and by weights are products of the same size.
        half = [profile.backward_s / 2 for profile in profiles]
        times = Times(
            forward=[profile.forward_s for profile in profiles],
            backward=half,
            weight=half,
            recompute=[profile.recompute_s for profile in profiles],
        )
        assert planned.activation_bytes is not None
        return CrossDcJob(
            stages=planned.partitions,
            replicas=self._request.replicas,
            microbatches=planned.microbatches,
            times=times,
            gradient_bytes=self.gradient_bytes,
            activation_bytes=planned.activation_bytes,
            dcs=self._request.dcs,
            memory=room.in_flight,
            sends=self._request.sends,
            full=room.full if any(profile.recompute_s for profile in profiles) else None,
        )

    def _inside_s(self, replicas: int) -> float:
        """All-reduce of `replicas` of each stage inside a data centre, and the optimizer's update."""
        update_s = max(profile.update_s for profile in self._profiles)
        return max(self._planned.all_reduce_in_s(replicas, dc) for dc in self._cluster.datacenters) + update_s

    @property
    def activation_bytes(self) -> float:
        """Of one microbatch, between two stages."""
        assert self._planned.activation_bytes is not None  # a model has it, and without one it is required
        return self._planned.activation_bytes

    @property
    def reason(self) -> str | None:
        """Why it cannot be, whatever the WAN; None if it can."""
        if isinstance(self._job, Infeasible):
            return self._job.reason
        named = ", ".join(self._request.policies)
        return None if self._policies else f"a stage has 1 layer; {named} cut each stage in two"

    def data(self, wan: Boundary) -> Figures | Infeasible:
        """Data parallel over this WAN."""
        assert isinstance(self._job, CrossDcJob)
        choice = data_parallel(self._job, wan, self._policies)
        return self._figures(choice, self._request.replicas // self._job.dcs)

    def pipeline(self, wan: Boundary) -> Figures | Infeasible:
        """Pipeline parallel over this WAN."""
        assert isinstance(self._job, CrossDcJob)
        return self._figures(pipeline_parallel(self._job, wan, self._policies), self._request.replicas)

    def _figures(self, choice: Choice | Infeasible, replicas: int) -> Figures | Infeasible:
        """replicas : of a stage in one data centre."""
        if isinstance(choice, Infeasible):
            return choice
        seconds = choice.seconds + self._inside_s(replicas)
        wan_gb = choice.wan_bytes / 1e9
        price = self._request.boundary.egress_price_per_gb
        per_hour = sum(dc.price_per_gpu_hour for dc in self._cluster.datacenters) * self._request.gpus_per_dc
        return Figures(
            policy=choice.policy,
            iteration_ms=seconds * 1e3,
            bubble_fraction=1 - choice.busy_s / seconds,
            wan_gb=wan_gb,
            egress_cost=None if price is None else price * wan_gb,
            cost_per_iteration=None if price is None else price * wan_gb + per_hour * seconds / 3600,
        )


class _Comparison:
    """job : in place of the request's."""

    def __init__(self, request: CrossDcRequest, job: JobInput | None = None) -> None:
        self._request = request
        document = {"datacenters": request.datacenters, "job": job or request.job}
        plan = parse(PlanRequest, document)
        self._cluster = cluster_of(plan)
        planned = job_of(plan, self._cluster)
        spreads = planned.spreads((self._cluster.datacenters[0].gpu,) * planned.partitions)
        self._spreads = [_Spread(request, self._cluster, each) for each in spreads]
        self._point = cache(self._compared)

    def result(self) -> CrossDcResult:
        """All points, then the crossovers along every row and column of them; the reason if nothing fits."""
        able = [spread for spread in self._spreads if spread.reason is None]
        if not able:
            return self._answer(reason=self._spreads[0].reason)
        self._spreads = able
        bandwidths = sorted(set(self._request.boundary.bandwidth_gbps))
        latencies = sorted(set(self._request.boundary.latency_ms))
        points = []
        for latency, bandwidth in itertools.product(latencies, bandwidths):
            point = self._point(bandwidth, latency)
            if isinstance(point, Infeasible):
                return self._answer(reason=point.reason)
            points.append(point)
        rows = [[p for p in points if p.latency_ms == latency] for latency in latencies]
        columns = [[p for p in points if p.bandwidth_gbps == bandwidth] for bandwidth in bandwidths]
        crossovers = [c for row in rows for c in self._crossovers(row, "bandwidth_gbps")]
        crossovers += [c for column in columns for c in self._crossovers(column, "latency_ms")]
        return self._answer(points=tuple(points), crossovers=tuple(crossovers))

    def _answer(
        self,
        *,
        points: tuple[Point, ...] = (),
        crossovers: tuple[Crossover, ...] = (),
        reason: str | None = None,
    ) -> CrossDcResult:
        first = self._spreads[0]  # all have the same parameters in all
        return CrossDcResult(
            gpus_per_dc=self._request.gpus_per_dc,
            gradient_gb=first.gradient_bytes / 1e9,
            activation_mb=first.activation_bytes / 1e6,
            points=points,
            crossovers=crossovers,
            reason=reason,
        )

    def _compared(self, bandwidth_gbps: float, latency_ms: float) -> Point | Infeasible:
        wan = Boundary(bytes_per_s=bandwidth_gbps * 1e9 / 8, latency_s=latency_ms / 1e3)
        first = _fastest([spread.data(wan) for spread in self._spreads])
        second = _fastest([spread.pipeline(wan) for spread in self._spreads])
        if isinstance(first, Infeasible):
            return first
        if isinstance(second, Infeasible):
            return second
        return Point(
            bandwidth_gbps=bandwidth_gbps,
            latency_ms=latency_ms,
            data=first,
            pipeline=second,
            speedup=first.iteration_ms / second.iteration_ms,
            better="data" if first.iteration_ms < second.iteration_ms else "pipeline",
        )

    def _crossovers(self, points: list[Point], axis: Axis) -> Iterator[Crossover]:
        """Between neighbours of a row where the better one changes."""
        for low, high in itertools.pairwise(points):
            if low.better != high.better:
                yield self._narrowed(low, high, axis)

    def _narrowed(self, low: Point, high: Point, axis: Axis) -> Crossover:
        """Halve the interval, by ratio where it does not begin at 0, until its ends are close."""
        before, after = low.better, high.better
        while True:
            a, b = getattr(low, axis), getattr(high, axis)
            if b - a <= CLOSE * b or (a == 0 and b <= LEAST_MS):
                break
            middle = math.sqrt(a * b) if a > 0 else b / 2
            values = {"bandwidth_gbps": low.bandwidth_gbps, "latency_ms": low.latency_ms, axis: middle}
            point = self._point(**values)
            assert isinstance(point, Point)  # memory and policies decide what fits, not the WAN
            low, high = (point, high) if point.better == before else (low, point)
        return Crossover(
            axis=axis,
            bandwidth_gbps=high.bandwidth_gbps,
            latency_ms=high.latency_ms,
            before=before,
            after=after,
        )


def _fastest(figures: Sequence[Figures | Infeasible]) -> Figures | Infeasible:
    """Of several spreads of the layers the fastest; why the first cannot be if none can."""
    feasible = [each for each in figures if not isinstance(each, Infeasible)]
    return min(feasible, key=lambda each: each.iteration_ms) if feasible else figures[0]
