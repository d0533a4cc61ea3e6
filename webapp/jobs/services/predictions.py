"""What is predicted of a run's iterations, where that changes while it runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import OuterRef, Subquery

from webapp.jobs.models import PastPrediction, Run
from webapp.jobs.prediction import predicted_payload, present_job


@transaction.atomic
def record_prediction(run: Run, since: int, predicted: dict[str, Any]) -> None:
    """From iteration `since` (from 0) on `predicted` (as of `Run`) holds; what held before is kept as past.

    Where a run goes back behind a change, what was to hold after that never did.
    """
    past = PastPrediction.objects.filter(run=run)
    past.filter(since__gte=since).delete()
    if run.predicted and run.predicted_since < since:
        before = run.predicted
        past.create(
            run=run,
            since=run.predicted_since,
            iteration_ms=before["iteration_ms"],
            utilization=before["utilization"],
            spans=before["spans"],
        )
    run.predicted, run.predicted_since = predicted, since
    run.save(update_fields=["predicted", "predicted_since"])


def predict_as_begun(run: Run, since: int) -> bool:
    """Ranks that begin again have the schedule of the launch, or of the run's smaller layout: whether that
    changes the prediction from iteration `since` on."""
    at_present = present_job(run)
    if at_present is None or run.predicted_since <= (run.cuts[-1]["iteration"] if run.cuts else 0):
        return False
    document, position_of_rank = at_present
    record_prediction(run, since, predicted_payload(document, position_of_rank=position_of_rank))
    return True


@transaction.atomic
def forget_old_predictions(keep: int, spans_held: Mapping[int, Sequence[tuple[int, int]]]) -> int:
    """Forget the spans of predictions that held before the last `keep` iterations of their run alone; how
    many. Their figures stay.

    Parameters
    ----------
    held : of runs by id, ranges of iterations (first, last) whose predictions keep their spans.
    """
    following = PastPrediction.objects.filter(run=OuterRef("run"), since__gt=OuterRef("since"))
    ends = Subquery(following.order_by("since").values("since")[:1])
    updated = 0
    for past in PastPrediction.objects.exclude(spans=[]).annotate(ends=ends).select_related("run"):
        until = past.ends if past.ends is not None else past.run.predicted_since
        shown = any(first < until and last >= past.since for first, last in spans_held.get(past.run_id, ()))
        if until <= past.run.iteration - keep and not shown:
            updated += PastPrediction.objects.filter(pk=past.pk).update(spans=[])
    return updated
