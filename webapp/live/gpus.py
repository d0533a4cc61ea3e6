"""What the GPUs of a run do now, as its page and its JSON say it."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from engine.job.changed import value_at
from webapp.jobs.models import Run
from webapp.live.models import GpuReading
from webapp.live.payload import unix
from webapp.live.services.gpus import FIGURES

FRESH_S = 30.0  # an agent reports every 5 s; older figures say nothing of now
ABSENT: dict[str, Any] = dict.fromkeys((*FIGURES, "at"))


def gpus_now(run: Run) -> list[dict[str, Any]]:
    """The ranks of `run` with the latest figures of their GPUs; those of a run that is over have none."""
    sharing = value_at(run.job.document, "device.ranks_per_gpu") or 1
    ranks = list(run.ranks.select_related("node", "dc"))
    readings = {} if run.is_over else _readings({rank.node_id for rank in ranks})
    return [
        {
            "rank": rank.rank,
            "pipeline": rank.pipeline,
            "stage": rank.stage,
            "dc": rank.dc.name,
            "node": rank.node.name,
            "gpu": rank.gpu,
            "state": rank.state,
            **readings.get((rank.node_id, rank.gpu // sharing), ABSENT),
        }
        for rank in ranks
    ]


def is_cuda(run: Run) -> bool:
    """Whether its GPUs are real ones, of which there are more figures than the memory of a process."""
    return bool(value_at(run.job.document, "device.kind") == "cuda")


def _readings(nodes: set[int]) -> dict[tuple[int, int], dict[str, Any]]:
    since = timezone.now() - timedelta(seconds=FRESH_S)
    rows = GpuReading.objects.filter(node__in=nodes, at__gte=since)
    return {
        (row.node_id, row.gpu): {name: getattr(row, name) for name in FIGURES} | {"at": unix(row.at)}
        for row in rows
    }
