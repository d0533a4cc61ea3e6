"""One DP-cell of an option, as a scenario for the simulator. All cells of an option are alike."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import ValidationError

from engine.cluster.cluster import Cluster, DataCenter, WanLink
from engine.cluster.gpus import Gpu
from engine.errors import Infeasible, InputError
from engine.plan.job import Job, cluster_of, job_of
from engine.plan.request import KINDS, Layout, PlanRequest
from engine.plan.result import Option, Partition
from engine.plan.stages import Room
from engine.schedule import policy_of
from engine.schedule.registry import name_of
from engine.schedule.scenario import MOST_OPS, Contention, Link, Scenario, Times
from engine.schedule.text import parse_schedule
from engine.simulate import SimulationResult, simulate, simulate_schedule


def scenario_of(request: PlanRequest, option: Option) -> Scenario:
    """The scenario of one DP-cell of `option`, in milliseconds; `dc_of_stage` indexes `request.datacenters`.

    Raises
    ------
    ValueError
        The option does not place every stage, or lacks a link.
    """
    cluster, job = placed_job(request, option)
    scenario = cell_scenario(request, cluster, job, option.partitions, option.policy, option.contention)
    if isinstance(scenario, Infeasible):
        raise ValueError(scenario.reason)
    return scenario


def simulated(request: PlanRequest, option: Option) -> SimulationResult:
    """One DP-cell of `option`, timed by the orders from `refine`, else by its policy.

    Raises ValueError as :func:`scenario_of`.
    """
    scenario = scenario_of(request, option)
    if option.schedule is None:
        return simulate(scenario)
    return simulate_schedule(scenario, parse_schedule(option.schedule))


def placed_job(request: PlanRequest, option: Option) -> tuple[Cluster, Job]:
    """The cluster, and the job laid out as in `option`, which must place every stage."""
    cluster = cluster_of(request)
    stages = sum(part.stages for part in option.partitions)
    given = request.job.layouts[0].layers  # or those that this option was given
    layers = option.layers_per_stage if request.job.layers_per_stage == "balanced" else given
    layout = Layout(
        partitions=stages,
        tp=option.tp,
        micro_batch=option.micro_batch,
        cp=option.cp,
        layers=layers,
        recompute=option.recompute and tuple(option.recompute),
    )
    job = job_of(request, cluster, layout)
    job = replace(job, cell=option.pipelines // option.dp_cells)
    return cluster, job.of_pipelines(option.pipelines)


def cell_scenario(
    request: PlanRequest,
    cluster: Cluster,
    job: Job,
    partitions: Sequence[Partition],
    policy: str | None = None,
    contention: Contention | None = None,
) -> Scenario | Infeasible:
    """The scenario of one DP-cell whose stages are placed as `partitions`, or why there is none.

    Its limits are the microbatches that the GPU of each stage holds, and the request's own if it is lower.

    policy, contention : by default those of the request.
    """
    placed = sum(part.stages for part in partitions)
    if placed != job.partitions:
        return Infeasible(reason=f"only {placed} of {job.partitions} stages are placed")
    try:
        hops = wan_links(request, cluster, job, partitions)
        if isinstance(hops, Infeasible):
            return hops
        gpus = gpus_of_stages(cluster, partitions)
        room = job.stages.room(gpus, job.microbatches)
        if isinstance(room, Infeasible):
            if request.job.layers_per_stage == "balanced" and job.layout.layers is not None:
                return replace(room, reason=f"{room.reason}; no other spread of the layers fits either")
            return room
        _refuse_too_large(job)
        lan = _lan(request, cluster, job, partitions)
        rules = policy or request.policy, contention or request.contention
        scenario = _scenario(request, job, partitions, hops, lan, gpus, room, rules)
        return _with_whole_layers(job, scenario)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        allowed = f"gives a cell that cannot be simulated: {field} of {problem['input']!r} ms"
        raise InputError("job", "model" if job.is_modelled else "times", allowed) from None


def _with_whole_layers(job: Job, scenario: Scenario) -> Scenario | Infeasible:
    """`scenario`, if no chunk of a stage has less than a layer; `auto` then leaves chunks out.

    Even layers are not asked: whoever gives the stages has chosen how many layers one has.
    """
    layers = job.layout.layers
    if layers is None or max(layers) - min(layers) <= 1:
        return scenario
    least = min(layers)
    if scenario.policy == "auto":
        return scenario.model_copy(update={"chunks": 1}) if least < 2 else scenario
    chunks = max(frame.traversal.chunks for frame in policy_of(scenario.policy).frames(scenario))
    if chunks <= least:
        return scenario
    stage, name = layers.index(least), name_of(scenario.policy)
    return Infeasible(reason=f"stage {stage} has {least} of the layers; {name} cuts each stage into {chunks}")


def gpus_of_stages(cluster: Cluster, partitions: Sequence[Partition]) -> tuple[Gpu, ...]:
    """The GPU type of each stage."""
    return tuple(cluster.datacenter(part.dc).gpu for part in partitions for _ in range(part.stages))


def _scenario(
    request: PlanRequest,
    job: Job,
    partitions: Sequence[Partition],
    hops: list[Link],
    lan: Link | list[Link],
    gpus: tuple[Gpu, ...],
    room: Room,
    rules: tuple[str, Contention | None],
) -> Scenario:
    policy, contention = rules
    times = _times(job, gpus)
    return Scenario(
        stages=job.partitions,
        dc_of_stage=[request.index_of[part.dc] for part in partitions for _ in range(part.stages)],
        pipelines=job.cell_pipelines,
        microbatches=job.microbatches,
        times=times,
        wan=hops,
        lan=lan,
        policy=policy,
        recompute_rule=request.recompute_rule,
        contention=contention,
        memory_limit=_limits(room.in_flight, request.memory_limit),
        full_limit=_limits(room.full) if np.any(times.recompute) else None,
        spans=False,
    )


def wan_links(
    request: PlanRequest, cluster: Cluster, job: Job, partitions: Sequence[Partition]
) -> list[Link] | Infeasible:
    """The WAN hops between adjacent data centres, in ms, or the link that is missing."""
    hops = []
    for left, right in itertools.pairwise(partitions):
        link = cluster.link(left.dc, right.dc)
        if link is None:
            return Infeasible(
                reason=f"no link between {left.dc} and {right.dc}, which are adjacent in the pipeline"
            )
        hops.append(hop_ms(request, job, link))
    return hops


def hop_ms(request: PlanRequest, job: Job, link: WanLink) -> Link:
    """A hop over `link`, in ms.

    Algorithm 1 has one transfer time for all links, C × forward. The search takes each link's own rate if a
    model gives the size of an activation.
    """
    transfer_s = job.transfer_s
    if request.method == "search" and job.is_modelled and job.activation_bytes is not None:
        transfer_s = job.activation_bytes / link.bytes_per_s
    return Link(latency=link.latency_s * 1e3, transfer=transfer_s * 1e3)


def lan_ms(request: PlanRequest, job: Job, dc: DataCenter) -> Link:
    """A hop between two nodes inside `dc`, in ms.

    Algorithm 1 counts none, as printed. Nor does a job that does not say how large an activation is.
    """
    if request.method == "algorithm1" or job.activation_bytes is None:
        return Link()
    transfer_s = job.activation_bytes / dc.intra_bytes_per_s
    return Link(latency=dc.intra_latency_s * 1e3, transfer=transfer_s * 1e3)


def _lan(
    request: PlanRequest, cluster: Cluster, job: Job, partitions: Sequence[Partition]
) -> Link | list[Link]:
    """The hops inside the data centres of `partitions`: one for all if they are alike, else by index."""
    links = {part.dc: lan_ms(request, job, cluster.datacenter(part.dc)) for part in partitions}
    first = links[partitions[0].dc]
    if all(link == first for link in links.values()):
        return first
    most = max(request.index_of[name] for name in links)
    return [links.get(name, first) for name in request.names[: most + 1]]


def _times(job: Job, gpus: tuple[Gpu, ...]) -> Times:
    profiles = job.profiles(gpus)
    return Times(
        forward=_same_or_each([profile.forward_s * 1e3 for profile in profiles]),
        backward=_same_or_each([profile.backward_s * 1e3 for profile in profiles]),
        recompute=_same_or_each([profile.recompute_s * 1e3 for profile in profiles]),
    )


def _limits(room: tuple[int, ...] | None, most: int | None = None) -> int | list[int] | None:
    """The room of each stage, and at most `most`; None: no limit."""
    if room is None:
        return most
    limits = [n if most is None else min(n, most) for n in room]
    return limits[0] if min(limits) == max(limits) else limits


def _same_or_each(values: list[float]) -> float | list[float]:
    return values[0] if np.ptp(values) == 0 else values


def _refuse_too_large(job: Job) -> None:
    ops = job.partitions * job.cell_pipelines * job.microbatches * KINDS
    if ops > MOST_OPS:
        allowed = f"with {job.cell_pipelines} pipelines in a cell gives {ops} ops; at most {MOST_OPS}"
        raise InputError("job.microbatches", job.microbatches, allowed)
