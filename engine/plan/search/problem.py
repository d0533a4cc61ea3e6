"""A plan request as the search sees it: data centres by index, stage times by GPU type, hops by pair."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.cluster.cluster import Cluster
from engine.cluster.gpus import Gpu
from engine.plan.cell import hop_ms, lan_ms
from engine.plan.job import Job, cluster_of, job_of, types_of
from engine.plan.recompute import turning_points
from engine.plan.request import Layout, PlanRequest
from engine.plan.result import Partition
from engine.schedule.scenario import Link

Floats = NDArray[np.float64]

# Tried first, whatever C is.
SMALL_CELLS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Milliseconds of each stage on one type of GPU, and the microbatches that fit it, shape (stages,).

    in_flight : below 1: the stage does not fit.
    """

    forward: Floats
    backward: Floats
    recompute: Floats
    in_flight: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The request in SI units and indexes.

    cluster : its data centres by name. Equal bounds are tried in the order of the indexes, and the order of
        the request's list must not change the result within a budget.
    usable : data centres that may be used and hold at least one stage of one DP-cell.
    hops : by pair of indexes, in both directions; a pair without a link is not in it.
    lans : inside each data centre.
    twins : for each data centre the first one that equals it in everything but its name.
    nearest : for each usable data centre those it has links to, the fastest first.
    roomiest : the job with as many replicas as there can be: with ZeRO-1 each GPU then holds the least.
    """

    request: PlanRequest
    cluster: Cluster
    job: Job
    usable: tuple[int, ...]
    hops: dict[tuple[int, int], Link]
    lans: tuple[Link, ...]
    egress_price: dict[tuple[int, int], float]
    times: dict[str, StageTimes]
    twins: tuple[int, ...]
    nearest: dict[int, tuple[int, ...]]
    roomiest: Job

    def capacities(self, pipelines: int) -> tuple[int, ...]:
        """Stages that each data centre holds of `pipelines` pipelines; 0 if it may not be used."""
        per_stage = pipelines * self.job.gpus_per_stage
        held = [0] * len(self.cluster.datacenters)
        for dc in self.usable:
            held[dc] = min(self.job.partitions, self.cluster.datacenters[dc].gpus // per_stage)
        return tuple(held)

    def most_anywhere(self, number: int) -> int:
        """The most DP-cells for which the data centres hold as many stages as they do for `number`."""
        cell = self.job.cell_pipelines * self.job.gpus_per_stage
        held = zip(self.cluster.datacenters, self.capacities(number * self.job.cell_pipelines), strict=True)
        return max((dc.gpus // (n * cell) for dc, n in held if n), default=number)

    def of_pipelines(self, pipelines: int) -> "Problem":
        """With the layers balanced for so many pipelines, which with ZeRO-1 share the optimizer's state."""
        if not self.job.zero or self.job.balance is None:
            return self
        return replace(self, job=self.job.of_pipelines(pipelines))

    @property
    def least_job(self) -> Job:
        """The job with the fewest parameters that its largest stage can have, for bounds."""
        if self.job.balance is None:
            return self.job
        return replace(self.job, stage_parameters=self.job.balance.least_parameters(self.types[0]))

    @property
    def has_rails(self) -> bool:
        """Whether a data centre has rails: there an all-reduce of more replicas may be the faster one."""
        return any(self.cluster.datacenters[dc].hb_domain is not None for dc in self.usable)

    @property
    def spreads(self) -> int:
        """Spreads of the layers with which each candidate is bounded and timed."""
        return 1 if self.job.balance is None else 2

    @property
    def types(self) -> tuple[Gpu, ...]:
        """The types of GPU of the usable data centres, or of all if there are none."""
        dcs = self.usable or range(len(self.cluster.datacenters))
        return tuple({gpu.name: gpu for gpu in (self.cluster.datacenters[i].gpu for i in dcs)}.values())

    def does_not_fit(self) -> str | None:
        """Why no allowed data centre has the memory for any stage; None if one has."""
        allowed = [dc for dc in self.cluster.datacenters if dc.name in self.request.allowed_names]
        reasons = [self.roomiest.no_room_on(dc.gpu) for dc in allowed]
        return next(iter(reasons), None) if all(reasons) else None

    def partitions(self, route: Sequence[int], split: Sequence[int]) -> tuple[Partition, ...]:
        names = [self.cluster.datacenters[dc].name for dc in route]
        return tuple(Partition(dc=name, stages=n) for name, n in zip(names, split, strict=True))


Shape = tuple[object, ...]


def shape_of(problem: Problem, route: Sequence[int], split: Sequence[int], pipelines: int) -> Shape:
    """All that determines the time of a cell: GPUs, LAN and stages of each data centre, and the hops.

    With ZeRO-1 also the memory, which depends on the number of all pipelines.
    """
    gpus = tuple(problem.cluster.datacenters[dc].gpu.name for dc in route)
    hops = (problem.hops[pair] for pair in itertools.pairwise(route))
    lans = (problem.lans[dc] for dc in route)
    links = tuple((link.transfer, link.latency) for link in (*lans, *hops))
    return gpus, tuple(split), links, pipelines if problem.job.zero else None


def first_sizes(job: Job) -> tuple[int, ...]:
    """Pipelines in a DP-cell to try first: the whole numbers next to C, and a few small ones.

    C is of the slowest listed link. With fewer than C pipelines a transfer is longer than a forward pass,
    with more the link has idle turns. Only their schedules say which costs less. The small ones keep cells
    small if the slow link is not used.
    """
    next_to_c = math.floor(job.comm_to_compute), math.ceil(job.comm_to_compute)
    nearest = replace(job, cell=None).cell_pipelines
    return tuple(dict.fromkeys([nearest, *(size for size in next_to_c if size), *SMALL_CELLS]))


def other_sizes(problem: Problem) -> tuple[int, ...]:
    """All other sizes that the GPUs have room for, whatever C is; a slower link adds no others.

    problem : in cells of one pipeline.
    """
    tried = set(first_sizes(problem.job))
    gpus = sum(problem.cluster.datacenters[dc].gpus for dc in problem.usable)
    most = gpus // (problem.job.gpus_per_stage * problem.job.partitions)
    return tuple(size for size in range(1, most + 1) if size not in tried)


def problems_of(request: PlanRequest, layout: Layout | None = None) -> list[Problem]:
    """The problem of a request in one layout (by default its first), for each size of DP-cells to try first.

    Raises InputError if the job does not fit its model.
    """
    whole = _in_any_cells(request, layout)
    return [in_cells(whole, cell) for cell in first_sizes(whole.job)]


def layouts_to_try(request: PlanRequest, layout: Layout) -> list[Layout]:
    """`layout`, or one for each number of microbatches in flight at which a stage changes its recomputation.

    Raises InputError as `job_of` does.
    """
    if request.job.recompute != "auto":
        return [layout]
    cluster = cluster_of(request)
    job, types = job_of(request, cluster, layout), types_of(request, cluster)
    most = max(dc.gpus for dc in cluster.datacenters) // layout.gpus_per_stage
    replicas = {max(1, most >> i) for i in range(most.bit_length() + 1)} if job.zero else {1}
    points = [turning_points(job.of_pipelines(n).stages, types, job.microbatches) for n in replicas]
    return [replace(layout, recompute=k) for k in sorted(set().union(*points))]


def problem_of(request: PlanRequest) -> Problem:
    """The first of them: the first layout, cells as C says."""
    return problems_of(request)[0]


def _in_any_cells(request: PlanRequest, layout: Layout | None) -> Problem:
    """The problem in cells of one pipeline; whatever does not depend on their size is computed once."""
    listed = cluster_of(request)
    cluster = replace(listed, datacenters=tuple(sorted(listed.datacenters, key=lambda dc: dc.name)))
    job = replace(job_of(request, cluster, layout), cell=1)
    most = max(dc.gpus for dc in cluster.datacenters) // job.gpus_per_stage
    roomiest = job.of_pipelines(max(1, most))
    usable = tuple(
        i
        for i, dc in enumerate(cluster.datacenters)
        if dc.name in request.allowed_names
        and dc.gpus >= job.gpus_per_stage
        and not roomiest.no_room_on(dc.gpu)
    )
    index = {dc.name: i for i, dc in enumerate(cluster.datacenters)}
    hops: dict[tuple[int, int], Link] = {}
    prices: dict[tuple[int, int], float] = {}
    for ends, link in cluster.links.items():
        a, b = (index[name] for name in sorted(ends))
        for pair in ((a, b), (b, a)):
            hops[pair] = hop_ms(request, job, link)
            prices[pair] = link.egress_price_per_gb
    types = {cluster.datacenters[i].gpu.name: cluster.datacenters[i].gpu for i in usable}
    return Problem(
        request=request,
        cluster=cluster,
        job=job,
        usable=usable,
        hops=hops,
        lans=tuple(lan_ms(request, job, dc) for dc in cluster.datacenters),
        egress_price=prices,
        times={name: _stage_times(request, roomiest, gpu) for name, gpu in types.items()},
        twins=_twins(cluster, usable, hops, prices),
        nearest=_nearest(_links_of(usable, hops, prices)),
        roomiest=roomiest,
    )


def in_cells(whole: Problem, cell: int) -> Problem:
    """`whole`, which has cells of one pipeline, with `cell` of them: fewer data centres may then hold a
    stage.
    """
    job, datacenters = replace(whole.job, cell=cell), whole.cluster.datacenters
    usable = tuple(i for i in whole.usable if datacenters[i].gpus >= cell * job.gpus_per_stage)
    if usable == whole.usable:
        return replace(whole, job=job)
    types = {datacenters[i].gpu.name for i in usable}
    return replace(
        whole,
        job=job,
        usable=usable,
        times={name: times for name, times in whole.times.items() if name in types},
        twins=_twins(whole.cluster, usable, whole.hops, whole.egress_price),
        nearest=_nearest(_links_of(usable, whole.hops, whole.egress_price)),
    )


def _stage_times(request: PlanRequest, job: Job, gpu: Gpu) -> StageTimes:
    profiles = job.stages.on(gpu)
    held = job.stages.in_flight_on(gpu, job.microbatches)
    if job.zero and job.stages.variants:  # with fewer replicas stages may repeat more, and so hold more
        held = (job.microbatches,) * job.partitions
    most = job.microbatches if request.memory_limit is None else request.memory_limit
    return StageTimes(
        forward=np.array([1e3 * profile.forward_s for profile in profiles]),
        backward=np.array([1e3 * profile.backward_s for profile in profiles]),
        recompute=np.array([1e3 * profile.recompute_s for profile in profiles]),
        in_flight=np.minimum(held, most).astype(np.float64),
    )


def _twins(
    cluster: Cluster,
    usable: Sequence[int],
    hops: dict[tuple[int, int], Link],
    prices: dict[tuple[int, int], float],
) -> tuple[int, ...]:
    """First data centre that each could be exchanged with: same GPUs, prices, and links to all others."""
    first = list(range(len(cluster.datacenters)))
    links = _links_of(usable, hops, prices)
    alike: dict[object, list[int]] = {}
    for i in usable:
        dc = cluster.datacenters[i]
        network = dc.intra_bytes_per_s, dc.intra_latency_s, dc.fabric, dc.hb_domain
        same = alike.setdefault((dc.gpus, dc.gpu.name, dc.price_per_gpu_hour, network), [])
        twin = next((j for j in same if _same_links(links[i], links[j], i, j)), i)
        first[i] = twin
        if twin == i:
            same.append(i)
    return tuple(first)


Links = dict[int, tuple[Link, float]]


def _nearest(links: dict[int, Links]) -> dict[int, tuple[int, ...]]:
    """The other ends of each data centre's links, the fastest first."""
    nearest = {}
    for dc, others in links.items():
        seconds = {other: link.transfer + link.latency for other, (link, _) in others.items()}
        nearest[dc] = tuple(other for _, other in sorted((ms, other) for other, ms in seconds.items()))
    return nearest


def _links_of(
    usable: Sequence[int], hops: dict[tuple[int, int], Link], prices: dict[tuple[int, int], float]
) -> dict[int, Links]:
    """The links of each data centre, by the other end."""
    links: dict[int, Links] = {i: {} for i in usable}
    for (a, b), hop in hops.items():
        if a in links and b in links:
            links[a][b] = hop, prices[a, b]
    return links


def _same_links(ours: Links, theirs: Links, i: int, j: int) -> bool:
    """Whether both have the same links to all others but each other."""
    if len(ours) - (j in ours) != len(theirs) - (i in theirs):
        return False
    return all(other == j or theirs.get(other) == link for other, link in ours.items())
