"""Another layout for what a run measured: other stages, pipelines or data centres for the same global batch.

What was measured belongs to GPUs and to links between data centres, wherever a layout has them: a slow GPU is
as slow in another stage, and a slow link is slow for every hop that crosses it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.job.adapt.links import Pair, as_measured, hop_factors, of_pairs
from engine.job.adapt.measured import (
    LATENCY,
    LINK,
    Measured,
    Quantity,
    as_rows,
    planned,
    scenario_as_measured,
    wan_hops,
    work_ms,
)
from engine.job.all_reduce import sum_of_stage_s
from engine.job.job import TrainJob
from engine.job.launch import NOWHERE, LaunchSpec, RankAssignment
from engine.job.network import Between
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

MOST_BOUNDED = 2048  # layouts of which a bound is computed
MOST_SPLITS = 64  # of the same stages over the same data centres in the same order
MOST_TIMED = 24  # of these, the ones whose schedule is made and timed
MOST_SEARCHED = 6  # the same where the policy searches, for SEARCH_S each
GPU = "gpu"
FOR_GOOD = 1e11  # in place of a Unix time: a figure that nobody forgets
Name = tuple[Any, ...]  # of a figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a run measured, apart from where its layout has it. A figure has a name: ("gpu", rank), or
    ("link", a, b) and ("latency", a, b) of two data centres, the lower first.

    at : by name, Unix time at which it was measured last; one that is not in it counts for good.
    of_gpu : by rank, how many times as long its ops take as planned; 1 for those that are not in it.
    transfer : by pair of data centres, how many times as long a message holds their link as planned.
    latency_ms : by pair of data centres, one way.
    """

    of_gpu: Mapping[int, float]
    transfer: Mapping[Pair, float]
    latency_ms: Mapping[Pair, float]
    at: Mapping[Name, float] = field(default_factory=dict)

    @property
    def figures(self) -> dict[Name, float]:
        """All of them by name."""
        return {
            **{(GPU, rank): factor for rank, factor in sorted(self.of_gpu.items())},
            **{(LINK, *sorted(pair)): factor for pair, factor in self.transfer.items()},
            **{(LATENCY, *sorted(pair)): ms for pair, ms in self.latency_ms.items()},
        }

    @classmethod
    def of_figures(cls, figures: Mapping[Name, float], at: Mapping[Name, float]) -> "Conditions":
        """The inverse of `figures`."""
        return cls(
            of_gpu={name[1]: figure for name, figure in figures.items() if name[0] == GPU},
            transfer={frozenset(name[1:]): figure for name, figure in figures.items() if name[0] == LINK},
            latency_ms={
                frozenset(name[1:]): figure for name, figure in figures.items() if name[0] == LATENCY
            },
            at={name: time for name, time in at.items() if name in figures},
        )

    def since(self, time: float) -> "Conditions":
        """What of it was measured after a Unix time."""
        figures = {n: figure for n, figure in self.figures.items() if self.at.get(n, FOR_GOOD) > time}
        return Conditions.of_figures(figures, self.at)

    def between(self, job: TrainJob) -> Between:
        """The networks of the job's data centres as measured."""
        return as_measured(job, self.transfer, self.latency_ms)

    def sums_s(self, job: TrainJob) -> tuple[float, ...]:
        """Seconds in which the replicas of each stage sum their gradients over the measured links."""
        return tuple(sum_of_stage_s(job, stage, self.between(job)) for stage in range(job.cell.stages))

    def as_rows(self) -> tuple[tuple[Any, ...], ...]:
        """As JSON has it: rows of a name's parts, the figure, and when it was measured."""
        return tuple(
            (*name, round(figure, 6), round(self.at.get(name, FOR_GOOD), 3))
            for name, figure in self.figures.items()
        )

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]]) -> "Conditions":
        """The inverse of `as_rows`."""
        figures = {tuple(name): float(figure) for *name, figure, _ in rows}
        return cls.of_figures(figures, {tuple(name): float(at) for *name, _, at in rows if at < FOR_GOOD})


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayout:
    """A layout, and what an iteration takes with it under the measured conditions, in seconds.

    move_s : until GPUs that get another stage have its state, beyond a checkpoint and a start.
    """

    layout: Layout
    iteration_s: float
    move_s: float = 0.0


def lapses_of(spec: LaunchSpec, schedule: Schedule) -> list[float]:
    """Unix times from which measurements of GPUs and links that `spec` does not use count no longer."""
    job = spec.job
    assert job.failures.adapt is not None
    forget_s = job.failures.adapt.forget_s
    links = [ends for kind, *ends in planned(job.scenario, schedule) if kind == LINK]
    pairs = {frozenset((job.dcs[low], job.dcs[high])) for low, high in links}
    ranks = {a.rank for a in spec.ranks}
    return sorted(
        {
            at + forget_s
            for name, at in Conditions.of_rows(spec.conditions).at.items()
            if (name[1] not in ranks if name[0] == GPU else frozenset(name[1:]) not in pairs)
        }
    )


def conditions_of(
    spec: LaunchSpec, schedule: Schedule, measured: Measured, by_rank: Mapping[int, Measured], *, now: float
) -> Conditions:
    """What was measured until `now` (Unix time) with `schedule` in the present layout of `spec`, and what was
    known before.

    A GPU or a link that this layout does not use is as an earlier one measured it: else a run would go back
    at once to a link that it has left. After `forget_s` it counts as in the document: it may have recovered.

    Parameters
    ----------
    measured : of the whole run, milliseconds by quantity.  by_rank : what each rank measured itself.
    """
    job = spec.job
    assert job.failures.adapt is not None
    counted = planned(job.scenario, schedule)
    transfer: dict[Pair, float] = {}
    latency_ms: dict[Pair, float] = {}
    if job.is_mixed:
        transfer, latency_ms = of_pairs(spec, by_rank)
    for low, high in () if job.is_mixed else wan_hops(job.scenario).values():
        pair = frozenset((job.dcs[low], job.dcs[high]))
        if (name := (LINK, low, high)) in measured and name in counted:
            transfer[pair] = max(transfer.get(pair, 0.0), measured[name] / counted[name])
        if (name := (LATENCY, low, high)) in measured:
            latency_ms[pair] = max(latency_ms.get(pair, 0.0), measured[name])
    factors = {a.rank: _slowness(by_rank.get(a.rank, {}), counted) for a in spec.ranks}
    present = Conditions(of_gpu=factors, transfer=transfer, latency_ms=latency_ms).figures
    earlier = Conditions.of_rows(spec.conditions).since(now - job.failures.adapt.forget_s)
    return Conditions.of_figures(
        {**earlier.figures, **present}, {**earlier.at, **dict.fromkeys(present, now)}
    )


def better_layout(
    spec: LaunchSpec, conditions: Conditions, *, than_s: float, reserve: Ranks = ()
) -> FoundLayout | None:
    """The fastest layout on the GPUs of `spec` and those in reserve that takes less than `than_s` seconds an
    iteration, or None.

    No GPU holds more of the model, nor more activations, than the largest stage does now, but for layers
    where the job says that it can (`failures.recovery.layers_per_gpu`). The first rank stays the first stage
    of the first pipeline. Layouts are bounded by their slowest GPU and link; the most promising are timed.
    """
    spec = replace(spec, ranks=(*spec.ranks, *reserve))
    searches = spec.job.pipeline_strategy.policy in SEARCHING
    bounded = sorted(islice(_bounded(spec, conditions), MOST_BOUNDED), key=lambda each: each.bound_s)
    best: FoundLayout | None = None
    for cell in bounded[: MOST_SEARCHED if searches else MOST_TIMED]:
        limit_s = than_s if best is None else best.iteration_s
        if cell.bound_s >= limit_s:
            break
        for passes in passes_of(spec.job, _batch(spec.job) // cell.pipelines):
            timed = _timed(spec, cell, passes, conditions)
            if timed is not None and timed.iteration_s < limit_s:
                best, limit_s = timed, timed.iteration_s
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A layout to try: the data centre of each stage. bound_s : an iteration takes no less."""

    dcs: tuple[int, ...]
    pipelines: int
    bound_s: float


def _batch(job: TrainJob) -> int:
    """Microbatches of all pipelines in one step."""
    return job.cell.pipelines * job.cell.microbatches_of_step


def _bounded(spec: LaunchSpec, conditions: Conditions) -> Iterator[_Cell]:
    """All layouts but the present one on its GPUs, with a bound each."""
    job = spec.job
    present = {a.rank for a in spec.ranks if a.stage != NOWHERE}
    for stages in _stage_counts(job):
        for pipelines in range(len(spec.ranks) // stages, 0, -1):
            if _batch(job) % pipelines:
                continue
            for dcs in _routes(spec, stages, pipelines):
                same = (dcs, pipelines) == (job.dcs, job.cell.pipelines)
                if not same or {a.rank for a in _least_slow(spec, conditions, dcs, pipelines)} != present:
                    bound_s = _bound_s(spec, conditions, dcs, pipelines)
                    yield _Cell(dcs=dcs, pipelines=pipelines, bound_s=bound_s)


def _stage_counts(job: TrainJob) -> Iterator[int]:
    """Numbers of stages whose layers fit a GPU; the present one first."""
    layers = max(map(len, job.layers_of_stage))
    if job.failures.recovery is not None:
        layers = max(layers, job.failures.recovery.layers_per_gpu or 0)
    counts = [s for s in range(1, job.model.layers + 1) if -(-job.model.layers // s) <= layers]
    yield from sorted(counts, key=lambda count: abs(count - job.cell.stages))


def _routes(spec: LaunchSpec, stages: int, pipelines: int) -> Iterator[tuple[int, ...]]:
    """Data centres of so many stages: each way through joined ones that begins where the first rank is."""
    job = spec.job
    room = {dc: count // pipelines for dc, count in Counter(a.dc for a in spec.ranks).items()}
    first = job.dcs[0]
    others = [dc for dc in room if dc != first and room[dc]]
    for count in range(len(others) + 1):
        for rest in permutations(others, count):
            way = (first, *rest)
            if all(job.between(a, b) is not None for a, b in pairwise(way)):
                splits = _splits([room[dc] for dc in way], stages)
                for split in islice(splits, MOST_SPLITS):
                    yield tuple(dc for dc, of_dc in zip(way, split, strict=True) for _ in range(of_dc))


def _splits(room: Sequence[int], stages: int) -> Iterator[tuple[int, ...]]:
    """How many stages each data centre takes, one at least and as many as it has room for: every split, those
    that fill the first data centres first."""
    if len(room) == 1:
        if 1 <= stages <= room[0]:
            yield (stages,)
        return
    for first in range(min(room[0], stages - len(room) + 1), 0, -1):
        for rest in _splits(room[1:], stages - first):
            yield (first, *rest)


def _least_slow(
    spec: LaunchSpec, conditions: Conditions, dcs: Sequence[int], pipelines: int
) -> list[RankAssignment]:
    """As many GPUs of each data centre as a layout needs: that of the first rank, and those that are least
    slow; those that are in use before those in reserve."""
    ranks = sorted(
        spec.ranks,
        key=lambda a: (
            a.rank != spec.first_rank,
            round(conditions.of_gpu.get(a.rank, 1.0), 1),
            a.stage == NOWHERE,
            a.rank,
        ),
    )
    return [
        a for dc, count in Counter(dcs).items() for a in [a for a in ranks if a.dc == dc][: count * pipelines]
    ]


def _bound_s(spec: LaunchSpec, conditions: Conditions, dcs: Sequence[int], pipelines: int) -> float:
    """Seconds that an iteration takes at least: the work of its busiest GPU, the traffic of a link."""
    job = spec.job
    of_stage_ms = [float(layers.sum()) for layers in np.array_split(_of_layers_ms(job), len(dcs))]
    busiest = [0.0]
    for dc in dict.fromkeys(dcs):
        own_ms = [ms for ms, at in zip(of_stage_ms, dcs, strict=True) if at == dc]
        slow = [
            conditions.of_gpu.get(a.rank, 1.0)
            for a in _least_slow(spec, conditions, dcs, pipelines)
            if a.dc == dc
        ]
        # Each of them takes one of these stages.
        busiest += [max(own_ms) * min(slow), min(own_ms) * max(slow)]
    sent = [
        link.transfer_ms(job.wan_bytes) * conditions.transfer.get(frozenset(hop), 1.0)
        for hop in pairwise(dcs)
        if (link := job.between(*hop)) is not None
    ]
    return _batch(job) // pipelines * max([*busiest, *sent]) / 1e3


def _of_layers_ms(job: TrainJob) -> NDArray[np.float64]:
    """What a microbatch takes in each layer, forward, recomputed and backward, as planned."""
    layers = np.array([len(layers) for layers in job.layers_of_stage])
    return np.repeat(work_ms(job.scenario) / layers, layers)


def _timed(
    spec: LaunchSpec, cell: _Cell, passes: tuple[int, int], conditions: Conditions
) -> FoundLayout | None:
    """The layout with a schedule for the measured conditions; None if it has none, or too much in memory."""
    here = _least_slow(spec, conditions, cell.dcs, cell.pipelines)
    ranks = assigned(spec, here, cell.dcs, cell.pipelines)
    if ranks is None:
        return None
    changes = {
        "cell.dc_of_stage": list(cell.dcs),
        "cell.devices": None,
        "datacenters": _with_reserve(spec),
        **cell_changes(
            spec.job,
            stages=len(cell.dcs),
            pipelines=cell.pipelines,
            passes=passes,
            moves=cell.dcs != spec.job.dcs,
        ),
    }
    return timed(spec, ranks, changes, conditions)


def timed(
    spec: LaunchSpec, ranks: Ranks, changes: dict[str, Any], conditions: Conditions
) -> FoundLayout | None:
    """The job with `changes`, on `ranks`, with a schedule for the measured conditions.

    None if it is no job, has no schedule, or holds more activations than the present layout does.
    """
    try:
        job = parse(TrainJob, cut_document(spec.job, changes))
        scenario = scenario_as_measured(job, job.scenario.sharing, _factors(job, ranks, conditions))
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
    allreduce_s = conditions.sums_s(job)
    iteration_s = predict(job, schedule=schedule, scenario=scenario, allreduce_s=allreduce_s).iteration_s
    layout = Layout(job=job, ranks=ranks, times=as_rows(times), conditions=conditions.as_rows())
    return FoundLayout(layout=layout, iteration_s=iteration_s)


def _with_reserve(spec: LaunchSpec) -> list[dict[str, Any]]:
    """The data centres of the job, with the GPUs that the run holds where the document lists fewer."""
    count = Counter(a.dc for a in spec.ranks)
    listed = spec.job.to_document()["datacenters"]
    return [{**dc, "gpus": max(dc["gpus"], count[i])} for i, dc in enumerate(listed)]


def _activations(job: TrainJob, schedule: Schedule) -> float:
    """Most activations that a stage holds at once, counted in microbatches and layers."""
    return peak_in_flight(job, schedule) * max(map(len, job.layers_of_stage))


def _factors(job: TrainJob, ranks: Ranks, conditions: Conditions) -> dict[Quantity, float]:
    """How many times as long as its document says each op and transfer of a layout takes."""
    factors: dict[Quantity, float] = {}
    for a in ranks:
        for kind in "FRBW":
            slow = conditions.of_gpu.get(a.rank, 1.0)
            factors[kind, a.stage] = max(factors.get((kind, a.stage), 0.0), slow)
    factors.update(hop_factors(job, conditions.between(job)))
    return factors


def _slowness(measured: Measured, counted: Measured) -> float:
    """How many times as long as planned a GPU's ops take together; 1 where it measured none."""
    ops = [name for name in measured if len(name) == 2 and name in counted]
    total = sum(counted[name] for name in ops)
    return sum(measured[name] for name in ops) / total if total else 1.0
