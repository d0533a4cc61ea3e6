"""Another layout for what a run measured: other stages, pipelines or data centres for the same global batch.

What was measured belongs to GPUs and to links between data centres, wherever a layout has them: a slow GPU is
as slow in another stage, and a slow link is slow for every hop that crosses it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.job.adapt.measured import (
    LATENCY,
    LINK,
    Measured,
    Quantity,
    as_rows,
    planned,
    scenario_as_measured,
    wan_hops,
)
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.planned import schedule_of
from engine.job.predict import predict
from engine.job.recovery.cutting import (
    SEARCH_S,
    Ranks,
    assigned,
    cell_changes,
    cut_document,
    passes_of,
    peak_in_flight,
)
from engine.job.recovery.layout import Layout
from engine.schedule import Schedule, Search, build
from engine.schedule.registry import SEARCHING
from engine.schedule.timing import DeadlockError

MOST_BOUNDED = 4096  # layouts of which a bound is computed
MOST_TIMED = 24  # of these, the ones whose schedule is made and timed
MOST_SEARCHED = 6  # the same where the policy searches, for SEARCH_S each
Pair = frozenset[int]  # of two data centres, by index


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a run measured, apart from where its layout has it.

    of_gpu : by rank, how many times as long its ops take as planned; 1 for those that are not in it.
    transfer : by pair of data centres, how many times as long a message holds their link as planned.
    latency_ms : by pair of data centres, one way.
    """

    of_gpu: Mapping[int, float]
    transfer: Mapping[Pair, float]
    latency_ms: Mapping[Pair, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayout:
    """A layout, and what an iteration takes with it under the measured conditions, in seconds."""

    layout: Layout
    iteration_s: float


def conditions_of(
    spec: LaunchSpec, schedule: Schedule, measured: Measured, by_rank: Mapping[int, Measured]
) -> Conditions:
    """What was measured with `schedule` in the present layout of `spec`.

    Parameters
    ----------
    measured : of the whole run, milliseconds by quantity.  by_rank : what each rank measured itself.
    """
    job = spec.job
    counted = planned(job.scenario, schedule)
    transfer: dict[Pair, float] = {}
    latency_ms: dict[Pair, float] = {}
    for low, high in wan_hops(job.scenario).values():
        pair = frozenset((job.dcs[low], job.dcs[high]))
        if (name := (LINK, low, high)) in measured and name in counted:
            transfer[pair] = max(transfer.get(pair, 0.0), measured[name] / counted[name])
        if (name := (LATENCY, low, high)) in measured:
            latency_ms[pair] = max(latency_ms.get(pair, 0.0), measured[name])
    factors = {a.rank: _slowness(by_rank.get(a.rank, {}), counted) for a in spec.ranks}
    return Conditions(of_gpu=factors, transfer=transfer, latency_ms=latency_ms)


def better_layout(spec: LaunchSpec, found: Conditions, *, than_s: float) -> FoundLayout | None:
    """The fastest layout on the ranks of `spec` that takes less than `than_s` seconds an iteration, or None.

    No GPU holds more of the model, nor more activations, than the largest stage does now, but for layers
    where the job says that it can (`failures.recovery.layers_per_gpu`). The first rank stays the first stage
    of the first pipeline. Layouts are bounded by their slowest GPU and link; the most promising are timed.
    """
    searches = spec.job.pipeline_strategy.policy in SEARCHING
    bounded = sorted(islice(_bounded(spec, found), MOST_BOUNDED), key=lambda each: each.bound_s)
    best: FoundLayout | None = None
    for cell in bounded[: MOST_SEARCHED if searches else MOST_TIMED]:
        limit_s = than_s if best is None else best.iteration_s
        if cell.bound_s >= limit_s:
            break
        for passes in passes_of(spec.job, _batch(spec.job) // cell.pipelines):
            timed = _timed(spec, cell, passes, found)
            if timed is not None and timed.iteration_s < limit_s:
                best, limit_s = timed, timed.iteration_s
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A layout to try: the data centre of each stage. bound_s : an iteration takes no less."""

    dcs: tuple[int, ...]
    pipelines: int
    ranks: Ranks
    bound_s: float


def _batch(job: TrainJob) -> int:
    """Microbatches of all pipelines in one step."""
    return job.cell.pipelines * job.cell.microbatches_of_step


def _bounded(spec: LaunchSpec, found: Conditions) -> Iterator[_Cell]:
    """All layouts but the present one, with a bound each."""
    job = spec.job
    for stages in _stage_counts(job):
        for pipelines in range(len(spec.ranks) // stages, 0, -1):
            if _batch(job) % pipelines:
                continue
            for dcs in dict.fromkeys(_routes(spec, stages, pipelines)):
                if (dcs, pipelines) == (job.dcs, job.cell.pipelines):
                    continue
                ranks = assigned(spec, _least_slow(spec, found, dcs, pipelines), dcs, pipelines)
                if ranks is not None:
                    bound_s = _bound_s(job, found, dcs, pipelines, ranks)
                    yield _Cell(dcs=dcs, pipelines=pipelines, ranks=ranks, bound_s=bound_s)


def _stage_counts(job: TrainJob) -> Iterator[int]:
    """Numbers of stages whose layers fit a GPU; the present one first."""
    layers = max(map(len, job.layers_of_stage))
    if job.failures.recovery is not None:
        layers = max(layers, job.failures.recovery.layers_per_gpu or 0)
    counts = [s for s in range(1, job.model.layers + 1) if -(-job.model.layers // s) <= layers]
    yield from sorted(counts, key=lambda count: abs(count - job.cell.stages))


def _routes(spec: LaunchSpec, stages: int, pipelines: int) -> Iterator[tuple[int, ...]]:
    """Data centres of so many stages: each way through joined ones that begins where the first rank is.

    Each takes as many stages as it has GPUs for, or all of them as evenly as they have.
    """
    job = spec.job
    room = {dc: count // pipelines for dc, count in Counter(a.dc for a in spec.ranks).items()}
    first = job.dcs[0]
    others = [dc for dc in room if dc != first and room[dc]]
    for count in range(len(others) + 1):
        for rest in permutations(others, count):
            way = (first, *rest)
            joined = all(job.between(a, b) is not None for a, b in pairwise(way))
            if joined and count < stages <= sum(room[dc] for dc in way):
                yield _filled(way, room, stages)
                yield _spread(way, room, stages)


def _filled(way: Sequence[int], room: Mapping[int, int], stages: int) -> tuple[int, ...]:
    """One after the other takes what it can; each takes one at least."""
    counts = dict.fromkeys(way, 1)
    for dc in way:
        counts[dc] += min(room[dc] - 1, stages - sum(counts.values()))
    return tuple(dc for dc in way for _ in range(counts[dc]))


def _spread(way: Sequence[int], room: Mapping[int, int], stages: int) -> tuple[int, ...]:
    """In turns, so that all have nearly as many, as far as they have room."""
    counts = dict.fromkeys(way, 1)
    while sum(counts.values()) < stages:
        counts[min((dc for dc in way if counts[dc] < room[dc]), key=lambda dc: counts[dc])] += 1
    return tuple(dc for dc in way for _ in range(counts[dc]))


def _least_slow(
    spec: LaunchSpec, found: Conditions, dcs: Sequence[int], pipelines: int
) -> list[RankAssignment]:
    """As many ranks of each data centre as a layout needs: the first rank, and those that are least slow."""
    ranks = sorted(
        spec.ranks, key=lambda a: (a.rank != spec.first_rank, round(found.of_gpu.get(a.rank, 1.0), 1), a.rank)
    )
    return [
        a for dc, count in Counter(dcs).items() for a in [a for a in ranks if a.dc == dc][: count * pipelines]
    ]


def _bound_s(job: TrainJob, found: Conditions, dcs: Sequence[int], pipelines: int, ranks: Ranks) -> float:
    """Seconds that an iteration takes at least: the work of its busiest GPU, the traffic of a link."""
    each = _batch(job) // pipelines
    cut = np.array_split(_of_layers_ms(job), len(dcs))
    work_ms = [float(layers.sum()) for layers in cut]
    busiest = max(work_ms[a.stage] * found.of_gpu.get(a.rank, 1.0) for a in ranks)
    sent = [
        link.transfer_ms(job.wan_bytes) * found.transfer.get(frozenset(hop), 1.0)
        for hop in pairwise(dcs)
        if (link := job.between(*hop)) is not None
    ]
    return each * max([busiest, *sent]) / 1e3


def _of_layers_ms(job: TrainJob) -> NDArray[np.float64]:
    """What a microbatch takes in each layer, forward, recomputed and backward, as planned."""
    scenario = job.scenario
    kinds: tuple[Literal["forward", "recompute", "backward", "weight"], ...]
    kinds = ("forward", "recompute", "backward", "weight")
    stages_ms = np.sum([scenario.per_stage(kind) for kind in kinds], axis=0)
    layers = np.array([len(layers) for layers in job.layers_of_stage])
    return np.repeat(stages_ms / layers, layers)


def _timed(spec: LaunchSpec, cell: _Cell, passes: tuple[int, int], found: Conditions) -> FoundLayout | None:
    """The layout with a schedule for the measured conditions; None if it has none, or too much in memory."""
    stages = len(cell.dcs)
    changes = {
        "cell.dc_of_stage": list(cell.dcs),
        "cell.devices": None,
        **cell_changes(spec.job, stages=stages, pipelines=cell.pipelines, passes=passes),
    }
    try:
        job = parse(TrainJob, cut_document(spec.job, changes))
        scenario = scenario_as_measured(job, job.scenario.sharing, _factors(job, cell.ranks, found))
        one_pass = scenario.model_copy(update={"microbatches": job.cell.microbatches})
        built = build(one_pass, Search(seconds=SEARCH_S, seed=one_pass.seed))
        if isinstance(built, Infeasible):
            return None
        job = job.with_fields("strategy", schedule=str(built.schedule))
        schedule = schedule_of(job)
    except (InputError, DeadlockError):  # no link, no schedule within the limits, too few layers for chunks
        return None
    if _activations(job, schedule) > _activations(spec.job, schedule_of(spec.job)):
        return None
    times = planned(scenario, schedule)
    iteration_s = predict(job, schedule=schedule, scenario=scenario).iteration_s
    layout = Layout(job=job, ranks=cell.ranks, times=as_rows(times))
    return FoundLayout(layout=layout, iteration_s=iteration_s)


def _activations(job: TrainJob, schedule: Schedule) -> float:
    """Most activations that a stage holds at once, counted in microbatches and layers."""
    return peak_in_flight(job, schedule) * max(map(len, job.layers_of_stage))


def _factors(job: TrainJob, ranks: Ranks, found: Conditions) -> dict[Quantity, float]:
    """How many times as long as its document says each op and transfer of a layout takes."""
    factors: dict[Quantity, float] = {}
    for a in ranks:
        for kind in "FRBW":
            slow = found.of_gpu.get(a.rank, 1.0)
            factors[kind, a.stage] = max(factors.get((kind, a.stage), 0.0), slow)
    for hop, (low, high) in wan_hops(job.scenario).items():
        pair = frozenset((job.dcs[low], job.dcs[high]))
        factors[LINK, low, high] = found.transfer.get(pair, 1.0)
        latency = float(job.scenario.hop_latency[hop])
        if pair in found.latency_ms and latency > 0:
            factors[LATENCY, low, high] = found.latency_ms[pair] / latency
    return factors


def _slowness(measured: Measured, counted: Measured) -> float:
    """How many times as long as planned a GPU's ops take together; 1 where it measured none."""
    ops = [name for name in measured if len(name) == 2 and name in counted]
    total = sum(counted[name] for name in ops)
    return sum(measured[name] for name in ops) / total if total else 1.0
