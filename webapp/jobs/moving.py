"""Runs that lost the machine of their first rank: their job goes on elsewhere, from its last checkpoint.

The old run has failed and stays so: what is left of it is told to stop whenever it is heard of.
"""

from collections.abc import Callable
from dataclasses import replace

from django.db import transaction

from engine.errors import Infeasible
from engine.inputs import parse
from engine.job.adapt.sentences import smaller_layout
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec
from engine.job.recovery.layout import Layout, change
from engine.job.recovery.smaller import smaller
from webapp.inventory.models import Node, NodeState
from webapp.jobs import incidents, services
from webapp.jobs.gpu_inventory import GpuInventory, GpuOfRank
from webapp.jobs.models import RANK_OVER, MarkLevel, Run


def move_on(run: Run, spec_of: Callable[[Run, Node], LaunchSpec]) -> Run | None:
    """Queue what takes the place of `run` once its other ranks are gone; None where not, or not yet.

    The same layout where GPUs for it are idle; else a smaller one on those of its GPUs that are left.

    Parameters
    ----------
    spec_of : what a node is told of the run.
    """
    ranks = list(run.ranks.select_related("node").order_by("rank"))
    if any(r.state not in RANK_OVER and r.node.state == NodeState.ONLINE for r in ranks):
        return None
    job, first = run.job, ranks[0].node
    gpu_inventory = GpuInventory([(job.team_id, job.document)])
    shortage = gpu_inventory.shortage(job.team_id, job.document, job.gpu_of_rank)
    if shortage is None:
        return _queued(run, f"{first.name} did not return.")
    idle = gpu_inventory.idle(job.team_id, job.document).values()
    free = {(node.pk, gpu) for gpus in idle for node, gpu in gpus}
    # The job as it is kept, without what this attempt alone was given.
    spec = replace(spec_of(run, first), job=parse(TrainJob, job.document))
    left = {a.rank for a in spec.ranks}
    layout = smaller(spec, {r.rank for r in ranks if (r.node_id, r.gpu) in free} & left)
    if isinstance(layout, Infeasible):
        _stays(run, f"It cannot continue without {first.name}. {shortage.text}; {layout.reason}.")
        return None
    words = smaller_layout(change(spec, layout.applied(spec), f"{first.name} did not return")["layout"])
    return _queued(run, words, layout, placed=bool(job.gpu_of_rank))


@transaction.atomic
def _queued(run: Run, why: str, layout: Layout | None = None, *, placed: bool = False) -> Run | None:
    if not services.settle_move(run):
        return None
    again = max(0, run.done - (run.saved_step or 0))
    whence = "its last checkpoint" if run.saved_step is not None else "the beginning: there was no checkpoint"
    cost = f"Replaces {run}, from {whence}; {again:,} iterations are repeated."
    document = layout.job.model_dump(mode="json", exclude_none=True) if layout else None
    new = services.move_run(run, f"{why} {cost}", document, _gpu_of_rank(layout) if layout and placed else ())
    text = f"{why} It continues as {new}, from {whence}; {again:,} iterations are repeated."
    services.add_mark(run, MarkLevel.WARN, text, cost=incidents.move(run, new, again=again))
    return new


def _gpu_of_rank(layout: Layout) -> GpuOfRank:
    return [[a.node, a.gpu] for a in sorted(layout.ranks, key=lambda a: (a.pipeline, a.stage))]


@transaction.atomic
def _stays(run: Run, why: str) -> None:
    if services.settle_move(run):
        cost = incidents.failure(run.status_reason, done=run.done, saved=run.saved_step)
        services.add_mark(run, MarkLevel.ERROR, why, cost=cost)
