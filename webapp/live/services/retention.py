"""Forgetting: telemetry grows without end, so details go after a while and rollups stay."""

from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from webapp.jobs.models import TERMINAL, Run
from webapp.live.models import IterationStat, KeptRange, SpanBatch

MOST_AT_ONCE = 20_000  # rows of one statement: a clean-up must not hold locks for long
LATE = timedelta(hours=1)  # after a run's end nothing of it is on its way any more


def forget_old_spans(keep: int) -> int:
    """Delete raw spans of all but the last `keep` iterations of each rank and the kept ranges of each run.

    The last ones are of that rank's own reports: what the first rank says of the run's progress forgets
    nothing that others reported. Returns how many batches are gone.
    """
    ranges = KeptRange.objects.filter(
        run=OuterRef("run"), first__lte=OuterRef("iteration"), last__gte=OuterRef("iteration")
    )
    deleted = 0
    for run, iteration in Run.objects.filter(iteration__gte=keep).values_list("pk", "iteration"):
        old = SpanBatch.objects.filter(~Exists(ranges), run=run, iteration__lte=iteration - keep)
        if not old.exists():
            continue
        with transaction.atomic():
            list(Run.objects.select_for_update().filter(pk=run).values_list("pk"))  # as `keep_range` does
            deleted += old.filter(pk__in=_older_of_rank(run, keep)).delete()[0]
    return deleted


def _older_of_rank(run: int, keep: int) -> list[int]:
    """Ids of the batches of a run behind the last `keep` of their rank."""
    newest_first = Window(RowNumber(), partition_by=F("rank"), order_by=F("iteration").desc())
    batches = SpanBatch.objects.filter(run=run).annotate(number=newest_first)
    return list(batches.filter(number__gt=keep).order_by().values_list("pk", flat=True))


@transaction.atomic
def compact_iterations(keep: int) -> int:
    """Forget per-rank times and transfers of iterations whose spans are gone; returns how many.

    What stays for good is a row of numbers per iteration. An iteration that lacks ranks is left until its run
    has been over for an hour: the node may only have been cut off from the broker.
    """
    quiet = Q(run__status__in=TERMINAL, run__finished_at__lt=timezone.now() - LATE)
    old = Q(iteration__lte=F("run__iteration") - keep)
    whole = Q(dc_utilization__isnull=False)
    due = IterationStat.objects.filter(old & (whole | quiet), is_compact=False).values("pk")[:MOST_AT_ONCE]
    return IterationStat.objects.filter(pk__in=list(due.values_list("pk", flat=True))).update(
        busy_s={}, sync_s={}, traffic={}, is_compact=True
    )
