"""Another layout, or another placement, that is worth more than it costs: for a run that measured its times.

A run with a placement (`cell.devices`) keeps its stages and pipelines; its GPUs change places.
"""

from dataclasses import replace
from typing import Any

from engine.job.adapt.layouts import MOST_SEARCHED, MOST_TIMED, Conditions, FoundLayout, better_layout, timed
from engine.job.adapt.links import move_s
from engine.job.adapt.placements import Estimate, Grid, placements, present
from engine.job.launch import LaunchSpec
from engine.job.recovery.cutting import Ranks, cell_changes, passes_of
from engine.schedule.registry import SEARCHING


def better(
    spec: LaunchSpec, conditions: Conditions, *, than_s: float, steps: int, reserve: Ranks = ()
) -> FoundLayout | None:
    """The layout or placement that ends `steps` iterations first; each takes less than `than_s` seconds.

    Layouts lead all pipelines through the same data centres, and may take GPUs in `reserve`. A run whose
    pipelines differ gets none of them.
    """
    faster = None if spec.job.is_mixed else better_layout(spec, conditions, than_s=than_s, reserve=reserve)
    if spec.job.cell.devices is None:
        return faster
    placed = better_placement(spec, conditions, than_s=than_s, steps=steps)
    each = [layout for layout in (faster, placed) if layout is not None]
    return min(each, key=lambda layout: _total_s(layout, steps), default=None)


def better_placement(
    spec: LaunchSpec, conditions: Conditions, *, than_s: float, steps: int
) -> FoundLayout | None:
    """The placement on the ranks of `spec` that ends `steps` iterations first, the move of states counted.

    None where no other one takes less than `than_s` seconds an iteration. The most promising ones
    (engine.job.adapt.placements) are simulated with the job's policy on the measured times.
    """
    job = spec.job
    grids = placements(spec, spec.ranks, job.cell.pipelines, conditions)
    name = Estimate(job, job.cell.pipelines, conditions).name
    now = name(present(spec))
    others = [grid for grid in grids if name(grid) != now]
    most = MOST_SEARCHED if job.pipeline_strategy.policy in SEARCHING else MOST_TIMED
    each = [layout for grid in others[:most] for layout in timed_placements(spec, grid, conditions)]
    faster = [one for one in each if one.iteration_s < than_s and one.move_s < float("inf")]
    return min(faster, key=lambda layout: _total_s(layout, steps), default=None)


def timed_placements(spec: LaunchSpec, grid: Grid, conditions: Conditions) -> list[FoundLayout]:
    """A placement with a schedule, for each way to pass its microbatches through; empty where it has none."""
    job, ranks = spec.job, ranks_of(grid)
    between = conditions.between(job)
    total = job.cell.pipelines * job.cell.microbatches_of_step // len(grid)
    layouts = [
        timed(spec, ranks, _changes_of(spec, grid, passes), conditions) for passes in passes_of(job, total)
    ]
    move = move_s(spec, ranks, between)
    return [replace(one, move_s=move) for one in layouts if one is not None]


def _changes_of(spec: LaunchSpec, grid: Grid, passes: tuple[int, int]) -> dict[str, Any]:
    """Changes to the job for a placement: a rank is the device that it was."""
    devices = _devices_of(spec)
    pipelines = [[devices[a.rank] for a in pipeline] for pipeline in grid]
    return {
        "cell.dc_of_stage": None,
        "cell.devices": {"pipelines": pipelines},
        **cell_changes(spec.job, stages=len(grid[0]), pipelines=len(grid), passes=passes, moves=True),
    }


def ranks_of(grid: Grid) -> Ranks:
    """The ranks of a placement, each with its pipeline and stage there."""
    rows = [replace(a, pipeline=p, stage=s) for p, of in enumerate(grid) for s, a in enumerate(of)]
    return tuple(sorted(rows, key=lambda a: a.rank))


def _devices_of(spec: LaunchSpec) -> dict[int, int]:
    """The device of each rank, as `cell.devices` numbers them."""
    job = spec.job
    assert job.cell.devices is not None
    return {a.rank: job.cell.devices.pipelines[a.pipeline][a.stage] for a in spec.ranks}


def _total_s(layout: FoundLayout, steps: int) -> float:
    return steps * layout.iteration_s + layout.move_s
