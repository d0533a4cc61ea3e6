"""Archiving and deleting runs that have ended, and labels and notes of all."""

from collections.abc import Sequence
from typing import Any

from webapp.accounts.archive_pages import ArchivePages
from webapp.accounts.describe_pages import DescribePage
from webapp.common.parts import Part
from webapp.jobs.models import PastPrediction, RankState, Run, RunCheckpoint, RunEvent
from webapp.jobs.services import delete_runs, goes_on_from


def part(order: int, one: str, several: str, model: Any) -> Part:
    """Rows of `model`, which are of one run each."""
    return Part(
        of="run",
        order=order,
        one=one,
        several=several,
        rows=lambda runs: model.objects.filter(run__in=[run.pk for run in runs]),
    )


def _light() -> Any:
    """Runs with their team, without the large columns."""
    rows = Run.objects.select_related("job__team")
    return rows.defer("predicted", "result", "job__document", "job__plan_copy", "job__gpu_of_rank")


def _stays(runs: Sequence[Run]) -> list[str]:
    """Where the checkpoints are that the site leaves alone."""
    where = list(dict.fromkeys(run.saved_where for run in runs if run.saved_where))
    return [f"Checkpoints stay on the disks of the nodes: {', '.join(where)}."] if where else []


pages = ArchivePages(
    kind="run",
    several="runs",
    address="jobs:run",
    remove=delete_runs,
    stays=_stays,
    against=goes_on_from,
    rows=_light,
)
describe_page = DescribePage(address="jobs:run", rows=_light)
PARTS = (
    part(10, "record of a GPU", "records of GPUs", RankState),
    part(20, "event", "events", RunEvent),
    part(30, "earlier prediction", "earlier predictions", PastPrediction),
    part(35, "record of a checkpoint", "records of checkpoints", RunCheckpoint),
)
