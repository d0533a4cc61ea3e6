"""The Traces pages: measured runs that people upload, where their time went, and what would help."""

import json
import uuid
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from engine.analyze.formats import KNOWN
from webapp.accounts.permissions import may, require, require_somewhere, visible_or_404
from webapp.common.figures import download
from webapp.common.lists import list_page
from webapp.common.markup import as_bytes
from webapp.computations import services as computations
from webapp.computations.filters import ComputationFilterSet
from webapp.computations.models import Computation
from webapp.traces import services
from webapp.traces.forms import TraceForm, WhatIfForm
from webapp.traces.pages import pages
from webapp.traces.selectors import (
    answer_of,
    listed,
    open_ones,
    result_context,
    traces,
    what_ifs,
    whole_answer,
)
from webapp.traces.tables import TraceTable


def trace_list(request: HttpRequest) -> HttpResponse:
    return list_page(
        request,
        title="Traces",
        rows=listed(request.user),
        filter_class=ComputationFilterSet,
        table_class=TraceTable,
        create=("traces:trace-create", "Upload trace"),
        bulk=pages.archive.bulk(request),
        empty="No traces yet. Upload a trace of a measured run to see its bubbles, slow workers and critical "
        f"path. A trace is {KNOWN}.",
    )


def trace_create(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user)
    form = TraceForm(request.POST or None, request.FILES or None, user=request.user)
    return pages.ask(
        request,
        form,
        lambda values: services.upload_trace(
            request.user,
            team=values["team"],
            name=values["name"],
            files=values["trace"],
            key=values["idempotency_key"],
        ),
        template="traces/trace_form.html",
        title="Upload trace",
        submit="Upload and analyse",
        known=KNOWN,
        most=as_bytes(settings.LARGEST_TRACE_BYTES),
    )


@require_GET
def trace_detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    return (
        _computing(request, pk)
        if request.headers.get("HX-Request")
        else _page(request, _visible(request, pk))
    )


def _computing(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """How far the work is; once it has ended, the page loads itself again."""
    computation = visible_or_404(_rows().defer("answer"), request.user, pk=pk)
    still = open_ones(computation, what_ifs(computation.trace))
    if not still:
        return HttpResponse(headers={"HX-Refresh": "true"})
    may_operate = may(request.user, computation.team)
    context = {"computation": computation, "open": still, "may_operate": may_operate}
    return render(request, "traces/trace_computing.html", context)


def _rows() -> Any:
    return traces().select_related("trace", "team", "created_by")


def _visible(request: HttpRequest, pk: uuid.UUID) -> Computation:
    return visible_or_404(_rows(), request.user, pk=pk)


def _page(
    request: HttpRequest, computation: Computation, what_if_form: WhatIfForm | None = None
) -> HttpResponse:
    context = result_context(computation) | {"may_operate": may(request.user, computation.team)}
    analysis = context["analysis"]
    if analysis and analysis["slowdown"] is not None and context["may_operate"]:
        form = what_if_form or WhatIfForm(stages=analysis["layout"]["stages"])
        context |= {"form": form, "sections": form.sections}
    return render(request, "traces/trace_detail.html", context, status=422 if what_if_form else 200)


@require_POST
def trace_ask(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Have what-ifs answered; the page shows the answers."""
    computation = _visible(request, pk)
    require(request.user, computation.team)
    analysis = _analysis(computation)
    if analysis["slowdown"] is None:
        raise Http404
    form = WhatIfForm(request.POST, stages=analysis["layout"]["stages"])
    if not form.is_valid():
        return _page(request, computation, form)
    key = form.cleaned_data["idempotency_key"]
    services.ask_what_if(request.user, computation.trace, form.questions, key=key)
    return redirect("traces:trace-detail", pk=pk)


def _analysis(computation: Computation) -> dict[str, Any]:
    analysis: dict[str, Any] | None = answer_of(computation).get("analysis")
    if analysis is None:
        raise Http404
    return analysis


@require_GET
def trace_analysis(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """What `meridian analyze --json` prints."""
    computation = _visible(request, pk)
    _analysis(computation)
    text = json.dumps(whole_answer(computation), allow_nan=False)
    return download(text, "application/json", f"analysis-{pk}.json")


@require_GET
def trace_timeline(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Lanes and spans of the median iteration, for the canvas."""
    computation = _visible(request, pk)
    _analysis(computation)
    return JsonResponse(answer_of(computation)["timeline"])


@require_GET
def trace_table(request: HttpRequest, pk: uuid.UUID, table: str) -> HttpResponse:
    """One table as CSV, in full."""
    computation = _visible(request, pk)
    _analysis(computation)
    context = result_context(computation)
    for each in (*context["tables"], context["what_ifs"]):
        if each.name == table:
            return download(each.as_csv(), "text/csv", f"{table}-{pk}.csv")
    raise Http404


@require_POST
def trace_cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """End what is open of a trace: its analysis, or its what-ifs."""
    computation = _visible(request, pk)
    require(request.user, computation.team)
    ended = [
        computations.ask_to_cancel(request.user, each)
        for each in open_ones(computation, what_ifs(computation.trace))
    ]
    if not any(ended):
        messages.info(request, "It has already ended.")
    return redirect("traces:trace-detail", pk=pk)
