"""The page of a run, and the JSON and files that hang on it."""

import json
from collections.abc import AsyncIterator

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache

from engine.errors import InputError
from webapp.accounts.export import csv_line
from webapp.accounts.permissions import may, visible_or_404
from webapp.common.additions import extended
from webapp.common.asked_once import fresh_key
from webapp.common.figures import download, download_in_pieces
from webapp.common.lists import bound_table
from webapp.common.queries import whole
from webapp.computations.models import Computation
from webapp.jobs.models import Priority, Run, RunEvent
from webapp.jobs.reserve import in_reserve
from webapp.live.gpus import gpus_now, is_cuda
from webapp.live.history import history
from webapp.live.hops import hop_table
from webapp.live.incidents import incidents_of
from webapp.live.models import IterationStat
from webapp.live.ranges import kept_ranges
from webapp.live.selectors import messages_since, snapshot, spans_between
from webapp.live.shape import all_reduce_words
from webapp.live.tables import IterationTable
from webapp.live.trace import kept, trace
from webapp.live.wan import wan_table
from webapp.placement.pages import pages as placements
from webapp.planning.trained import trained_words

METRICS = (
    "iteration",
    "start",
    "end",
    "loss",
    "bits_per_byte",
    "validation_loss",
    "validation_bits_per_byte",
    "grad_norm",
    "learning_rate",
    "tokens",
    "utilization",
)


def _placement(run: Run) -> Computation | None:
    """The placement that the run was launched from, if it is still there."""
    placement = run.job.plan_copy.get("placement")
    return (
        placements.rows().filter(pk=placement["id"], team=run.job.team_id).only("id", "name").first()
        if placement
        else None
    )


@never_cache
def run_detail(request: HttpRequest, pk: int) -> HttpResponse:
    run = visible_or_404(Run.objects.select_related("job__team", "job__plan"), request.user, pk=pk)
    context = {
        "run": run,
        "job": run.job,
        "plan": run.job.plan,
        "placement": _placement(run),
        "trains": trained_words(run.job.document, run.job.plan_copy.get("request")),
        "snapshot": snapshot(pk),
        "ws_path": f"/ws/runs/{pk}/",
        **{f"{name}_url": reverse(f"jobs:run-{name}", args=[pk]) for name in LINKS},
        "may_operate": may(request.user, run.job.team),
        "document": json.dumps(run.document, indent=2),
        "command": f"meridian train run-{pk}.json",
        "document_name": f"run-{pk}.json",
        "launch_key": fresh_key(),
        "priorities": Priority,
        "generations": Run.objects.filter(job=run.job).for_lists().order_by("generation"),
        "incidents": incidents_of(run),
        "kept_ranges": kept_ranges(run),
        "wan": wan_table(run),
        "hops": hop_table(run),
        "all_reduce": all_reduce_words(run.job),
        "is_cuda": is_cuda(run),
        "kept_iterations": settings.KEEP_SPAN_ITERATIONS,
        "ranks": run.ranks.select_related("node", "dc"),
        "reserve": in_reserve(run),
        "events": RunEvent.objects.filter(run=run).order_by("-seq")[:200],
    }
    return render(request, "live/run_detail.html", extended("run", request, context))


LINKS = (
    "live",
    "history",
    "cancel",
    "retry",
    "clone",
    "logs",
    "metrics",
    "checkpoints",
    "trace",
    "ranges",
    "gpus",
    "document",
)


@never_cache
def run_live(request: HttpRequest, pk: int) -> JsonResponse:
    """For browsers whose socket is blocked: what came after `since`, or the snapshot of a run."""
    visible_or_404(Run.objects.only("pk"), request.user, pk=pk)
    since = whole(request.GET.get("since"))
    missed = None if since is None else messages_since(pk, since)
    return JsonResponse(snapshot(pk) if missed is None else {"events": missed})


@never_cache
def run_history(request: HttpRequest, pk: int) -> JsonResponse:
    """The whole run for charts."""
    return JsonResponse(history(visible_or_404(Run.objects.select_related("job"), request.user, pk=pk)))


@never_cache
def run_spans(request: HttpRequest, pk: int) -> JsonResponse:
    """Iterations `from` to `to` (from 0) with their spans, for a page that looks back."""
    run = visible_or_404(Run.objects.select_related("job"), request.user, pk=pk)
    try:
        first = _iteration(request, "from", 0)
        return JsonResponse(spans_between(run, first, _iteration(request, "to", first)))
    except InputError as error:
        return JsonResponse({"error": str(error)}, status=400)


@never_cache
def run_gpus(request: HttpRequest, pk: int) -> JsonResponse:
    """What the GPUs of the run do now."""
    run = visible_or_404(Run.objects.select_related("job"), request.user, pk=pk)
    return JsonResponse({"gpus": gpus_now(run)})


@never_cache
def run_trace(request: HttpRequest, pk: int) -> HttpResponse:
    """Chrome/Perfetto trace of iterations `from` to `to` (from 0; by default the last ten kept)."""
    run = visible_or_404(Run.objects.select_related("job"), request.user, pk=pk)
    there = kept(run)
    if there is None:
        return JsonResponse({"error": "This run has no stored spans."}, status=404)
    try:
        last = _iteration(request, "to", there[1])
        document = trace(run, _iteration(request, "from", max(there[0], last - 9)), last)
    except InputError as error:
        return JsonResponse({"error": str(error)}, status=400)
    return download(json.dumps(document), "application/json", f"run-{pk}.trace.json")


def _iteration(request: HttpRequest, name: str, default: int) -> int:
    text = request.GET.get(name, "")
    iteration = whole(text, 999_999_999)
    if text and iteration is None:
        raise InputError(name, text, "must be the number of an iteration")
    return default if iteration is None else iteration


def run_document(request: HttpRequest, pk: int) -> HttpResponse:
    """The document that `meridian train` runs: with the checkpoint that this attempt goes on from."""
    run = visible_or_404(Run.objects.select_related("job"), request.user, pk=pk)
    return download(json.dumps(run.document, indent=2), "application/json", f"run-{pk}.json")


def run_metrics(request: HttpRequest, pk: int) -> HttpResponse:
    run = visible_or_404(Run.objects.select_related("job__team", "job__plan"), request.user, pk=pk)
    stats = IterationStat.objects.filter(run=run).only(*METRICS)
    context = {
        "run": run,
        "title": "Metrics",
        "table": bound_table(request, IterationTable, stats),
        "history_url": reverse("jobs:run-history", args=[pk]),
        "download_url": reverse("jobs:run-metrics-download", args=[pk]),
    }
    return render(request, "live/run_metrics.html", context)


def run_metrics_download(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    """Every iteration as CSV; iterations from 1, times in Unix seconds."""
    run = visible_or_404(Run.objects.only("pk"), request.user, pk=pk)
    return download_in_pieces(_csv(run), "text/csv; charset=utf-8", f"run-{pk}-metrics.csv")


async def _csv(run: Run) -> AsyncIterator[str]:
    yield csv_line(METRICS)
    rows = IterationStat.objects.filter(run=run).order_by("iteration").only(*METRICS)
    async for row in rows.aiterator(chunk_size=2_000):
        yield csv_line([row.iteration + 1, *(getattr(row, name) for name in METRICS[1:])])
