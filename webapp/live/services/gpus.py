"""What the GPUs of nodes do now: the latest figures alone are kept."""

from datetime import datetime

from django.db import transaction

from engine.job.events.gpus import Gpus
from webapp.inventory.models import Node
from webapp.live.models import GpuReading

FIGURES = ("utilization", "memory_bytes", "memory_total_bytes", "temperature_c", "power_w")


@transaction.atomic
def record_gpus(node: str, at: datetime, event: Gpus) -> int:
    """Replace what is known of the GPUs of `node`; returns how many now have figures.

    Parameters
    ----------
    node : who says so; it speaks for the GPUs that it has.
    at : when the broker heard of it.
    """
    node_row = Node.objects.filter(name=node).values("pk", "gpus").first()
    if node_row is None:
        return 0
    rows = {
        figures.gpu: GpuReading(
            node_id=node_row["pk"],
            gpu=figures.gpu,
            at=at,
            **{name: getattr(figures, name) for name in FIGURES},
        )
        for figures in event.gpus
        if figures.gpu < node_row["gpus"]
    }
    GpuReading.objects.filter(node=node_row["pk"]).exclude(gpu__in=rows).delete()
    GpuReading.objects.bulk_create(
        rows.values(),
        update_conflicts=True,
        unique_fields=["node", "gpu"],
        update_fields=["at", *FIGURES],
    )
    return len(rows)
