"""From what a run measured to a new plan: the loop from plan to run and back (product.md)."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from django.contrib import messages
from django.http import HttpRequest

from engine.inputs import parse
from engine.job.all_reduce import stage_parameters
from engine.job.codes import TRAINING
from engine.job.job import TrainJob
from engine.job.shape import Shape, shape_of
from webapp.accounts.permissions import visible_or_404
from webapp.inventory.models import WanLink
from webapp.inventory.selectors import pools
from webapp.jobs.models import Run
from webapp.live.models import IterationStat, SpanBatch
from webapp.planning.models import Plan

# Iterations that are looked at: the latest that every rank told of; fewer where a run has very many ranks.
ITERATIONS, MOST_BATCHES = 10, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """Milliseconds of one stage's ops; a backward that is split counts with its weight gradients."""

    forward_ms: float
    backward_ms: float
    recompute_ms: float

    @property
    def total_ms(self) -> float:
        return self.forward_ms + self.backward_ms + self.recompute_ms


OP_TIMES = ("forward_ms", "backward_ms", "recompute_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStage:
    """Medians over the replicas of a stage, next to the planned times of its run."""

    name: str
    measured: OpTimes
    planned: OpTimes

    @property
    def off_by_percent(self) -> float:
        """By how much longer than planned the ops together took that ran: a last stage need not recompute."""
        ran = [name for name in OP_TIMES if getattr(self.measured, name)]
        planned_ms = sum(getattr(self.planned, name) for name in ran)
        return 100 * (sum(getattr(self.measured, name) for name in ran) / planned_ms - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """The rate of a node pair while it sent, next to the cap in use; None: not in the inventory."""

    name: str
    gbps: float
    link: WanLink | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What `run` measured in `iterations` iterations, stage by stage and link by link."""

    run: Run
    iterations: int
    stages: list[MeasuredStage]
    links: list[MeasuredLink]

    @property
    def slowest(self) -> MeasuredStage:
        """The stage that sets the pace: a plan counts with one time for all."""
        return max(self.stages, key=lambda stage: stage.measured.total_ms)


def measured(run: Run) -> MeasuredRun | None:
    """What `run` measured lately; None before its first whole iteration, or when its spans are gone.

    None too of workers that swap, which have no stages.
    """
    if run.job.swaps:
        return None
    shape = shape_of(run.job.document)
    most = max(1, min(ITERATIONS, MOST_BATCHES // shape.ranks))
    whole = IterationStat.objects.filter(run=run, ranks=shape.ranks, end__isnull=False)
    stats = list(whole.order_by("-iteration").values_list("iteration", "link_gbps")[:most])
    batches = SpanBatch.objects.filter(run=run, iteration__in=[iteration for iteration, _ in stats])
    taken: dict[tuple[int, str], list[float]] = defaultdict(list)
    for rank, spans in batches.values_list("rank", "spans").iterator():
        for code in spans:
            if code[0] in TRAINING:
                taken[rank % shape.stages, code[0]].append(code[3] - code[2])
    if any((stage, op) not in taken for stage in range(shape.stages) for op in "FB"):
        return None
    planned = _planned(run, shape)
    stages = [
        MeasuredStage(name=f"S{stage + 1}", planned=planned[stage], measured=_times(taken, stage))
        for stage in range(shape.stages)
    ]
    links = _links(run, shape, [rates for _, rates in stats if rates])
    return MeasuredRun(run=run, iterations=len(stats), stages=stages, links=links)


def _times(taken: dict[tuple[int, str], list[float]], stage: int) -> OpTimes:
    ms = {op: round(median(taken[stage, op]), 3) if (stage, op) in taken else 0.0 for op in TRAINING}
    return OpTimes(forward_ms=ms["F"], backward_ms=ms["B"] + ms["W"], recompute_ms=ms["R"])


def _planned(run: Run, shape: Shape) -> list[OpTimes]:
    times = parse(TrainJob, run.job.document).times
    kinds = (times.forward, np.add(times.backward, times.weight), times.recompute)
    rows = np.stack([np.broadcast_to(ms, shape.stages) for ms in kinds], axis=1).tolist()
    return [OpTimes(forward_ms=f, backward_ms=b, recompute_ms=r) for f, b, r in rows]


def _links(run: Run, shape: Shape, rates: list[list[float | None]]) -> list[MeasuredLink]:
    pools_by_dc = pools(run.job.team, shape.dcs)
    dcs = {pool.dc_id for pool in pools_by_dc.values()}
    by_ends = {
        frozenset((link.a_id, link.b_id)): link for link in WanLink.objects.filter(a__in=dcs, b__in=dcs)
    }
    rows = []
    for direction, link in enumerate(shape.links):
        seen = [gbps for row in rates if (gbps := row[direction]) is not None]
        ends = shape.dcs[link["from"]], shape.dcs[link["to"]]
        sites = frozenset(pools_by_dc[end].dc_id for end in ends if end in pools_by_dc)
        if seen:
            name = f"{ends[0]} → {ends[1]}"
            rows.append(MeasuredLink(name=name, gbps=median(seen), link=by_ends.get(sites)))
    return rows


def initial_of_run(run_figures: MeasuredRun) -> dict[str, Any]:
    """The plan form's values that plan the job of a run again, with the times that it measured."""
    run = run_figures.run
    job = parse(TrainJob, run.job.document)
    team = run.job.team
    dcs = {pool.dc_id: pool.dc for pool in pools(team, [dc.name for dc in job.datacenters]).values()}
    pace = run_figures.slowest.measured
    name = f"{run.job.name} as measured"[:80]
    taken = Plan.objects.filter(team=team, name=name).exists()
    return {
        "team": team.pk,
        "name": Plan(team=team, name=name).free_name() if taken else name,
        "datacenters": list(dcs.values()),
        "source": "times",
        "forward_ms": pace.forward_ms,
        "backward_ms": pace.backward_ms,
        "recompute_ms": pace.recompute_ms,
        "activation_bytes": job.wan_bytes,
        "parameters_per_stage": max(stage_parameters(job, stage) for stage in range(job.cell.stages)),
        "partitions": [job.cell.stages],
        "microbatches": job.cell.microbatches,
        **{name: getattr(job.model, name) for name in ("layers", "hidden", "heads", "seq")},
        "micro_batch": job.cell.micro_batch,
        "device": job.device.kind,
        **({"data": job.data.files} if isinstance(job.data.files, str) else {}),
        **{name: getattr(job.optimizer, name) for name in ("steps", "lr", "seed")},
    }


def offered_to_plan(request: HttpRequest, pk: int) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The plan form's values and context of run `pk`. Raises Http404 where the user may not see it."""
    run = visible_or_404(Run.objects.select_related("job__team"), request.user, pk=pk)
    figures = measured(run)
    if figures is None:
        message = f"{run} has no complete iteration yet, or its spans are no longer kept."
        messages.info(request, message)
        return None, {"measured": None}
    return initial_of_run(figures), {"measured": figures}
