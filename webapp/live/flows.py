"""What the runs that train now send over each link between two data centres."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from engine.job.shape import shape_of
from webapp.inventory.selectors import datacenter_name
from webapp.jobs.models import Run, Status
from webapp.live.selectors import usages

Ends = tuple[int, frozenset[str]]  # team, and the names of two of its data centres
MOST_RUNS = 12


def flows(runs: Iterable[Run], usage_of_run: Mapping[int, dict[str, Any] | None]) -> dict[Ends, float]:
    """Gbit/s between data centres, both directions together: all bytes over all time of the last iterations.

    Parameters
    ----------
    runs : with `job`; `found` are their usages by id.
    """
    carried: dict[Ends, float] = defaultdict(float)
    for run in runs:
        usage, shape = usage_of_run.get(run.pk), shape_of(run.job.document)
        for link in usage["links"] if usage else ():
            names = frozenset(datacenter_name(shape.dcs[link[end]]) for end in ("from", "to"))
            carried[run.job.team_id, names] += link["mean_gbps"]
    return dict(carried)


def flows_now(user: Any) -> dict[Ends, float]:
    """The flows of the runs that `user` sees training, the latest MOST_RUNS of them."""
    training = Run.objects.visible_to(user).filter(status=Status.RUNNING).select_related("job")
    runs = list(training.defer("result", "job__plan_copy")[:MOST_RUNS])
    return flows(runs, usages(runs))
