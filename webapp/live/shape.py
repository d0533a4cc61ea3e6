"""The shape of a run by its row, and of those of its ranks that train."""

from collections.abc import Sequence
from functools import lru_cache

from engine.job.shape import Shape, shape_of
from webapp.jobs.models import Run


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
