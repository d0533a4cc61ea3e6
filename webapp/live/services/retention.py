"""Forgetting: telemetry grows without end, so details go after a while and rollups stay."""

from webapp.jobs.models import Run
from webapp.live.models import SpanBatch


def forget_old_spans(keep: int) -> int:
    """Delete raw spans of all but the last `keep` iterations of each run; returns how many batches."""
    gone = 0
    for run, iteration in Run.objects.filter(iteration__gte=keep).values_list("pk", "iteration"):
        gone += SpanBatch.objects.filter(run=run, iteration__lte=iteration - keep).delete()[0]
    return gone
