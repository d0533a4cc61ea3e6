"""The shape of a run by its row, and of those of its ranks that train."""

from collections.abc import Sequence
from functools import lru_cache

from engine.errors import InputError
from engine.inputs import parse
from engine.job.all_reduce import all_reduces
from engine.job.job import TrainJob
from engine.job.shape import Shape, shape_of
from webapp.jobs.models import Job, Run


def training(shape: Shape, run: Run, iteration: int) -> dict[int, Sequence[int]]:
    """The ranks that train an iteration, each with the data centre of every stage of its pipeline: those of
    the launch, until the run goes on with fewer."""
    for cut in reversed(run.cuts):
        if cut["iteration"] <= iteration:
            return {int(rank): dcs for rank, dcs in cut["dcs_of_rank"].items()}
    return {rank: shape.dcs_of_pipeline[rank // shape.stages] for rank in range(shape.ranks)}


@lru_cache(maxsize=256)
def shape_of_run(run_id: int) -> Shape:
    """The shape of a run; its job never changes, so it is read once a process."""
    return shape_of(Run.objects.select_related("job").only("job__document").get(pk=run_id).job.document)


def all_reduce_words(job: Job) -> str:
    """How the replicas of its stages sum gradients; empty where none do, or if the job is no longer valid."""
    try:
        of = parse(TrainJob, job.document)
    except InputError:
        return ""
    if of.swap_strategy or of.cell.pipelines == 1:
        return ""
    stages: dict[str, list[str]] = {}
    for stage, kind in enumerate(all_reduces(of)):
        stages.setdefault(kind, []).append(str(stage))
    if len(stages) == 1:
        return next(iter(stages))
    return ", ".join(f"{kind} on stages {', '.join(at)}" for kind, at in stages.items())
