"""The DT-FM paper (§4, App. B): gains of placement in its five cases, in cost and simulated iteration time.

Iteration times are simulated, not measured: every pipeline on its own links, then the exchange of gradients.
Ours runs GPipe and the exchange of Eq. 2. Megatron runs 1F1B and a ring all-reduce on each of three random
layouts (as in B.2, the same as ours without scheduler) with the best of B.2's grid. The paper states neither
the speed of a V100 nor the microbatch: here 50 % of 125 TFLOP/s (§1) and one sequence. Transfers overlap with
computing for both, so DT-FM's gain from overlapping (§3.5) is not in these ratios.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement import baselines, scenarios
from engine.plan.placement.partition_search import PartitionSearch
from engine.plan.placement.place import default_evaluations, lay_out, solve
from engine.plan.placement.problem import Problem, data_cost_s, hop_cost_s, problem
from engine.plan.placement.result import Placement
from engine.plan.placement.scenarios import Case
from engine.reproduce import Experiment, Outcome, Plot, Row, Series
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
# §4: over Megatron; world-wide 3.8–4.8, "in all other cases 1.2–2.5".
OVER_MEGATRON = {"worldwide": (3.8, 4.8)}
OTHERS = (1.2, 2.5)


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


JOBS = tuple(Job(layers=layers, batch=batch) for layers, batch in product(LAYERS, BATCHES))
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


@lru_cache(maxsize=4096)
def pipeline_s(
    policy: str, forward_s: float, hops: tuple[tuple[float, float], ...], microbatches: int
) -> float:
    """Seconds of one pipeline whose hops have these (latency, transfer); backward takes twice forward."""
    stages = len(hops) + 1
    scenario = Scenario(
        stages=stages,
        dc_of_stage=list(range(stages)),
        microbatches=microbatches,
        times=Times(forward=forward_s, backward=2 * forward_s),
        wan=[Link(latency=latency, transfer=transfer) for latency, transfer in hops] or Link(),
        policy=policy,
        spans=False,
    )
    makespan = simulate(scenario).makespan
    assert makespan is not None  # no limits: always feasible
    return makespan


def forward_s(job: Job, grid: Grid) -> float:
    """Seconds of one sequence through a stage on one GPU: 2 FLOP per weight and token, and attention."""
    tokens, hidden = scenarios.SEQ, scenarios.HIDDEN
    layer = 2 * scenarios.layer_parameters() * tokens + 4 * tokens**2 * hidden
    return job.layers / grid.pipeline * layer / grid.tensor / FLOP_PER_S


def ours_s(case: Case, job: Job, pipelines: Ints) -> float:
    """Seconds of an iteration of ours: `pipelines`, shape (8, 8), then Eq. 2."""
    grid = Grid(tensor=1, pipeline=8, data=8)
    task = case_problem(case, job)
    through = _slowest(case, job, grid, pipelines, "gpipe", forward_s(job, grid))
    return through + float(data_cost_s(task, pipelines.T).max())


def megatron_s(case: Case, job: Job, grid: Grid, layout: Ints) -> float:
    """Seconds of an iteration of Megatron, its ranks (tensor, data, pipeline) on a permutation of devices."""
    pipelines = layout.reshape(grid.pipeline, grid.data, grid.tensor)[:, :, 0].T
    compute = megatron_forward_s(case, job, grid, layout)
    through = _slowest(case, job, grid, pipelines, "1f1b", compute)
    return through + megatron_all_reduce_s(case, job, grid, layout)


def megatron_forward_s(case: Case, job: Job, grid: Grid, layout: Ints) -> float:
    """Forward time of a stage, with its share of the tensor-parallel all-reduces.

    Each layer reduces activations twice forward and twice backward (App. A). Backward is timed as twice
    forward, so forward bears a third of the four.
    """
    groups = layout.reshape(-1, grid.tensor)
    slowest = max(_ring_s(case, group, MICROBATCH_BYTES) for group in groups)
    return forward_s(job, grid) + 4 / 3 * job.layers / grid.pipeline * slowest


def megatron_all_reduce_s(case: Case, job: Job, grid: Grid, layout: Ints) -> float:
    """The slowest ring all-reduce of gradients among the data-parallel groups."""
    gradients = job.layers / grid.pipeline * scenarios.layer_parameters() * scenarios.FP16_BYTES / grid.tensor
    ranks = layout.reshape(grid.pipeline, grid.data, grid.tensor)
    groups = ranks.transpose(0, 2, 1).reshape(-1, grid.data)
    return max(_ring_s(case, group, gradients) for group in groups)


def best_megatron_s(case: Case, job: Job, layout: Ints) -> tuple[float, Grid]:
    """The fastest of B.2's grid that divides layers and batch.

    A grid is not simulated where computing and the all-reduce alone take longer than the fastest so far.
    """
    best = (np.inf, GRIDS[0])
    for bound, grid in sorted(_lower_bounds(case, job, layout), key=lambda entry: entry[0]):
        if bound < best[0]:
            best = min(best, (megatron_s(case, job, grid, layout), grid), key=lambda entry: entry[0])
    return best


def _lower_bounds(case: Case, job: Job, layout: Ints) -> Iterator[tuple[float, Grid]]:
    """Every grid that fits, with a lower bound on its time: all its work on one GPU, or on one link."""
    bytes_per_s = case.bandwidth_gbps * 1e9 / 8
    for grid in GRIDS:
        if job.layers % grid.pipeline or job.batch % grid.data:
            continue
        heads = layout.reshape(grid.pipeline, grid.data, grid.tensor)[:, :, 0]
        transfer = MICROBATCH_BYTES / bytes_per_s[heads[:-1], heads[1:]]
        once = max(3 * megatron_forward_s(case, job, grid, layout), transfer.max(initial=0.0))
        yield job.batch // grid.data * once + megatron_all_reduce_s(case, job, grid, layout), grid


def layouts() -> Iterator[Ints]:
    """The random layouts."""
    for seed in SEEDS:
        yield np.random.default_rng(seed).permutation(DEVICES)


def _slowest(case: Case, job: Job, grid: Grid, pipelines: Ints, policy: str, compute_s: float) -> float:
    microbatches = job.batch // grid.data
    bytes_per_s = case.bandwidth_gbps * 1e9 / 8
    slow: list[tuple[tuple[float, float], ...]] = []
    for devices in pipelines:
        ends = list(zip(devices[:-1].tolist(), devices[1:].tolist(), strict=True))
        slow.append(
            tuple((case.latency_ms[a, b] / 1e3, MICROBATCH_BYTES / bytes_per_s[a, b]) for a, b in ends)
        )
    return max(pipeline_s(policy, compute_s, hops, microbatches) for hops in _undominated(slow))


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


def costs() -> Outcome:
    """Fig. 5: communication cost by the model, ours against others with the same inner solve."""
    rows: list[Row] = []
    plots = []
    for number, name in enumerate(scenarios.names(), start=1):
        task = case_problem(scenarios.case(name), JOBS[0])
        rows += _cost_rows(f"case {number} {name}", task, placed(name, JOBS[0]))
        plots.append(_over_time(number, name, task))
    return Outcome(rows=tuple(rows), plots=tuple(plots))


def _cost_rows(name: str, task: Problem, ours: Placement) -> Iterator[Row]:
    notes = {
        "the paper's search": "§3.4 from random partitions, 5,000 evaluations",
        "Kernighan–Lin": "recursive bisection; the paper has it as local search of its scheduler",
    }
    raw = float(np.mean([_raw_s(task, layout) for layout in layouts()]))
    yield Row(
        name=f"{name}: ours",
        paper=None,
        ours=ours.cost_s,
        unit="s",
        note="Eq. 1; Fig. 5 has no printed figures",
    )
    others = {start.name: start.cost_s for start in (*ours.starts, *baselines.all_of(task, 0))}
    for other, cost in others.items():
        ratio, note = cost / ours.cost_s, notes.get(other, "")
        yield Row(name=f"{name}: {other}", paper=None, ours=ratio, unit="x ours", note=note)
    yield Row(
        name=f"{name}: random as the authors score it",
        paper=None,
        ours=raw / ours.cost_s,
        unit="x ours",
        note="neither matched nor ordered",
    )


def _raw_s(task: Problem, layout: Ints) -> float:
    """The cost of a layout as it stands: stage by stage, without matching or ordering."""
    groups = layout.reshape(task.stages, task.replicas)
    return float(data_cost_s(task, groups).max() + hop_cost_s(task, groups.T).sum())


def _over_time(number: int, name: str, task: Problem) -> Plot:
    lines = {"ours": placed(name, JOBS[0]).history}
    for label, search in (
        ("plain genetic", baselines.plain_genetic(task, 0)),
        ("the paper's search", baselines.published_search(task, 0)),
    ):
        book, entries = search.book, int(search.book.entries[0])
        lines[label] = tuple(zip(book.at[:entries].tolist(), book.fell_to[:entries].tolist(), strict=True))
    series = []
    for label, falls in lines.items():
        last = baselines.GENERATIONS
        points = [*(fall for fall in falls if fall[0] <= last), (last, falls[-1][1])]
        series.append(
            Series(label=label, x=tuple(float(x) for x, _ in points), y=tuple(y for _, y in points))
        )
    return Plot(
        name=f"dtfm-fig5-{number}",
        title=f"Case {number}: estimated cost over evaluations (as Fig. 5)",
        x_label="evaluations",
        y_label="s",
        series=tuple(series),
    )


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


def iterations() -> Outcome:
    """Figs. 4 and 6: simulated iteration times in the five cases."""
    rows: list[Row] = []
    for number, name in enumerate(scenarios.names(), start=1):
        rows += _case_rows(number, name)
    rows += _across()
    return Outcome(rows=tuple(rows), plots=(_bars(),))


def _case_rows(number: int, name: str) -> Iterator[Row]:
    results = [timed(name, job) for job in JOBS]
    over = [one.megatron / one.ours for one in results]
    low, high = OVER_MEGATRON.get(name, OTHERS)
    grids = {f"{one.grid.tensor}·{one.grid.pipeline}·{one.grid.data}" for one in results}
    label = f"case {number} {name}"
    note = f"best grid TP·PP·DP: {', '.join(sorted(grids))}"
    note += "" if name in OVER_MEGATRON else "; printed for cases 1 to 4 together"
    yield Row(name=f"{label}: over Megatron, least", paper=low, ours=min(over), unit="x", note=note)
    yield Row(name=f"{label}: over Megatron, most", paper=high, ours=max(over), unit="x", note=note)
    by_scheduler = [one.random / one.ours for one in results]
    solved = [one.random_solved / one.ours for one in results]
    yield Row(name=f"{label}: by the scheduler, most", paper=None, ours=max(by_scheduler), unit="x")
    yield Row(
        name=f"{label}: by the search alone, most",
        paper=None,
        ours=max(solved),
        unit="x",
        note="random groups, but matched and ordered",
    )


def _across() -> Iterator[Row]:
    most = max(timed(name, job).random / timed(name, job).ours for name in scenarios.names() for job in JOBS)
    yield Row(name="by the scheduler, most of all cases", paper=2.7, ours=most, unit="x")
    slower = [timed("worldwide", job).ours / timed("on-demand", job).megatron for job in JOBS]
    note = "ours world-wide against Megatron in one data centre"
    yield Row(name="price of decentralization, least", paper=1.7, ours=min(slower), unit="x", note=note)
    yield Row(name="price of decentralization, most", paper=3.5, ours=max(slower), unit="x", note=note)


def _bars() -> Plot:
    names = scenarios.names()
    x = tuple(float(number) for number in range(1, len(names) + 1))
    results = [timed(name, JOBS[0]) for name in names]
    series = {
        "ours": [one.ours for one in results],
        "ours, random layout": [one.random for one in results],
        "Megatron, best grid": [one.megatron for one in results],
    }
    return Plot(
        name="dtfm-fig6",
        title=f"Iteration time, {JOBS[0].layers} layers, batch {JOBS[0].batch} (as Fig. 6)",
        x_label="case",
        y_label="s",
        series=tuple(Series(label=label, x=x, y=tuple(y)) for label, y in series.items()),
        kind="bars",
    )


EXPERIMENTS = (
    Experiment(name="dtfm-cost", title="Fig. 5: communication cost of placements", run=costs),
    Experiment(
        name="dtfm-iteration", title="Figs. 4, 6: simulated iteration time in five cases", run=iterations
    ),
)
