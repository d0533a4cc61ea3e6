"""DC selection by Atlas Algorithm 1 (§4.5), with the time, the cost and the limits of each option.

For every number D of DP-cells, data centres are filled in a given order. Each takes as many stages as its
GPUs hold if every stage needs D·C of them. One cell is simulated for the pipeline's time, and a ring
all-reduce over the D·C replicas of a stage is added. Equal cells are simulated once.
"""

import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from engine.cluster.cluster import Cluster
from engine.cluster.gpus import Gpu
from engine.errors import Infeasible, InputError
from engine.model.profile import StageProfile
from engine.plan import choose, cost, tied
from engine.plan.cell import cell_scenario, gpus_of_stages
from engine.plan.fitting import fitting
from engine.plan.held import memory_per_stage
from engine.plan.job import Job, cluster_of, job_of
from engine.plan.request import MOST_OPTIONS, PlanRequest
from engine.plan.result import MemoryUse, Option, Partition, PlanResult, StageTime
from engine.schedule import Chosen, Schedule
from engine.schedule.contention import shares_links
from engine.schedule.scenario import BEST, Contention, Scenario
from engine.simulate import SimulationResult, simulate
from engine.simulate.timeline import Timeline

Partitions = tuple[Partition, ...]
# The partitions of a cell; with ZeRO-1 also the replicas of each stage.
Cell = tuple[Partitions, int | None]
# Of each spread of the layers over a cell's stages.
Spreads = list["Figures | Infeasible"]


def algorithm1(
    request: PlanRequest,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    report: Callable[[int, int | None], None] = lambda done, of: None,
) -> PlanResult:
    """All options from one DP-cell up, and the best for the request's objective.

    Parameters
    ----------
    cancelled : called between simulations; true leaves the cells not simulated yet without a time.
    report : called with the number of simulated cells and their total.

    Raises
    ------
    InputError
        The job does not fit its model (more partitions than layers), or a cell is too large to simulate.
    """
    cluster = cluster_of(request)
    job = job_of(request, cluster)
    order = datacenter_order(request)
    placed = [_placed(request, cluster, job, order, n) for n in range(1, most_listed(request, job) + 1)]
    distinct = dict.fromkeys(_cell_of(option) for option in placed if not option.reason)
    cells = _simulated(request, cluster, job, distinct, cancelled, report)
    options = tuple(_timed(request, cluster, option, cells) for option in placed)
    best = choose.best(options, request.objective)
    return choose.result(
        request,
        job,
        order,
        options,
        excluded=choose.excluded(request, job, options, best),
        reason=None if best is not None else choose.why_none(options),
    )


def datacenter_order(request: PlanRequest) -> tuple[str, ...]:
    """The allowed data centres in the order in which Algorithm 1 fills them; ties as listed."""
    datacenters = [dc for dc in request.datacenters if dc.name in request.allowed_names]
    if request.order == "gpus":
        datacenters.sort(key=lambda dc: -dc.gpus)
    elif request.order == "price":
        datacenters.sort(key=lambda dc: dc.price_per_gpu_hour)
    else:
        datacenters.sort(key=lambda dc: request.order.index(dc.name))
    return tuple(dc.name for dc in datacenters)


def most_dp_cells(request: PlanRequest, job: Job) -> int:
    """D_max: as given, or ⌊Σ GPUs / (c·P)⌋ over the allowed data centres, and at least 1."""
    if request.max_dp_cells is not None:
        return request.max_dp_cells
    gpus = sum(dc.gpus for dc in request.datacenters if dc.name in request.allowed_names)
    return max(1, gpus // (job.cell_pipelines * job.partitions))


def most_listed(request: PlanRequest, job: Job) -> int:
    """D_max if each D is an option of its own, as in Algorithm 1.

    Raises InputError if that is more than an answer may hold.
    """
    most = most_dp_cells(request, job)
    if most > MOST_OPTIONS:
        allowed = f"the GPUs make {most:,} DP-cells: set max_dp_cells, at most {MOST_OPTIONS:,}"
        raise InputError("max_dp_cells", None, allowed)
    return most


def assign(gpus: Sequence[tuple[str, int]], stages: int, gpus_per_stage: int) -> tuple[Partition, ...]:
    """Atlas Algorithm 1, lines 2–10: stages to data centres in order, without the data centres that get none.

    Parameters
    ----------
    gpus : (name, GPUs) of each data centre, in filling order.
    gpus_per_stage : D·C, the replicas of each stage (times the GPUs of one replica).

    Returns
    -------
    In pipeline order; fewer than `stages` in total if there are too few GPUs.
    """
    left = stages
    partitions = []
    for name, available in gpus:
        assigned = min(left, available // gpus_per_stage)
        left -= assigned
        if assigned:
            partitions.append(Partition(dc=name, stages=assigned))
        if left == 0:
            break
    return tuple(partitions)


def _placed(
    request: PlanRequest, cluster: Cluster, job: Job, order: tuple[str, ...], dp_cells: int
) -> Option:
    """The placement of `dp_cells` DP-cells and its GPUs, or why the stages do not fit."""
    gpus_per_stage = dp_cells * job.cell_pipelines * job.gpus_per_stage
    gpus = [(name, cluster.datacenter(name).gpus) for name in order]
    partitions = assign(gpus, job.partitions, gpus_per_stage)
    placed = sum(part.stages for part in partitions)
    reason = None
    if dp_cells % job.step_of_cells:
        pipelines = dp_cells * job.cell_pipelines
        reason = f"{pipelines} pipelines: must be a multiple of ep = {job.replicas.ep}"
    elif placed < job.partitions:
        reason = short_of_gpus(placed, job.partitions, gpus_per_stage)
    return replace(placed_option(request, job, dp_cells, () if reason else partitions), reason=reason)


def placed_option(request: PlanRequest, job: Job, dp_cells: int, partitions: Partitions) -> Option:
    """An option without times: `dp_cells` DP-cells whose stages are in `partitions`; empty: not placed."""
    pipelines = dp_cells * job.cell_pipelines
    used = {part.dc: part.stages * pipelines * job.gpus_per_stage for part in partitions}
    left = {dc.name: dc.gpus - used.get(dc.name, 0) for dc in request.datacenters}
    idle = {name: gpus for name, gpus in left.items() if gpus and name in request.allowed_names}
    return Option(
        dp_cells=dp_cells,
        pipelines=pipelines,
        policy=request.policy,
        tp=job.layout.tp,
        micro_batch=job.layout.micro_batch,
        cp=job.layout.cp,
        ep=job.replicas.ep,
        zero=job.zero,
        partitions=partitions,
        gpus_used=used,
        gpus_idle=idle if partitions else {},
    )


def _cell_of(option: Option) -> Cell:
    """All that the time of an option's cell depends on: with ZeRO-1 also the replicas."""
    return option.partitions, option.pipelines if option.zero else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one timed cell.

    job : with the layers of each stage.
    lower_bound_ms : proven for any schedule; 0: not bounded yet.
    memory : of each stage; None: unknown.
    ends_together : the first and the last part of the model are on one GPU.
    schedule : its orders as text, if `policy` does not determine them.
    contention : the rule by which pipelines share links; None: they share none, or the orders are given.
    """

    job: Job
    policy: str
    makespan_ms: float
    utilization: float
    lower_bound_ms: float = 0.0
    memory: tuple[MemoryUse, ...] | None = None
    ends_together: bool = False
    schedule: str | None = None
    contention: Contention | None = None


def figures_of(job: Job, gpus: tuple[Gpu, ...], timeline: Timeline, **rest: Any) -> Figures:
    """The figures of a cell that runs as in `timeline`, stage i on `gpus[i]`.

    rest : its other fields.
    """
    return Figures(
        job=job,
        makespan_ms=timeline.makespan,
        utilization=timeline.utilization(),
        memory=memory_per_stage(job.stages, gpus, timeline.schedule),
        ends_together=timeline.schedule.traversal.ends_together,
        **rest,
    )


def _simulated(
    request: PlanRequest,
    cluster: Cluster,
    job: Job,
    cells: Collection[Cell],
    cancelled: Callable[[], bool],
    report: Callable[[int, int | None], None],
) -> dict[Cell, Spreads]:
    """get_latency_pp (Atlas Algorithm 1, line 14) of each distinct cell, on all cores: compiled code runs
    without the GIL."""
    over = False

    def figures(cell: Cell) -> Spreads:
        if over:
            return [Infeasible(reason="stopped")]
        partitions, replicas = cell
        spreads = job.of_pipelines(replicas or 1).spreads(gpus_of_stages(cluster, partitions))
        return [_figures(request, cluster, each, partitions) for each in spreads]

    results: dict[Cell, Spreads] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for cell, result in zip(cells, pool.map(figures, cells), strict=True):
            results[cell] = result
            report(len(results), len(cells))
            over = over or cancelled()
    return results


def _figures(
    request: PlanRequest, cluster: Cluster, job: Job, partitions: Partitions
) -> Figures | Infeasible:
    scenario = cell_scenario(request, cluster, job, partitions, contention=request.contention or BEST)
    if isinstance(scenario, Infeasible):
        return scenario
    gpus = gpus_of_stages(cluster, partitions)
    done = fitting(scenario, job.stages, gpus, _built)
    if isinstance(done, Infeasible):
        return done
    (timeline, result), is_lowered = done
    return figures_of(
        job,
        gpus,
        timeline,
        policy=request.policy,
        lower_bound_ms=result.lower_bound,
        schedule=str(timeline.schedule) if is_lowered else None,
        contention=None if is_lowered else shared_by(timeline.schedule, result.chosen),
    )


def _built(scenario: Scenario) -> tuple[Timeline, SimulationResult] | Infeasible:
    result = simulate(scenario)
    return (result.timeline, result) if result.timeline else Infeasible(reason=result.reason or "")


def shared_by(schedule: Schedule, chosen: Chosen | None) -> Contention | None:
    """The rule by which pipelines share links, if they share any."""
    return chosen.contention if chosen and shares_links(schedule) else None


def _timed(
    request: PlanRequest,
    cluster: Cluster,
    option: Option,
    cells: Mapping[Cell, Spreads],
) -> Option:
    """`option` with its figures, and within the limits or not; of several spreads of layers the best."""
    if option.reason:
        return option
    options = [figured(request, cluster, option, figures) for figures in cells[_cell_of(option)]]
    return choose.best_of(options, request.objective)


def figured(request: PlanRequest, cluster: Cluster, option: Option, cell: Figures | Infeasible) -> Option:
    """`option` with what follows from its cell's figures, within the limits or not; or why there are none."""
    if isinstance(cell, Infeasible):
        return replace(option, reason=cell.reason)
    timed = _with_times(request, cluster, cell.job, option, cell)
    return choose.within_limits(request, cost.priced(request, cluster, cell.job, timed))


def _with_times(request: PlanRequest, cluster: Cluster, job: Job, option: Option, figures: Figures) -> Option:
    """Atlas Algorithm 1, lines 14–17, and the throughput D·C / total time.

    The optimizer and the gradients of a tied embedding, which Atlas does not count, add to the total time.
    """
    allreduce_ms, tied_ms = 0.0, None
    if request.allreduce:
        used = ((cluster.datacenter(part.dc), part.stages) for part in option.partitions)
        allreduce_ms = 1e3 * max(job.all_reduce_in_s(option.pipelines, dc, n) for dc, n in used)
        if job.tied_bytes and not figures.ends_together:
            tied_ms = 1e3 * tied.exchange_s(cluster, job, option.order)
    gpus = gpus_of_stages(cluster, option.partitions)
    placed = job.profiles(gpus)
    update_ms = None
    if request.job.layer_profiles is not None:
        update_ms = 1e3 * max(stage.update_s for stage in placed)
    iteration_ms = figures.makespan_ms + allreduce_ms + (tied_ms or 0.0) + (update_ms or 0.0)
    throughput = option.pipelines / (iteration_ms / 1e3)
    tokens = job.tokens_per_microbatch
    return replace(
        option,
        feasible=True,
        policy=figures.policy,
        recompute=job.stages.recompute_of(gpus),
        pp_time_ms=figures.makespan_ms,
        lower_bound_ms=figures.lower_bound_ms,
        memory_gb_per_gpu=_memory_gb(option, figures.memory),
        layers_per_stage=tuple(stage.layers for stage in placed) if job.is_modelled else None,
        memory_per_stage=figures.memory,
        time_per_stage=_time_per_stage(placed) if job.sends_inside else None,
        utilization=figures.utilization,
        allreduce_ms=allreduce_ms + (tied_ms or 0.0 if request.method == "search" else 0.0),
        tied_ms=tied_ms,
        update_ms=update_ms,
        iteration_ms=iteration_ms,
        throughput=throughput,
        schedule=figures.schedule or option.schedule,
        contention=figures.contention,
        tokens_per_s=None if tokens is None else throughput * job.microbatches * tokens,
    )


def _time_per_stage(profiles: Sequence[StageProfile]) -> tuple[StageTime, ...] | None:
    """None where the messages of any stage are not modelled."""
    stages = []
    for stage in profiles:
        if stage.tp_s is None or stage.cp_s is None or stage.ep_s is None:
            return None
        stages.append(
            StageTime(
                forward_ms=1e3 * stage.forward_s,
                backward_ms=1e3 * stage.backward_s,
                recompute_ms=1e3 * stage.recompute_s,
                tp_ms=1e3 * stage.tp_s,
                cp_ms=1e3 * stage.cp_s,
                ep_ms=1e3 * stage.ep_s,
            )
        )
    return tuple(stages)


def _memory_gb(option: Option, memory: tuple[MemoryUse, ...] | None) -> dict[str, float] | None:
    if memory is None:
        return None
    ends = list(itertools.accumulate((part.stages for part in option.partitions), initial=0))
    return {
        part.dc: max(use.total_bytes for use in memory[start:end]) / 1e9
        for part, (start, end) in zip(option.partitions, itertools.pairwise(ends), strict=True)
    }


def short_of_gpus(placed: int, stages: int, gpus_per_stage: int) -> str:
    """A phrase that says how many GPUs are missing."""
    missing = stages - placed
    return (
        f"{gpus_per_stage} GPUs per stage: only {placed} of {stages} stages fit; "
        f"{missing} short, {missing * gpus_per_stage} more GPUs"
    )
