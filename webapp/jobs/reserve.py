"""GPUs that a run holds in reserve (failures.adapt.most_gpus): which ranks they are.

The document says in which data centre each one is (engine.job.reserve). Its rank follows those of the launch.
"""

from typing import Any

from engine.job.reserve import dcs_of_reserve_in
from engine.job.shape import shape_of
from webapp.jobs.models import Run


def keeps_reserve(document: dict[str, Any]) -> bool:
    """Whether a run of the job holds GPUs in reserve."""
    return dcs_of_reserve_in(document) is not None


def in_reserve(run: Run) -> set[int]:
    """Ranks of `run` whose GPUs are in reserve now: those of the document that are in no layout, and those
    that a move left."""
    reserve = dcs_of_reserve_in(run.job.document)
    if reserve is None:
        return set()
    at_launch = shape_of(run.job.document).ranks
    used = {int(rank) for rank in run.cuts[-1]["dcs_of_rank"]} if run.cuts else set(range(at_launch))
    return set(range(at_launch + len(reserve))) - used
