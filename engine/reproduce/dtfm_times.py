"""Iteration times of the DT-FM paper's five cases (§4, App. B).

Iteration times are simulated, not measured: every pipeline on its own links, then the exchange of gradients.
Ours runs GPipe and the exchange of Eq. 2. Megatron runs 1F1B and a ring all-reduce on each of three random
layouts (as in B.2, the same as ours without scheduler) with the best of B.2's grid. The paper states neither
the speed of a V100 nor the microbatch: here 50 % of 125 TFLOP/s (§1) and one sequence. Transfers overlap with
computing for both, unless `Running` says otherwise for Megatron.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement import scenarios
from engine.plan.placement.partition_search import PartitionSearch
from engine.plan.placement.place import default_evaluations, lay_out, solve
from engine.plan.placement.problem import Problem, data_cost_s, problem
from engine.plan.placement.result import Placement
from engine.plan.placement.scenarios import Case
from engine.reproduce.contention import makespan_of
from engine.schedule.scenario import Link, Scenario, Times
from engine.simulate import simulate

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DEVICES = 64
FLOP_PER_S = 0.5 * 125e12
LAYERS = (24, 40)
BATCHES = (1024, 4096)
SEEDS = (2022, 2023, 2024)  # the paper's, of its random layouts
DEGREES = (1, 2, 4, 8)
MICROBATCH_BYTES = scenarios.SEQ * scenarios.HIDDEN * scenarios.FP16_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of the paper's settings: layers of GPT3-XL and sequences in a batch."""

    layers: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Degrees of tensor, pipeline and data parallelism (B.2)."""

    tensor: int
    pipeline: int
    data: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How Megatron runs, where the paper is silent.

    overlapped : transfers leave computing alone; otherwise a stage waits for what it sends.
    microbatch : sequences in one.
    """

    overlapped: bool = True
    microbatch: int = 1


JOBS = tuple(Job(layers=layers, batch=batch) for layers, batch in product(LAYERS, BATCHES))
AS_OURS = Running()
GRIDS = tuple(
    Grid(tensor=t, pipeline=p, data=d) for t, p, d in product(DEGREES, repeat=3) if t * p * d == DEVICES
)


def case_problem(case: Case, job: Job) -> Problem:
    """Placement of `job` on eight stages and eight pipelines."""
    return problem(
        case.latency_ms / 1e3,
        case.bandwidth_gbps * 1e9 / 8,
        scenarios.STAGES,
        scenarios.dp_bytes(job.layers),
        scenarios.pp_bytes(job.batch),
    )


@lru_cache
def placed(name: str, job: Job) -> Placement:
    """The placement of a case with the default number of evaluations and seed 0."""
    task = case_problem(scenarios.case(name), job)
    return solve(PartitionSearch(problem=task, limit=default_evaluations(task.devices, task.stages)))


@lru_cache(maxsize=16_384)
def pipeline_s(
    policy: str,
    forward_s: float,
    hops: tuple[tuple[float, float], ...],
    microbatches: int,
    *,
    overlapped: bool = True,
) -> float:
    """Seconds of one pipeline whose hops have these (latency, transfer); backward takes twice forward.

    overlapped : otherwise a stage is busy with what it sends: activations on, gradients back.
    """
    stages = len(hops) + 1
    sent = [0.0 if overlapped else transfer for _, transfer in hops]
    scenario = Scenario(
        stages=stages,
        dc_of_stage=list(range(stages)),
        microbatches=microbatches,
        times=Times(
            forward=[forward_s + on for on in (*sent, 0.0)],
            backward=[2 * forward_s + back for back in (0.0, *sent)],
        ),
        wan=[Link(latency=latency, transfer=transfer if overlapped else 0.0) for latency, transfer in hops]
        or Link(),
        policy=policy,
        spans=False,
    )
    return makespan_of(simulate(scenario))


def forward_s(job: Job, grid: Grid) -> float:
    """Seconds of one sequence through a stage on one GPU: 2 FLOP per weight and token, and attention."""
    tokens, hidden = scenarios.SEQ, scenarios.HIDDEN
    layer = 2 * scenarios.layer_parameters() * tokens + 4 * tokens**2 * hidden
    return job.layers / grid.pipeline * layer / grid.tensor / FLOP_PER_S


def ours_s(case: Case, job: Job, pipelines: Ints) -> float:
    """Seconds of an iteration of ours: `pipelines`, shape (8, 8), then Eq. 2."""
    grid = Grid(tensor=1, pipeline=8, data=8)
    task = case_problem(case, job)
    through = _slowest(case, job, grid, pipelines, "gpipe", forward_s(job, grid), AS_OURS)
    return through + float(data_cost_s(task, pipelines.T).max())


def megatron_s(case: Case, job: Job, grid: Grid, layout: Ints, running: Running = AS_OURS) -> float:
    """Seconds of an iteration of Megatron, its ranks (tensor, data, pipeline) on a permutation of devices."""
    pipelines = layout.reshape(grid.pipeline, grid.data, grid.tensor)[:, :, 0].T
    compute = megatron_forward_s(case, job, grid, layout, running.microbatch)
    through = _slowest(case, job, grid, pipelines, "1f1b", compute, running)
    return through + megatron_all_reduce_s(case, job, grid, layout)


def megatron_forward_s(case: Case, job: Job, grid: Grid, layout: Ints, sequences: int = 1) -> float:
    """Forward time of a stage, with its share of the tensor-parallel all-reduces.

    Each layer reduces activations twice forward and twice backward (App. A). Backward is timed as twice
    forward, so forward bears a third of the four.
    """
    groups = layout.reshape(-1, grid.tensor)
    slowest = max(_ring_s(case, group, sequences * MICROBATCH_BYTES) for group in groups)
    return sequences * forward_s(job, grid) + 4 / 3 * job.layers / grid.pipeline * slowest


def megatron_all_reduce_s(case: Case, job: Job, grid: Grid, layout: Ints) -> float:
    """The slowest ring all-reduce of gradients among the data-parallel groups."""
    gradients = job.layers / grid.pipeline * scenarios.layer_parameters() * scenarios.FP16_BYTES / grid.tensor
    ranks = layout.reshape(grid.pipeline, grid.data, grid.tensor)
    groups = ranks.transpose(0, 2, 1).reshape(-1, grid.data)
    return max(_ring_s(case, group, gradients) for group in groups)


def best_megatron_s(case: Case, job: Job, layout: Ints, running: Running = AS_OURS) -> tuple[float, Grid]:
    """The fastest of B.2's grid that divides layers and batch.

    A grid is not simulated where computing and the all-reduce alone take longer than the fastest so far.
    """
    best = (np.inf, GRIDS[0])
    for bound, grid in sorted(_lower_bounds(case, job, layout, running), key=lambda entry: entry[0]):
        if bound < best[0]:
            seconds = megatron_s(case, job, grid, layout, running)
            best = min(best, (seconds, grid), key=lambda entry: entry[0])
    return best


def _lower_bounds(case: Case, job: Job, layout: Ints, running: Running) -> Iterator[tuple[float, Grid]]:
    """Every grid that fits, with a lower bound on its time: all its work on one GPU, or on one link."""
    bytes_per_s, sequences = case.bandwidth_gbps * 1e9 / 8, running.microbatch
    for grid in GRIDS:
        if job.layers % grid.pipeline or job.batch % (grid.data * sequences):
            continue
        heads = layout.reshape(grid.pipeline, grid.data, grid.tensor)[:, :, 0]
        transfer = sequences * MICROBATCH_BYTES / bytes_per_s[heads[:-1], heads[1:]]
        compute = 3 * megatron_forward_s(case, job, grid, layout, sequences)
        once = max(compute, transfer.max(initial=0.0))
        microbatches = job.batch // (grid.data * sequences)
        yield microbatches * once + megatron_all_reduce_s(case, job, grid, layout), grid


def layouts() -> Iterator[Ints]:
    """The random layouts."""
    for seed in SEEDS:
        yield np.random.default_rng(seed).permutation(DEVICES)


def _slowest(
    case: Case, job: Job, grid: Grid, pipelines: Ints, policy: str, compute_s: float, running: Running
) -> float:
    microbatches = job.batch // (grid.data * running.microbatch)
    size, bytes_per_s = running.microbatch * MICROBATCH_BYTES, case.bandwidth_gbps * 1e9 / 8
    slow: list[tuple[tuple[float, float], ...]] = []
    for devices in pipelines:
        ends = list(zip(devices[:-1].tolist(), devices[1:].tolist(), strict=True))
        slow.append(tuple((case.latency_ms[a, b] / 1e3, size / bytes_per_s[a, b]) for a, b in ends))
    return max(
        pipeline_s(policy, compute_s, hops, microbatches, overlapped=running.overlapped)
        for hops in _undominated(slow)
    )


def _undominated(
    pipelines: list[tuple[tuple[float, float], ...]],
) -> Iterator[tuple[tuple[float, float], ...]]:
    """Distinct pipelines that no other is at least as slow as on every hop; the slowest is among them."""
    kinds = list(dict.fromkeys(pipelines))
    for hops in kinds:
        rivals = (other for other in kinds if other != hops)
        if not any(np.all(np.asarray(other) >= np.asarray(hops)) for other in rivals):
            yield hops


def _ring_s(case: Case, group: Ints, size_bytes: float) -> float:
    """A ring all-reduce in the order of `group`: 2·(n−1) steps of 1/n of the bytes over its slowest link."""
    ranks = len(group)
    if ranks == 1:
        return 0.0
    after = np.roll(group, -1)
    step = case.latency_ms[group, after] / 1e3 + size_bytes / ranks / (
        case.bandwidth_gbps[group, after] * 1e9 / 8
    )
    return float(2 * (ranks - 1) * step.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Iteration times of one case and setting, in seconds."""

    ours: float
    random: float
    random_solved: float
    megatron: float
    grid: Grid


@lru_cache
def timed(name: str, job: Job) -> Timed:
    """Ours placed, on random layouts (raw, and matched and ordered), and Megatron; means over the layouts."""
    case = scenarios.case(name)
    task = case_problem(case, job)
    search = PartitionSearch(problem=task, limit=1)
    raw = [ours_s(case, job, layout.reshape(8, 8).T) for layout in layouts()]
    solved = [ours_s(case, job, lay_out(search, layout.reshape(8, 8))[1]) for layout in layouts()]
    megatron = [best_megatron_s(case, job, layout) for layout in layouts()]
    return Timed(
        ours=ours_s(case, job, np.array(placed(name, job).pipelines)),
        random=float(np.mean(raw)),
        random_solved=float(np.mean(solved)),
        megatron=float(np.mean([seconds for seconds, _ in megatron])),
        grid=min(megatron, key=lambda entry: entry[0])[1],
    )


@lru_cache
def megatron_mean_s(name: str, job: Job, microbatches: tuple[int, ...], *, overlapped: bool = True) -> float:
    """Megatron's mean over the layouts, each with the best of `microbatches` and grids."""
    case = scenarios.case(name)
    ways = [Running(overlapped=overlapped, microbatch=sequences) for sequences in microbatches]
    return float(np.mean([min(best_megatron_s(case, job, at, way)[0] for way in ways) for at in layouts()]))
