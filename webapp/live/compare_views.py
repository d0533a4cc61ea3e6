"""The page that compares two runs."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache

from webapp.common.queries import whole
from webapp.jobs.models import Run
from webapp.live.compare import documents, lines, tokens_of_iteration
from webapp.planning.trained import trained_words

MOST_OFFERED = 200


@never_cache
def run_compare(request: HttpRequest) -> HttpResponse:
    """The two runs that the address names (?run=1&run=2); a list sends what was ticked, and is led there."""
    if request.method == "POST":
        return _led(request)
    runs = _runs(request)
    context: dict[str, Any] = {
        "title": "Compare runs",
        "runs": runs,
        "offered": _offered(request, runs),
        "chosen": [*(run.pk for run in runs), None, None][:2],
    }
    if len(runs) == 2:
        context |= _compared(runs, whole="all" in request.GET)
    return render(request, "live/run_compare.html", context)


def _led(request: HttpRequest) -> HttpResponse:
    """To the address of the two runs that a list ticked (`pk`), or back to the list as it was (`query`)."""
    keys = list(dict.fromkeys(request.POST.getlist("pk")))
    if len(keys) in (1, 2):
        return redirect(f"{reverse('jobs:run-compare')}?{urlencode([('run', key) for key in keys])}")
    messages.error(request, f"Tick two runs to compare them; {len(keys)} were ticked.")
    query = request.POST.get("query", "")
    return redirect(f"{reverse('jobs:run-list')}?{query}" if query else reverse("jobs:run-list"))


def _runs(request: HttpRequest) -> list[Run]:
    """The first two of the runs that the address names, as far as the user may see them."""
    pks = [pk for text in request.GET.getlist("run") if (pk := whole(text)) is not None]
    visible = Run.objects.visible_to(request.user).select_related("job__team").defer("result")
    by_pk = {run.pk: run for run in visible.filter(pk__in=pks)}
    return [by_pk[pk] for pk in dict.fromkeys(pks) if pk in by_pk][:2]


def _offered(request: HttpRequest, runs: list[Run]) -> list[Run]:
    """The latest runs that are not archived, and those that are compared."""
    latest = list(Run.objects.visible_to(request.user).current().for_lists()[:MOST_OFFERED])
    pks = {run.pk for run in latest}
    return [*(run for run in runs if run.pk not in pks), *latest]


def _compared(runs: list[Run], *, whole: bool) -> dict[str, Any]:
    first, second = runs
    models = [trained_words(run.job.document, run.job.plan_copy.get("request")) for run in runs]
    return {
        "lines": lines(runs),
        "sections": documents(first, second, whole=whole),
        "whole": whole,
        "query": urlencode([("run", run.pk) for run in runs]),
        "models_differ": first.job.document["model"] != second.job.document["model"],
        "models": list(zip(runs, models, strict=True)),
        "charts": [
            {
                "name": str(run),
                "history": reverse("jobs:run-history", args=[run.pk]),
                "tokens": tokens_of_iteration(run),
                "open": not run.is_over,
            }
            for run in runs
        ],
    }
