"""One DP-cell of an option, as a scenario for the simulator. All cells of an option are alike."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import ValidationError

from engine.cluster.cluster import Cluster, WanLink
from engine.errors import Infeasible, InputError
from engine.plan.job import Job, cluster_of, job_of
from engine.plan.request import KINDS, PlanRequest
from engine.plan.result import Option, Partition
from engine.schedule.scenario import MOST_OPS, Link, Scenario, Times


def scenario_of(request: PlanRequest, option: Option) -> Scenario:
    """The scenario of one DP-cell of `option`, in milliseconds; `dc_of_stage` indexes `request.datacenters`.

    Raises
    ------
    ValueError
        The option has no place for every stage, or lacks a link.
    """
    cluster = cluster_of(request)
    job = replace(job_of(request, cluster), cell=option.pipelines // option.dp_cells)
    scenario = cell_scenario(request, cluster, job, option.partitions, policy=option.policy)
    if isinstance(scenario, Infeasible):
        raise ValueError(scenario.reason)
    return scenario


def cell_scenario(
    request: PlanRequest,
    cluster: Cluster,
    job: Job,
    partitions: Sequence[Partition],
    policy: str | None = None,
) -> Scenario | Infeasible:
    """The scenario of one DP-cell whose stages are placed as `partitions`, or why there is none.

    policy : by default that of the request.
    """
    placed = sum(part.stages for part in partitions)
    if placed != job.partitions:
        return Infeasible(reason=f"only {placed} of {job.partitions} stages have a place")
    try:
        hops = wan_links(request, cluster, job, partitions)
        if isinstance(hops, Infeasible):
            return hops
        return _scenario(request, cluster, job, partitions, hops, policy or request.policy)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        allowed = f"gives a cell that cannot be simulated: {field} of {problem['input']!r} ms"
        raise InputError("job", request.job.model or "times", allowed) from None


def _scenario(
    request: PlanRequest,
    cluster: Cluster,
    job: Job,
    partitions: Sequence[Partition],
    hops: list[Link],
    policy: str,
) -> Scenario:
    _refuse_too_large(job)
    return Scenario(
        stages=job.partitions,
        dc_of_stage=_dc_of_stage(request, partitions),
        pipelines=job.cell_pipelines,
        microbatches=job.microbatches,
        times=_times(cluster, job, partitions),
        wan=hops,
        policy=policy,
        recompute_rule=request.recompute_rule,
        contention=request.contention,
        memory_limit=request.memory_limit,
        spans=False,
    )


def wan_links(
    request: PlanRequest, cluster: Cluster, job: Job, partitions: Sequence[Partition]
) -> list[Link] | Infeasible:
    """The WAN hops between neighbouring data centres, in ms, or which link is missing."""
    hops = []
    for left, right in itertools.pairwise(partitions):
        link = cluster.link(left.dc, right.dc)
        if link is None:
            return Infeasible(reason=f"no link between {left.dc} and {right.dc}, neighbours in the pipeline")
        hops.append(hop_ms(request, job, link))
    return hops


def hop_ms(request: PlanRequest, job: Job, link: WanLink) -> Link:
    """A hop over `link`, in ms.

    Algorithm 1 has one transfer time for all links, C × forward; the search takes each link's own rate where
    a model says how large an activation is.
    """
    transfer_s = job.transfer_s
    if request.method == "search" and job.model is not None and job.activation_bytes is not None:
        transfer_s = job.activation_bytes / link.bytes_per_s
    return Link(latency=link.latency_s * 1e3, transfer=transfer_s * 1e3)


def _dc_of_stage(request: PlanRequest, partitions: Sequence[Partition]) -> list[int]:
    index = {name: i for i, name in enumerate(request.names)}
    return [index[part.dc] for part in partitions for _ in range(part.stages)]


def _times(cluster: Cluster, job: Job, partitions: Sequence[Partition]) -> Times:
    gpus = tuple(cluster.datacenter(part.dc).gpu for part in partitions for _ in range(part.stages))
    profiles = job.profiles(gpus)
    return Times(
        forward=_same_or_each([profile.forward_s * 1e3 for profile in profiles]),
        backward=_same_or_each([profile.backward_s * 1e3 for profile in profiles]),
        recompute=_same_or_each([profile.recompute_s * 1e3 for profile in profiles]),
    )


def _same_or_each(values: list[float]) -> float | list[float]:
    return values[0] if np.ptp(values) == 0 else values


def _refuse_too_large(job: Job) -> None:
    ops = job.partitions * job.cell_pipelines * job.microbatches * KINDS
    if ops > MOST_OPS:
        allowed = f"with {job.cell_pipelines} pipelines in a cell gives {ops} ops; at most {MOST_OPS}"
        raise InputError("job.microbatches", job.microbatches, allowed)
