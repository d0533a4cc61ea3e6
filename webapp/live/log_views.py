"""The log of a run: page, JSON for whoever follows it, and the whole as a file."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache

from webapp.accounts.permissions import visible_or_404
from webapp.common.figures import download_in_pieces
from webapp.common.queries import whole
from webapp.jobs.models import Run, lane_of
from webapp.live import logs


def _asked(request: HttpRequest) -> dict[str, Any]:
    """`rank` (None: all) and `q` of the query; what is no number asks for all."""
    words = request.GET.get("q", "").replace("\0", "").strip()[:200]
    return {"rank": whole(request.GET.get("rank")), "q": words}


@never_cache
def run_logs(request: HttpRequest, pk: int) -> HttpResponse:
    run = visible_or_404(Run.objects.select_related("job__team"), request.user, pk=pk)
    filters, after = _asked(request), whole(request.GET.get("after"))
    matching = logs.lines(run, **filters)
    shown, more = logs.tail(matching, after)
    newest = max((line.pk for line in shown), default=after or 0)
    named = [(line, lane_of(line.rank, run.job)) for line in shown]
    if request.accepts("application/json") and not request.accepts("text/html"):
        lines = [{**logs.entry(line), "lane": lane} for line, lane in named]
        return JsonResponse({"lines": lines, "after": newest, "more": more, "over": run.is_over})
    download = reverse("jobs:run-logs-download", args=[pk])
    query = urlencode({name: value for name, value in filters.items() if value not in (None, "")})
    context = {
        "run": run,
        "title": "Log",
        "lines": named,
        "more": more,
        "newest": newest,
        "ranks": run.ranks.select_related("node"),
        **filters,
        "logs_url": reverse("jobs:run-logs", args=[pk]),
        "download_url": f"{download}?{query}" if query else download,
        "keep": settings.KEEP_LOG_LINES,
        "tail": logs.TAIL,
    }
    return render(request, "live/run_logs.html", context)


@never_cache
def run_logs_download(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    run = visible_or_404(Run.objects.only("pk"), request.user, pk=pk)
    text = logs.as_text(logs.lines(run, **_asked(request)))
    return download_in_pieces(text, "text/plain; charset=utf-8", f"run-{pk}.log")
