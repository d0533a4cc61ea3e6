"""Another cut of a running job: how many stages and pipelines, where they are, and which GPU takes which.

The global batch stays, so that losses stay those of the job except for rounding.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.job.changed import changed
from engine.job.job import TrainJob
from engine.job.launch import NOWHERE, LaunchSpec, RankAssignment
from engine.schedule import Schedule
from engine.schedule.scenario import LIMITS
from engine.simulate import time_schedule

SEARCH_S = 1.0  # for policies that search

Ranks = tuple[RankAssignment, ...]


def assigned(
    spec: LaunchSpec, here: Sequence[RankAssignment], dcs: Sequence[int], pipelines: int
) -> Ranks | None:
    """The ranks of so many pipelines through the data centres `dcs` of their stages, out of those `here`.

    None where their GPUs do not suffice.
    """
    free = list(here)
    taken: list[RankAssignment] = []
    for stage, dc in enumerate(dcs):
        near = [a for a in free if a.dc == dc]
        best = candidates(spec, near, stage, keeps=len(dcs) == spec.job.cell.stages)[:pipelines]
        if len(best) < pipelines:
            return None
        free = [a for a in free if a not in best]
        taken += [replace(a, pipeline=p, stage=stage) for p, a in enumerate(best)]
    return tuple(sorted(taken, key=lambda a: a.rank))


def candidates(
    spec: LaunchSpec, near: Sequence[RankAssignment], stage: int, *, keeps: bool
) -> list[RankAssignment]:
    """Who takes a stage, the best first: who has it (its memory is of use), then GPUs in reserve, then of
    stages with many.

    The first rank takes the first stage of the first pipeline, and no other.
    """
    many = Counter(a.stage for a in near)
    fit = [a for a in near if stage == 0 or a.rank != spec.first_rank]
    return sorted(
        fit,
        key=lambda a: (
            a.rank != spec.first_rank,
            not keeps or a.stage != stage,
            a.stage != NOWHERE,
            -many[a.stage],
            a.rank,
        ),
    )


def leads(spec: LaunchSpec, here: Sequence[RankAssignment]) -> bool:
    """Whether the first rank is there, so that its data centre and its pipeline stay the first ones."""
    return any(a.rank == spec.first_rank for a in here)


def cell_changes(
    job: TrainJob, *, stages: int, pipelines: int, passes: tuple[int, int], moves: bool
) -> dict[str, Any]:
    """Changes to the job for so many stages and pipelines.

    passes : microbatches, and passes in a step.
    moves : whether a stage may get a GPU of another data centre than now.
    """
    whole_cells = pipelines % job.cell.cell_pipelines == 0
    cells = pipelines // job.cell.cell_pipelines if whole_cells else 1
    microbatches, accumulation = passes
    return {
        "cell.stages": stages,
        "cell.pipelines": pipelines,
        "cell.cells": cells,
        "cell.microbatches": microbatches,
        "cell.accumulation": accumulation,
        **_scaled(job, stages),
        **_limited(job, stages, moves=moves),
        **_prefilling(job, cells),
    }


def passes_of(job: TrainJob, total: int) -> list[tuple[int, int]]:
    """(microbatches, accumulation) for `total` of a pipeline and step: in one pass, or in ones as now."""
    as_now = max(m for m in range(1, job.cell.microbatches + 1) if total % m == 0)
    return list(dict.fromkeys([(total, 1), (as_now, total // as_now)]))


def _prefilling(job: TrainJob, cells: int) -> dict[str, Any]:
    """Nothing is prefilled any more where the cells that are left cannot share the served model's layers."""
    return {"prefill": None} if job.prefill and cells % job.prefill.pp_degree else {}


def _scaled(job: TrainJob, stages: int) -> dict[str, Any]:
    """Per-stage figures for another number of stages: times by layers."""
    if stages == job.cell.stages:
        return {}
    before = np.array([len(layers) for layers in job.layers_of_stage])
    cut = np.array_split(np.arange(job.model.layers), stages)  # as layers_of_stage: the first ones take more
    scaled: dict[str, Any] = {"cell.layers_per_stage": None}
    if job.device.times_ms is not None:
        of_layer = {
            kind: np.repeat(np.broadcast_to(ms, job.cell.stages) / before, before)
            for kind, ms in job.device.times_ms
        }
        scaled["device.times_ms"] = {
            kind: [float(ms[layers].sum()) for layers in cut] for kind, ms in of_layer.items()
        }
    return scaled


def _limited(job: TrainJob, stages: int, *, moves: bool) -> dict[str, Any]:
    """Limits for another number of stages, or other data centres, by the layers that are held.

    Of limits by stage the least room counts then: any GPU may take any of the new stages.
    """
    now = np.array([len(layers) for layers in job.layers_of_stage])
    cuts = stages != job.cell.stages
    most = -(-job.model.layers // stages) if cuts else int(now.max())
    limited = {}
    for name in LIMITS:
        limit = getattr(job.pipeline_strategy, name)
        if isinstance(limit, list) and (cuts or moves):
            limited[f"strategy.{name}"] = max(1, int(np.min(limit * now)) // most)
        elif limit is not None and cuts:
            limited[f"strategy.{name}"] = max(1, limit * int(now.max()) // most)
    return limited


def cut_document(job: TrainJob, changes: dict[str, Any]) -> dict[str, Any]:
    """The job with `changes`; what a search found for its present shape does not hold any more."""
    limit = min(job.pipeline_strategy.time_limit_s, SEARCH_S)
    own = {"strategy.schedule": None, "strategy.time_limit_s": limit}
    return changed(job.to_document(), {**own, **changes})


def peak_in_flight(job: TrainJob, schedule: Schedule) -> float:
    """Most microbatches of which a stage holds activations at once."""
    return float(np.max(time_schedule(job.scenario, schedule).peak_in_flight()))
