"""What a page, a socket or the polling fallback reads of a run."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.db import connection, transaction

from engine.job.shape import Shape, lanes, shape_of
from webapp.accounts.models import User
from webapp.jobs.models import PastPrediction, Run, RunEvent
from webapp.jobs.reserve import in_reserve
from webapp.live import payload, recent, usage
from webapp.live.models import IterationStat, SpanBatch
from webapp.live.ranges import nearest
from webapp.live.shape import training

MOST_ITERATIONS = 2_000
MOST_SPANS = 4_000
MOST_MARKS = 200
USAGE_ITERATIONS = 10


def visible_run(user: Any, run_id: int) -> Run | None:
    """The run, if `user` may see it."""
    return Run.objects.visible_to(user).filter(pk=run_id).first()


def may_still_watch(scope: dict[str, Any], run_id: int) -> bool:
    """Whether the person behind an open socket is still logged in, and may still see the run."""
    session = scope.get("session")
    if session is not None and not session.exists(session.session_key):
        return False
    user = User.objects.filter(pk=scope["user"].pk, is_active=True).first()
    return user is not None and visible_run(user, run_id) is not None


def messages_since(run_id: int, seq: int) -> list[dict[str, Any]] | None:
    """The messages to browsers after `seq`; None where not all of them are there any more."""
    return recent.since(run_id, seq, Run.objects.values_list("live_seq", flat=True).get(pk=run_id))


def snapshot(run_id: int) -> dict[str, Any]:
    """The whole state of a run at one moment: what it says and its `seq` belong together."""
    nested = connection.in_atomic_block  # only the outermost transaction can say how it reads
    with transaction.atomic():
        if not nested:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _snapshot(Run.objects.select_related("job").get(pk=run_id))


def _snapshot(run: Run) -> dict[str, Any]:
    shape = shape_of(run.job.document)
    ranks = list(run.ranks.select_related("node"))
    stats = _last_iterations(run)
    spans, of = _last_spans(run)
    marks = list(RunEvent.objects.filter(run=run).order_by("-seq")[:MOST_MARKS])[::-1]
    return {
        "type": payload.MessageType.SNAPSHOT,
        "seq": run.live_seq,
        "epoch": None if run.epoch is None else run.epoch * 1e3,
        "now": payload.now_ms(run, time.time()),
        "run": payload.run_entry(run),
        "labels": run.label_list,
        "note": run.note,
        "lanes": lanes(shape, ranks),
        "dcs": [{"name": name} for name in shape.dcs],
        "links": list(shape.links),
        **predicted(run, [entry["iteration"] for entry in spans]),
        "iterations": [payload.iteration_entry(run, stat) for stat in stats],
        "first_loss": _first_loss(run),
        "spans": spans,
        "shown": {"spans": sum(len(entry["spans"]) for entry in spans), "of": of},
        "marks": [payload.mark_entry(mark) for mark in marks],
        "ranks": payload.rank_entries(ranks, in_reserve(run)),
        "usage": run_usage(run, shape, run.predicted.get("utilization")),
    }


def predicted(run: Run, shown: Sequence[int] = ()) -> dict[str, Any]:
    """`predicted`, and `predicted_before` with the spans of what held in iterations `shown`."""
    past = list(PastPrediction.objects.filter(run=run).order_by("since"))
    window = (min(shown), max(shown)) if shown else None
    return {
        "predicted": {**run.predicted, "since": run.predicted_since} if run.predicted else {},
        "predicted_before": payload.predictions(run, past, window),
    }


def spans_between(run: Run, first: int, last: int) -> dict[str, Any]:
    """What a snapshot says of iterations `first` to `last`, as far as it is kept.

    `iterations`, `spans` (at most MOST_SPANS, and the first iteration whole at least), `predicted_before`,
    and `nearest` where there are no spans: the iterations to look at in their place.
    """
    stats = IterationStat.objects.filter(run=run, iteration__range=(first, last))
    batches = SpanBatch.objects.filter(run=run, iteration__range=(first, last)).order_by("iteration", "rank")
    spans: list[dict[str, Any]] = []
    count = 0
    for batch in batches.iterator(chunk_size=200):
        if spans and batch.iteration != spans[-1]["iteration"] and count + len(batch.spans) > MOST_SPANS:
            break
        spans.append(payload.span_entry(batch))
        count += len(batch.spans)
    light = stats.defer("busy_s", "sync_s", "traffic")[:MOST_ITERATIONS]
    return {
        "iterations": [payload.iteration_entry(run, stat) for stat in light],
        "spans": spans,
        "predicted_before": predicted(run, (first, last))["predicted_before"],
        "nearest": None if spans else nearest(run, first, last),
    }


def run_usage(run: Run, shape: Shape, predicted: float | None) -> dict[str, Any] | None:
    """The `usage` of a run over its last whole iterations; `predicted`: its utilization."""
    return _usage(run, shape, predicted, list(_whole_iterations(run)))


def usages(runs: Sequence[Run]) -> dict[int, dict[str, Any] | None]:
    """The `usage` of each of `runs` by id, in one query; runs come with `job`."""
    shapes = {run.pk: shape_of(run.job.document) for run in runs}
    rows_of_runs = [_whole_iterations(run) for run in runs]
    by_run: dict[int, list[IterationStat]] = defaultdict(list)
    for stat in rows_of_runs[0].union(*rows_of_runs[1:], all=True) if rows_of_runs else ():
        by_run[stat.run_id].append(stat)
    return {
        run.pk: _usage(run, shapes[run.pk], run.predicted.get("utilization"), by_run[run.pk]) for run in runs
    }


def _whole_iterations(run: Run) -> Any:
    whole = IterationStat.objects.filter(run=run, utilization__isnull=False)
    return whole.order_by("-iteration")[:USAGE_ITERATIONS]


def _usage(
    run: Run, shape: Shape, predicted: float | None, stats: list[IterationStat]
) -> dict[str, Any] | None:
    ranks = training(shape, run, max((stat.iteration for stat in stats), default=0))
    return usage.total(
        stats,
        dc_of_rank=shape.dc_of_rank,
        ranks=ranks,
        pairs=shape.pairs,
        links=shape.links,
        predicted=predicted,
    )


def _last_iterations(run: Run) -> list[IterationStat]:
    stats = IterationStat.objects.filter(run=run).defer("busy_s", "sync_s", "traffic")
    return list(stats.order_by("-iteration")[:MOST_ITERATIONS])[::-1]


def _first_loss(run: Run) -> dict[str, Any] | None:
    """The first loss of the run, which later ones are compared with; None before there is one."""
    stats = IterationStat.objects.filter(run=run, loss__isnull=False).order_by("iteration")
    first = stats.values("iteration", "loss").first()
    return dict(first) if first else None


def _last_spans(run: Run) -> tuple[list[dict[str, Any]], int]:
    """Entries of the last whole iterations that fit, and how many spans are kept in all."""
    batches = SpanBatch.objects.filter(run=run)
    last = batches.order_by("-iteration").values_list("iteration", flat=True).first()
    if last is None:
        return [], 0
    per_iteration = max(
        1, sum(len(batch) for batch in batches.filter(iteration=last).values_list("spans", flat=True))
    )
    per_iteration = max(per_iteration, len(run.predicted.get("spans", [])))
    fitting = max(1, MOST_SPANS // per_iteration)
    shown = [
        payload.span_entry(b)
        for b in batches.filter(iteration__gt=last - fitting).order_by("iteration", "rank")
    ]
    while sum(len(entry["spans"]) for entry in shown) > MOST_SPANS and shown[0]["iteration"] < last:
        oldest = shown[0]["iteration"]
        shown = [entry for entry in shown if entry["iteration"] != oldest]
    count = batches.values("iteration").distinct().count()
    return shown, count * per_iteration
