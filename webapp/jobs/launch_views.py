"""What people decide about runs: stop, try again, try with other values, and asking beforehand."""

import secrets
import uuid
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from engine.errors import InputError
from webapp.accounts.permissions import require, visible_or_404
from webapp.jobs.document import train_document
from webapp.jobs.forms import CloneForm, JobForm
from webapp.jobs.models import Run
from webapp.jobs.placed_form import PlacedForm
from webapp.jobs.services import cancel_run, clone_run, launch_placement, launch_plan, retry_run
from webapp.planning.dry import dry_run
from webapp.planning.models import Plan
from webapp.planning.placement_selectors import launch_values, placements
from webapp.queries import whole


def _run(request: HttpRequest, pk: int) -> Run:
    return visible_or_404(Run.objects.select_related("job__team", "job__plan"), request.user, pk=pk)


def fresh_key() -> str:
    """An idempotency key for a form."""
    return secrets.token_urlsafe(24)


@require_POST
def run_cancel(request: HttpRequest, pk: int) -> HttpResponse:
    cancel_run(request.user, _run(request, pk))
    return redirect("jobs:run-detail", pk=pk)


@require_POST
def run_retry(request: HttpRequest, pk: int) -> HttpResponse:
    run = _run(request, pk)
    try:
        key = request.POST.get("idempotency_key", "")
        again = retry_run(request.user, run, key=key, resume=request.POST.get("resume") == "1")
    except InputError as error:
        messages.error(request, f"Not launched: {error.value} {error.allowed}.")
        return redirect("jobs:run-detail", pk=pk)
    return redirect("jobs:run-detail", pk=again.pk)


def run_clone(request: HttpRequest, pk: int) -> HttpResponse:
    """The launch form filled in from a run; launches what was changed, or says what that would meet."""
    run = _run(request, pk)
    require(request.user, run.job.team)
    form = CloneForm(request.POST or None, run=run, initial={"idempotency_key": fresh_key()})
    if request.method == "POST" and form.is_valid() and "check" not in request.POST:
        try:
            made = clone_run(
                request.user, run, name=form.cleaned_data["name"], document=form.document,
                key=form.cleaned_data["idempotency_key"],
            )  # fmt: skip
            return redirect("jobs:run-detail", pk=made.pk)
        except InputError as error:
            form.take_input_error(error)
    return render(
        request, "jobs/run_clone.html", _clone_context(run, form), status=422 if form.errors else 200
    )


def _clone_context(run: Run, form: CloneForm) -> dict[str, Any]:
    return {
        "title": f"Clone {run}",
        "note": "a new job with the values below; data centres, links and model stay as they were",
        "run": run,
        "form": form,
        "sections": form.sections,
        "cancel_url": reverse("jobs:run-detail", args=[run.pk]),
        "wide": True,
    }


def plan_launch_form(request: HttpRequest, pk: int, option: int) -> HttpResponse:
    """The launch form of an option of a plan: its values first, and what a plan does not say."""
    plan = visible_or_404(Plan.objects.select_related("team"), request.user, pk=pk)
    require(request.user, plan.team)
    if option >= len(plan.result["options"]):
        raise Http404
    try:
        document = train_document(plan.request, plan.result["options"][option], plan.training or {})
    except InputError as error:
        messages.error(request, f"Cannot be launched: {error}.")
        return redirect("planning:plan-detail", pk=pk)
    initial = {"name": plan.name, "idempotency_key": fresh_key()}
    form = JobForm(request.POST or None, document=document, team=plan.team, initial=initial)
    if request.method == "POST" and form.is_valid() and "check" not in request.POST:
        try:
            made = launch_plan(
                request.user, plan, option, name=form.cleaned_data["name"], document=form.document,
                key=form.cleaned_data["idempotency_key"],
            )  # fmt: skip
            return redirect("jobs:run-detail", pk=made.pk)
        except InputError as error:
            form.take_input_error(error)
    context = {
        "title": f"Launch {plan.name}", "form": form, "sections": form.sections, "wide": True,
        "note": f"D = {plan.result['options'][option]['dp_cells']}; where its stages lie is the plan's",
        "cancel_url": f"{reverse('planning:plan-detail', args=[pk])}?option={option}",
    }  # fmt: skip
    return render(request, "jobs/run_clone.html", context, status=422 if form.errors else 200)


def placement_launch(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The launch form of a placement: its groups and pipelines become the devices of a run."""
    placement = visible_or_404(placements().select_related("team"), request.user, pk=pk)
    require(request.user, placement.team)
    initial = {**launch_values(placement, request.user), "idempotency_key": fresh_key()}
    form = PlacedForm(request.POST or None, placement=placement, initial=initial)
    if request.method == "POST" and form.is_valid() and "check" not in request.POST:
        try:
            made = launch_placement(
                request.user, placement, name=form.cleaned_data["name"], training=form.training,
                key=form.cleaned_data["idempotency_key"],
            )  # fmt: skip
            return redirect("jobs:run-detail", pk=made.pk)
        except InputError as error:
            form.take_input_error(error)
    context = {
        "title": f"Launch {placement.name}", "form": form, "sections": form.sections, "wide": True,
        "note": "a job whose ranks compute on the GPUs where the placement puts them",
        "cancel_url": reverse("placement:placement-detail", args=[pk]),
    }  # fmt: skip
    return render(request, "jobs/run_clone.html", context, status=422 if form.errors else 200)


@require_POST
def run_dry(request: HttpRequest) -> JsonResponse:
    """What a launch of `option` of `plan` would meet; changes nothing."""
    plan_id, option = request.POST.get("plan", ""), request.POST.get("option", "")
    plan = visible_or_404(Plan.objects.select_related("team"), request.user, pk=whole(plan_id) or 0)
    index = whole(option, len(plan.result["options"]) - 1)
    if index is None:
        return JsonResponse({"ok": False, "error": "option: must be the index of an option"}, status=400)
    return JsonResponse(dry_run(plan, index))
