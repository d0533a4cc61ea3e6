"""The Schedules pages: policies side by side on one scenario, and sweeps."""

import csv
import io
import json
import uuid
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.shortcuts import render
from django.urls import reverse

from webapp.accounts.permissions import may, require_somewhere
from webapp.common.figures import download
from webapp.common.lists import list_page
from webapp.computations import services
from webapp.computations.filters import ComputationFilterSet
from webapp.computations.models import Computation, ComputationKind
from webapp.schedules.forms import ScheduleForm
from webapp.schedules.pages import pages
from webapp.schedules.selectors import (
    drawn_timeline,
    initial_from,
    result_context,
    schedule_file,
    timed,
)
from webapp.schedules.tables import ComputationTable


def schedule_list(request: HttpRequest) -> HttpResponse:
    return list_page(
        request,
        title="Schedules",
        rows=pages.rows().visible_to(request.user).select_related("created_by").defer("answer"),
        filter_class=ComputationFilterSet,
        table_class=ComputationTable,
        create=("schedules:schedule-create", "Compare schedules"),
        bulk=pages.archive.bulk(request),
        empty="No comparisons yet. A comparison shows the schedule of each policy for the same cell, and "
        "how far each is from the best possible one.",
    )


def schedule_create(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user)
    initial = initial_from(request)
    form = ScheduleForm(request.POST or None, user=request.user, initial=initial)
    return pages.ask(
        request,
        form,
        lambda values: services.start(
            request.user,
            team=values["team"],
            kind=form.kind,
            name=values["name"],
            request=form.computation,
            key=values["idempotency_key"],
        ),
        template="schedules/schedules_form.html",
        title="Compare schedules",
        submit="Compare",
        wide=True,
    )


def schedule_detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    computation = pages.visible(request, pk)
    context = result_context(computation) | {
        "computation": computation,
        "may_operate": may(request.user, computation.team),
        "command": _command(computation),
        "document_name": f"{computation.kind}-{computation.pk}.json",
        "document_url": reverse("schedules:schedule-document", args=[pk]),
    }
    if request.headers.get("HX-Request"):
        return render(request, "schedules/schedules_result.html", context)
    return render(request, "schedules/schedules_detail.html", context)


def _command(computation: Computation) -> str:
    file = f"{computation.kind}-{computation.pk}.json"
    if computation.kind == ComputationKind.SWEEP:
        return f"meridian sweep {file}"
    return f"meridian simulate {file} --compare {','.join(computation.request['policies'])}"


def schedule_document(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The document that the command line answers."""
    computation = pages.visible(request, pk)
    sweeps = computation.kind == ComputationKind.SWEEP
    document = computation.request if sweeps else computation.request["scenario"]
    return download(
        json.dumps(document, indent=2), "application/json", f"{computation.kind}-{computation.pk}.json"
    )


def schedule_timeline(request: HttpRequest, pk: uuid.UUID, policy: str) -> HttpResponse:
    """Lanes, links and spans of one policy's schedule, for the canvas."""
    return JsonResponse(drawn_timeline(pages.visible(request, pk), _policy(request, pk, policy)))


def schedule_download(request: HttpRequest, pk: uuid.UUID, policy: str, form: str) -> HttpResponse:
    """One policy's schedule as text, its spans as CSV, its trace for Perfetto, or what another runtime reads
    (400 with the first op that differs if it cannot run this order)."""
    computation = pages.visible(request, pk)
    result = timed(computation, _policy(request, pk, policy))
    try:
        file = schedule_file(result, form, computation.request.get("unit", "slot"))
    except ValueError as error:
        return HttpResponseBadRequest(f"{form}: {error}", content_type="text/plain; charset=utf-8")
    if file is None:
        raise Http404
    content, content_type, suffix = file
    return download(content, content_type, f"{policy}-{computation.pk}.{suffix}")


def _policy(request: HttpRequest, pk: uuid.UUID, policy: str) -> dict[str, Any]:
    results = (pages.visible(request, pk).answer or {}).get("results", [])
    row = next((row for row in results if row["policy"] == policy and row.get("schedule")), None)
    if row is None:
        raise Http404
    return row


def schedule_table(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The figures as CSV: a row per policy, or per value and policy."""
    computation = pages.visible(request, pk)
    rows = result_context(computation)["rows"]
    if not rows:
        raise Http404
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=_columns(rows), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return download(text.getvalue(), "text/csv", f"{computation.kind}-{computation.pk}.csv")


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    plain = (int, float, str, bool, type(None))
    return [
        name
        for name in rows[0]
        if name != "schedule" and all(isinstance(row.get(name), plain) for row in rows)
    ]
