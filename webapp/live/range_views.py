"""Kept ranges of a run: the list, keeping one, and deleting one."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from webapp.accounts.permissions import visible_or_404
from webapp.common.queries import whole
from webapp.jobs.models import Run
from webapp.live.ranges import entry, kept_ranges
from webapp.live.services import NotKept, delete_range, keep_range

LATEST = 2**31 - 1  # the largest number of an iteration


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def run_ranges(request: HttpRequest, pk: int) -> JsonResponse:
    """The kept ranges of a run; a POST of `from` and `to` (iterations from 0) keeps one more."""
    run = visible_or_404(Run.objects.select_related("job__team"), request.user, pk=pk)
    if request.method != "POST":
        return JsonResponse({"ranges": [entry(span_range) for span_range in kept_ranges(run)]})
    first, last = (whole(request.POST.get(name), LATEST) for name in ("from", "to"))
    if first is None or last is None or first > last:
        error = "from, to: must be the first and the last iteration of the range, counted from 0"
        return JsonResponse({"error": error}, status=400)
    try:
        span_range = keep_range(request.user, run, first, last)
    except NotKept as error:
        return JsonResponse({"error": str(error)}, status=409)
    return JsonResponse({"range": entry(span_range) | {"iterations": span_range.iterations}})


@require_POST
def run_range_delete(request: HttpRequest, pk: int, kept: int) -> HttpResponse:
    run = visible_or_404(Run.objects.only("pk"), request.user, pk=pk)
    row = get_object_or_404(kept_ranges(run).select_related("run__job__team"), pk=kept)
    delete_range(request.user, row)
    messages.success(request, f"Deleted the kept range: {row.iterations}.")
    return redirect("jobs:run-detail", pk=pk)
