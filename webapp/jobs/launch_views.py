"""What people decide about runs: stop, try again, try with other values, and asking beforehand."""

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from engine.errors import InputError
from engine.inputs import parse
from engine.plan.swap.request import SwapRequest
from webapp.accounts.permissions import require, require_somewhere, visible_or_404
from webapp.common.asked_once import fresh_key
from webapp.common.queries import whole
from webapp.computations.models import Computation
from webapp.design.swap_page import SwapForm as SwapPlanForm
from webapp.inventory.models import SamplePreview
from webapp.jobs.clone_form import CloneForm
from webapp.jobs.dry import dry_run, dry_run_document, refusal
from webapp.jobs.forms import JobForm
from webapp.jobs.models import Run
from webapp.jobs.placed_form import PlacedForm
from webapp.jobs.samples import preview_of
from webapp.jobs.services import (
    cancel_run,
    clone_run,
    launch_placement,
    launch_plan,
    launch_replicas,
    launch_swap,
    retry_run,
)
from webapp.jobs.swap_document import values_of_plan
from webapp.jobs.swap_form import SwapCloneForm, SwapForm
from webapp.placement.pages import pages
from webapp.placement.placed import PlacedJob, option_on_placement
from webapp.placement.placing import placement_to_launch
from webapp.placement.selectors import launch_values
from webapp.planning.cross_dc import own_comparison
from webapp.planning.document import train_document
from webapp.planning.models import Plan
from webapp.planning.replicas import replicas_document
from webapp.planning.trained import trained_words


def _run(request: HttpRequest, pk: int) -> Run:
    return visible_or_404(Run.objects.select_related("job__team", "job__plan"), request.user, pk=pk)


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
    initial, checkpoint = {"idempotency_key": fresh_key()}, request.GET.get("checkpoint", "")
    form_of = SwapCloneForm if run.job.swaps else CloneForm
    form = form_of(request.POST or None, run=run, checkpoint=checkpoint, initial=initial)
    if form.lost_checkpoint:
        messages.warning(request, "That checkpoint cannot be used: it is gone or torn. Choose another one.")
    return _launch_page(
        request,
        form,
        lambda values: clone_run(request.user, run, document=form.document, **values),
        title=f"Clone {run}",
        run=run,
        trains=trained_words(run.job.document, run.job.plan_copy.get("request")),
        cancel_url=reverse("jobs:run-detail", args=[pk]),
        note="A new job with the values below. Data centres, links and model stay the same.",
    )


def _launch_page(
    request: HttpRequest, form: JobForm, launch: Callable[[dict[str, Any]], Run], **context: Any
) -> HttpResponse:
    """Launch what a valid form asks for, unless it is only checked; else the form and what that would meet.

    launch : takes the job's `name`, the idempotency `key` and the `priority` in the queue.
    """
    if "preview" in request.POST:
        return _preview(request, form, context)
    if request.method == "POST" and form.is_valid() and "check" not in request.POST:
        cleaned = form.cleaned_data
        values = {
            "name": cleaned["name"],
            "key": cleaned["idempotency_key"],
            "priority": int(cleaned["priority"]),
        }
        try:
            return redirect("jobs:run-detail", pk=launch(values).pk)
        except InputError as error:
            form.take_input_error(error)
    return _form_page(request, form, context)


def _form_page(request: HttpRequest, form: JobForm, context: dict[str, Any]) -> HttpResponse:
    shown = {"form": form, "sections": form.sections, "wide": True, **context}
    return render(request, "jobs/run_clone.html", shown, status=422 if form.errors else 200)


def _preview(request: HttpRequest, form: JobForm, context: dict[str, Any]) -> HttpResponse:
    """Ask a node for the first samples of the job of a valid form, and lead to its answer."""
    if form.is_valid():
        try:
            row = preview_of(request.user, form.team, form.document, form.gpu_of_rank)
            return redirect("jobs:run-samples", pk=row.pk)
        except InputError as error:
            form.add_error(None, f"No samples: {_why(error)}.")
    if request.headers.get("HX-Request"):
        return render(request, "jobs/samples_refused.html", {"form": form})
    return _form_page(request, form, context)


@require_GET
def run_samples(request: HttpRequest, pk: int) -> HttpResponse:
    """The samples that a node has read, asked for again meanwhile; without a script a page of their own."""
    rows = SamplePreview.objects.select_related("node__dc__team")
    preview = visible_or_404(rows, request.user, pk=pk)
    require(request.user, preview.node.dc.team)
    name = "samples" if request.headers.get("HX-Request") else "samples_page"
    return render(request, f"jobs/{name}.html", {"preview": preview})


@require_POST
def plan_launch(request: HttpRequest, pk: int) -> HttpResponse:
    """Launch an option of a plan as it is, on its placement where the body names that."""
    plan = visible_or_404(Plan.objects.select_related("team"), request.user, pk=pk)
    try:
        key, index = request.POST.get("idempotency_key", ""), _index(request, plan)
        require(request.user, plan.team)
        placement = placement_to_launch(plan, index, request.POST.get("placement", ""))
        if placement is None:
            run = _launch_option(request.user, plan, index, key)
        else:
            run = _launch_placed(request.user, plan, index, placement, key)
    except InputError as error:
        messages.error(request, f"Not launched: {error}.")
        return redirect("planning:plan-detail", pk=pk)
    return redirect("jobs:run-detail", pk=run.pk)


def _launch_option(user: Any, plan: Plan, index: int, key: str) -> Run:
    if why := refusal(dry_run(plan, index)):
        raise InputError("option", index, why.rstrip("."))
    return launch_plan(user, plan, index, key=key)


def _launch_placed(user: Any, plan: Plan, index: int, placement: Computation, key: str) -> Run:
    placed = option_on_placement(plan, plan.result["options"][index], placement)
    if why := refusal(
        dry_run_document(placed.document, plan.team, gpu_of_rank=placed.gpu_of_rank, planned=plan.request)
    ):
        raise InputError("option", index, why.rstrip("."))
    return launch_placement(user, placement, name=plan.name, placed=placed, key=key)


@require_POST
def plan_launch_replicas(request: HttpRequest, pk: int) -> HttpResponse:
    """Launch the data parallelism with which the plan was compared."""
    plan = visible_or_404(Plan.objects.select_related("team"), request.user, pk=pk)
    require(request.user, plan.team)
    try:
        data = own_comparison(plan)["data"]
        document = replicas_document(plan.request, data, plan.training)
        if why := refusal(dry_run_document(document, plan.team, planned=plan.request)):
            raise InputError("data", None, why.rstrip("."))
        key = request.POST.get("idempotency_key", "")
        run = launch_replicas(request.user, plan, data, document, key=key)
    except InputError as error:
        messages.error(request, f"Not launched: {_why(error)}.")
        return redirect("planning:plan-detail", pk=pk)
    return redirect("jobs:run-detail", pk=run.pk)


def _index(request: HttpRequest, plan: Plan) -> int:
    text = request.POST.get("option", "")
    index = whole(text, len(plan.result["options"]) - 1)
    if index is None:
        raise InputError("option", text, "must be the index of an option of this plan")
    return index


def plan_launch_form(request: HttpRequest, pk: int, option: int) -> HttpResponse:
    """The launch form of an option of a plan: its values first, and what a plan does not say; on the
    placement of the option that the address names (?placement=)."""
    plan = visible_or_404(Plan.objects.select_related("team"), request.user, pk=pk)
    require(request.user, plan.team)
    if option >= len(plan.result["options"]):
        raise Http404
    chosen, gpu_of_rank = plan.result["options"][option], list[list[Any]]()
    try:
        placement = placement_to_launch(plan, option, request.GET.get("placement", ""))
        if placement is None:
            document = train_document(plan.request, chosen, plan.training)
        else:
            placed = option_on_placement(plan, chosen, placement)
            document, gpu_of_rank = placed.document, placed.gpu_of_rank
    except InputError as error:
        messages.error(request, f"Cannot be launched: {_why(error)}.")
        return redirect("planning:plan-detail", pk=pk)
    reserved = plan.request["job"].get("prefill") or {}
    initial = {"name": plan.name, "idempotency_key": fresh_key()}
    initial |= {f"prefill_{name}": gb for name, gb in reserved.items()}
    form = JobForm(
        request.POST or None,
        document=document,
        team=plan.team,
        gpu_of_rank=gpu_of_rank,
        initial=initial,
        planned=plan.request,
    )

    def launch(values: dict[str, Any]) -> Run:
        if placement is None:
            return launch_plan(request.user, plan, option, document=form.document, **values)
        changed = PlacedJob(document=form.document, gpu_of_rank=gpu_of_rank)
        return launch_placement(request.user, placement, placed=changed, **values)

    return _launch_page(
        request,
        form,
        launch,
        title=f"Launch {plan.name}",
        cancel_url=f"{reverse('planning:plan-detail', args=[pk])}?option={option}",
        note=_note(chosen, reserved, placement),
        trains=trained_words(document, plan.request),
    )


def _note(option: dict[str, Any], reserved: dict[str, Any], placement: Computation | None) -> str:
    """What stays the plan's; and, where it keeps memory for prefill, what is left to be said."""
    where = "the plan's own" if placement is None else f"that of {placement.name}"
    note = f"D = {option['dp_cells']}; the placement of its stages is {where}"
    if not reserved:
        return note
    room = (
        f"{reserved['weight_budget_gb']:g} GB for weights and {reserved['kv_budget_gb']:g} GB for KV caches"
    )
    return f"{note}. Each GPU keeps {room} free: enter a model under Prefill to sell the bubbles"


def placement_launch(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The launch form of a placement: its groups and pipelines become the devices of a run."""
    placement = pages.visible(request, pk)
    require(request.user, placement.team)
    initial = {**launch_values(placement, request.user), "idempotency_key": fresh_key()}
    try:
        form = PlacedForm(request.POST or None, placement=placement, initial=initial)
    except InputError as error:
        messages.error(request, f"Cannot be launched: {_why(error)}.")
        return redirect("placement:placement-detail", pk=pk)
    return _launch_page(
        request,
        form,
        lambda values: launch_placement(request.user, placement, placed=form.placed, **values),
        title=f"Launch {placement.name}",
        cancel_url=reverse("placement:placement-detail", args=[pk]),
        note="A job whose ranks run on the GPUs that the placement chose.",
    )


def swap_launch(request: HttpRequest) -> HttpResponse:
    """The launch form of workers that swap; what the address asks of a swap plan fills it in."""
    require_somewhere(request.user)
    initial = {**_of_swap_plan(request), "idempotency_key": fresh_key()}
    try:
        form = SwapForm(request.POST or None, user=request.user, initial=initial)
    except InputError as error:
        messages.error(request, f"Cannot be launched: {_why(error)}.")
        return redirect("jobs:run-list")
    return _launch_page(
        request,
        form,
        lambda values: launch_swap(request.user, form.cleaned_data["team"], document=form.document, **values),
        title="Launch workers that swap",
        cancel_url=reverse("jobs:run-list"),
        note="Each worker trains the whole model on one GPU, part by part.",
    )


def _of_swap_plan(request: HttpRequest) -> dict[str, Any]:
    """The first values of the form, from the question of a swap plan in the address, if it has one."""
    if not request.GET:
        return {}
    question = SwapPlanForm(request.GET)
    try:
        values = values_of_plan(parse(SwapRequest, question.document)) if question.is_valid() else None
    except InputError:  # values that do not go together
        values = None
    if values is None:
        messages.warning(request, "The swap plan of this address cannot be read: the form begins without it.")
        return {}
    if "layers" not in values:
        messages.warning(request, "Workers that swap train GPT and Llama shapes: enter one for this model.")
    return values


@require_POST
def run_dry(request: HttpRequest) -> JsonResponse:
    """What a launch of `option` of `plan` would meet; changes nothing."""
    plan_id, option = request.POST.get("plan", ""), request.POST.get("option", "")
    plan = visible_or_404(Plan.objects.select_related("team"), request.user, pk=whole(plan_id) or 0)
    index = whole(option, len(plan.result["options"]) - 1)
    if index is None:
        return JsonResponse({"ok": False, "error": "option: must be the index of an option"}, status=400)
    return JsonResponse(dry_run(plan, index))


def _why(error: InputError) -> str:
    """The error in words; one about what is missing has no value to show."""
    return error.allowed if error.value is None else str(error)
