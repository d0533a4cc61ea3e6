"""Pages of plans."""

import json
import secrets
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from engine.errors import InputError
from webapp.accounts.permissions import require_somewhere, visible_or_404
from webapp.jobs.models import Run
from webapp.jobs.services import launch_plan
from webapp.jobs.tables import RunTable
from webapp.lists import bound_table, list_page
from webapp.planning.compose import initial_of
from webapp.planning.dry import dry_run
from webapp.planning.forms import PlanForm
from webapp.planning.models import Plan
from webapp.planning.selectors import plan_context
from webapp.planning.services import create_plan
from webapp.planning.tables import PlanFilterSet, PlanTable


def plan_list(request: HttpRequest) -> HttpResponse:
    return list_page(
        request, title="Plans", rows=Plan.objects.visible_to(request.user).select_related("created_by"),
        filter_class=PlanFilterSet, table_class=PlanTable, create=("planning:plan-create", "New plan"),
        empty="No plan yet. A plan shows what each number of DP cells takes and costs.",
    )  # fmt: skip


def plan_create(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user)
    form = PlanForm(request.POST or None, user=request.user, initial=_initial(request))
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            plan = create_plan(
                request.user, team=values["team"], name=values["name"], request=form.request_document,
                training=form.training,
            )  # fmt: skip
            return redirect("planning:plan-detail", pk=plan.pk)
        except InputError as error:
            form.take_input_error(error)
        except ValidationError as error:
            form.take_errors(error)
    context = {
        "title": "New plan", "form": form, "sections": form.sections, "submit_label": "Compute plan",
        "cancel_url": reverse("planning:plan-list"), "wide": True,
    }  # fmt: skip
    return render(request, "planning/plan_form.html", context, status=422 if form.errors else 200)


def _initial(request: HttpRequest) -> dict[str, Any]:
    """The values of the plan named by ?from=, which the user must be able to read; else none."""
    source = request.GET.get("from", "")
    if not source.isdigit():
        return {}
    return initial_of(visible_or_404(Plan.objects.all(), request.user, pk=int(source)))


def plan_detail(request: HttpRequest, pk: int) -> HttpResponse:
    plan = visible_or_404(Plan.objects.select_related("team", "created_by"), request.user, pk=pk)
    context = plan_context(plan, request.user, request.GET.get("option"))
    context["launch_key"] = secrets.token_urlsafe(24)
    context["command"] = f"meridian plan plan-{pk}.json"
    context["document_name"] = f"plan-{pk}.json"
    context["document_url"] = reverse("planning:plan-document", args=[pk])
    selected = context["selected"]
    context["dry"] = dry_run(plan, selected["index"]) if selected and selected["launch"]["ok"] else None
    runs = Run.objects.visible_to(request.user).for_lists().filter(job__plan=plan)
    context["runs"] = bound_table(request, RunTable, runs, prefix="runs-")
    return render(request, "planning/plan_detail.html", context)


def plan_document(request: HttpRequest, pk: int) -> HttpResponse:
    """The document that `meridian plan` answers."""
    plan = visible_or_404(Plan.objects.all(), request.user, pk=pk)
    response = HttpResponse(json.dumps(plan.request, indent=2), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="plan-{pk}.json"'
    return response


@require_POST
def plan_launch(request: HttpRequest, pk: int) -> HttpResponse:
    plan = visible_or_404(Plan.objects.select_related("team"), request.user, pk=pk)
    try:
        key = request.POST.get("idempotency_key", "")
        run = launch_plan(request.user, plan, _index(request, plan), key=key)
    except InputError as error:
        messages.error(request, f"Not launched: {error}.")
        return redirect("planning:plan-detail", pk=pk)
    return redirect("jobs:run-detail", pk=run.pk)


def _index(request: HttpRequest, plan: Plan) -> int:
    text = request.POST.get("option", "")
    if not text.isdigit() or int(text) >= len(plan.result["options"]):
        raise InputError("option", text, "must be the index of an option of this plan")
    return int(text)
