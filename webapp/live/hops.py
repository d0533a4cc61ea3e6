"""What carries messages over each hop of a run, as its page lists it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.job.backends import Backend, hops_of
from engine.job.job import TrainJob
from engine.schedule.traversal import straight
from webapp.jobs.models import Run

MOST_ROWS = 100
NAMES: dict[Backend, str] = {
    "nccl": "NCCL, on the GPUs",
    "gloo": "gloo, through host memory",
    "transport": "Transport, through host memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRow:
    """One hop, both directions.

    stages : as pages number them, from S1.  pipelines : how many have their stages in these two data centres.
    """

    stages: tuple[str, str]
    first_dc: str
    second_dc: str
    pipelines: int
    carried_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HopTable:
    """The first MOST_ROWS hops of all `count`."""

    rows: Sequence[HopRow]
    count: int


def hop_table(run: Run) -> HopTable:
    """The hops in the result of `run`; before it is there, those between adjacent stages by its job."""
    rows = (run.result or {}).get("hops") or _by_job(run)
    return HopTable(rows=[_row(row) for row in rows[:MOST_ROWS]], count=len(rows))


def _by_job(run: Run) -> list[dict[str, Any]]:
    """None of a job that swaps, or that is no longer valid."""
    try:
        of = parse(TrainJob, run.job.document)
    except InputError:
        return []
    return [] if of.swap_strategy else hops_of(of, straight(of.cell.stages))


def _row(row: dict[str, Any]) -> HopRow:
    (first, second), (first_dc, second_dc) = row["stages"], row["datacenters"]
    return HopRow(
        stages=(f"S{first + 1}", f"S{second + 1}"),
        first_dc=first_dc,
        second_dc=second_dc,
        pipelines=len(row["pipelines"]),
        carried_by=NAMES[row["backend"]],
    )
