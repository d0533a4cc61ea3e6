"""The layout with which a run continues if some of its nodes do not return: a pure function.

The global batch stays, so each pipeline that is left does more microbatches. Fewer pipelines with the stages
as they are come first: what a stage's replica holds in memory is then still of use, and no GPU holds more of
the model than before. Fewer stages, each with more layers, only where the job says that a GPU can hold them.

A run with a placement (DT-FM) gets another one, on the GPUs that are left.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.job.adapt.better import timed_placements
from engine.job.adapt.layouts import Conditions
from engine.job.adapt.placements import Grid, placements
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.planned import pinned, schedule_of
from engine.job.predict import predict
from engine.job.recovery.cutting import (
    Ranks,
    assigned,
    cell_changes,
    cut_document,
    leads,
    passes_of,
    peak_in_flight,
)
from engine.job.recovery.layout import Layout
from engine.schedule.registry import SEARCHING

MOST_PLACED = 4  # placements of which the schedule is made and timed
MOST_PLACED_BY_SEARCH = 2  # the same where the policy searches


def smaller(spec: LaunchSpec, left: set[int], *, done: int = 0) -> Layout | Infeasible:
    """The fastest layout of the present one, `spec`, on the ranks that are `left`.

    As many stages as now wherever a pipeline of them fits, else the most that do. The first rank keeps its
    place, as it reports for all; where it is lost itself, the layout is one for another launch.
    Infeasible, with the reason, where the GPUs cannot hold the model.

    done : steps of the run so far. What is left decides whether a faster placement is worth the transfer of
        states.
    """
    here = [a for a in spec.ranks if a.rank in left]
    if spec.job.cell.devices is not None and (placed := _placed_again(spec, here, done)) is not None:
        return placed
    present = peak_in_flight(spec.job, schedule_of(spec.job))
    reason = _too_few(spec, here)
    for stages in _stages(spec.job):
        layouts: list[tuple[float, Layout]] = []
        for changes, ranks in _cuts(spec, here, stages):
            try:
                job = pinned(parse(TrainJob, cut_document(spec.job, changes)))
                if peak_in_flight(job, schedule_of(job)) <= present:
                    layouts.append((predict(job).iteration_s, Layout(job=job, ranks=ranks)))
            except InputError as error:  # no link, no schedule within the limits, too few layers for chunks
                reason = f"{stages} stages: {error}"
        if layouts:
            return min(layouts, key=lambda row: row[0])[1]
    return Infeasible(reason=reason)


def _stages(job: TrainJob) -> Iterator[int]:
    """Numbers of stages to try, the present one first; fewer only as far as a GPU can hold their layers."""
    yield job.cell.stages
    assert job.failures.recovery is not None
    most = job.failures.recovery.layers_per_gpu or 0
    if not job.is_mixed:
        yield from (s for s in range(job.cell.stages - 1, 0, -1) if -(-job.model.layers // s) <= most)


def _too_few(spec: LaunchSpec, here: Sequence[RankAssignment]) -> str:
    job = spec.job
    layers = max(map(len, job.layers_of_stage))
    most = max(layers, (job.failures.recovery.layers_per_gpu or 0) if job.failures.recovery else 0)
    return (
        f"{len(here)} GPUs are left ({_by_name(here)}), which cannot hold a pipeline of {job.model.layers} "
        f"layers with at most {most} on a GPU (failures.recovery.layers_per_gpu)"
    )


def _by_name(here: Sequence[RankAssignment]) -> str:
    count = Counter(a.dc_name for a in here)
    return ", ".join(f"{name} {count[name]}" for name in sorted(count)) or "none"


def _cuts(
    spec: LaunchSpec, here: Sequence[RankAssignment], stages: int
) -> Iterator[tuple[dict[str, Any], Ranks]]:
    """For the most pipelines that fit and divide the global batch: changes to the job, and the ranks."""
    job = spec.job
    total = job.cell.pipelines * job.cell.microbatches_of_step
    for pipelines in range(min(job.cell.pipelines, len(here) // stages), 0, -1):
        if total % pipelines:
            continue
        placed = _placed(spec, here, stages, pipelines)
        if placed is None:
            continue
        where, ranks = placed
        for passes in passes_of(job, total // pipelines):
            moves = tuple(where["cell.dc_of_stage"]) != job.dcs
            changes = cell_changes(job, stages=stages, pipelines=pipelines, passes=passes, moves=moves)
            yield {**where, **changes}, ranks
        return


def _placed(
    spec: LaunchSpec, here: Sequence[RankAssignment], stages: int, pipelines: int
) -> tuple[dict[str, Any], Ranks] | None:
    """All pipelines through the same data centres; None where their GPUs do not suffice."""
    gpus = Counter(a.dc for a in here)
    dcs = _dc_of_stage(spec.job, gpus, stages, pipelines, leads=leads(spec, here))
    ranks = None if dcs is None else assigned(spec, here, dcs, pipelines)
    if dcs is None or ranks is None:
        return None
    return {"cell.dc_of_stage": list(dcs), "cell.devices": None}, ranks


def _dc_of_stage(
    job: TrainJob, gpus: Counter[int], stages: int, pipelines: int, *, leads: bool
) -> tuple[int, ...] | None:
    """The data centres of so many stages: as now, or each with as many as it had and has GPUs for."""
    needs = Counter(job.dcs)
    if stages == job.cell.stages and all(needs[dc] * pipelines <= gpus[dc] for dc in needs):
        return job.dcs
    first = job.dcs[0]  # where the first rank is
    room = {dc: gpus[dc] // pipelines for dc in dict.fromkeys(job.dcs)}  # in the order of the stages
    hosts = {dc: min(job.dcs.count(dc), room[dc]) for dc in room}
    while sum(hosts.values()) > stages:
        most = max(room, key=lambda dc: hosts[dc] - (leads and dc == first))
        hosts[most] -= 1
    while sum(hosts.values()) < min(stages, sum(room.values())):
        hosts[next(dc for dc in room if hosts[dc] < room[dc])] += 1
    dcs = tuple(dc for dc, count in hosts.items() for _ in range(count))
    return dcs if len(dcs) == stages and (not leads or dcs[0] == first) else None


def _placed_again(spec: LaunchSpec, here: Sequence[RankAssignment], done: int) -> Layout | None:
    """The placement of the most pipelines that fit which ends the run first; None where there is none.

    Counted with the transfer of states to GPUs that get another stage, and by the links as measured so far.
    """
    job, conditions = spec.job, Conditions.of_rows(spec.conditions)
    total = job.cell.pipelines * job.cell.microbatches_of_step
    most = MOST_PLACED_BY_SEARCH if job.pipeline_strategy.policy in SEARCHING else MOST_PLACED
    for pipelines in range(min(job.cell.pipelines, len(here) // job.cell.stages), 0, -1):
        if total % pipelines:
            continue
        grids = placements(spec, here, pipelines, conditions)[:most] + _whole(spec, here, pipelines)
        layouts = [one for grid in grids for one in timed_placements(spec, grid, conditions)]
        if layouts:
            steps = max(1, job.optimizer.steps - done)
            return min(layouts, key=lambda one: steps * one.iteration_s + one.move_s).layout
    return None


def _whole(spec: LaunchSpec, here: Sequence[RankAssignment], pipelines: int) -> list[Grid]:
    """The pipelines of which nothing is lost, where there are enough: no state needs to move."""
    at = {(a.pipeline, a.stage): a for a in here}
    stages = range(spec.job.cell.stages)
    grid = [
        tuple(at[p, s] for s in stages)
        for p in range(spec.job.cell.pipelines)
        if all((p, s) in at for s in stages)
    ]
    leads_first = not leads(spec, here) or (grid and grid[0][0].rank == spec.first_rank)
    return [tuple(grid[:pipelines])] if len(grid) >= pipelines and leads_first else []
