"""The pages of replays: what a trace of requests would sell of bubbles, at which load, queue and order."""

import json
import uuid
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from webapp.accounts.permissions import may, require_somewhere
from webapp.common.figures import download
from webapp.common.lists import list_page
from webapp.common.markup import as_bytes
from webapp.computations.filters import ComputationFilterSet
from webapp.prefill import services
from webapp.prefill.replays.forms import ReplayForm
from webapp.prefill.replays.pages import pages
from webapp.prefill.replays.selectors import first_values, listed, result_context
from webapp.prefill.replays.tables import ReplayTable


def replay_list(request: HttpRequest) -> HttpResponse:
    return list_page(
        request,
        title="Replays",
        rows=listed(request.user),
        filter_class=ComputationFilterSet,
        table_class=ReplayTable,
        create=("prefill:replay-create", "Replay requests"),
        bulk=pages.archive.bulk(request),
        empty="No replays yet. A replay offers a trace of prompts to the bubbles of a run, a plan or a "
        "schedule, and shows what would be sold at which load.",
    )


def replay_create(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user)
    key = request.GET.get("from")
    initial = first_values(request.user, key) if key else {}
    form = ReplayForm(request.POST or None, request.FILES or None, user=request.user, initial=initial)
    return pages.ask(
        request,
        form,
        lambda values: services.start_replay(
            request.user,
            team=values["team"],
            name=values["name"],
            request=form.question,
            files=[values["file"]] if values["file"] else [],
            key=values["idempotency_key"],
        ),
        template="prefill/replay_form.html",
        title="Replay requests",
        submit="Replay",
        most=as_bytes(settings.LARGEST_TRACE_BYTES),
    )


@require_GET
def replay_detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    part = bool(request.headers.get("HX-Request"))
    computation = pages.visible(request, pk, *(["answer"] if part else []))
    context: dict[str, Any] = {
        "computation": computation,
        "may_operate": may(request.user, computation.team),
    }
    if part and not computation.is_open:
        return HttpResponse(headers={"HX-Refresh": "true"})
    if part:
        return render(request, "prefill/replay_computing.html", context)
    name = f"replay-{pk}.json"
    context |= result_context(computation) | {
        "command": f"meridian prefill replay {name}",
        "document_name": name,
        "document_url": reverse("prefill:replay-document", args=[pk]),
    }
    return render(request, "prefill/replay_detail.html", context)


@require_GET
def replay_document(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The document that `meridian prefill replay` answers, of the highest load and the first order."""
    request_document = pages.visible(request, pk, "answer").request
    document = request_document["document"]
    shipped = (
        request_document["trace"]
        if request_document["trace"] and ":" not in request_document["trace"]
        else None
    )
    document |= {"trace": shipped or request_document["trace_name"], "load": request_document["loads"][-1]}
    document["controller"] |= {"order": request_document["orders"][0]}
    return download(json.dumps(document, indent=2), "application/json", f"replay-{pk}.json")


@require_GET
def replay_table(request: HttpRequest, pk: uuid.UUID, table: str) -> HttpResponse:
    """The figures of every order and load as CSV."""
    for each in result_context(pages.visible(request, pk))["tables"]:
        if each.name == table:
            return download(each.as_csv(), "text/csv", f"{table}-{pk}.csv")
    raise Http404
