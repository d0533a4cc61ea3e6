"""Pages of plans."""

import json
import uuid
from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST

from engine.errors import InputError
from engine.inputs import parse
from engine.plan.answer import WHAT_IF_S
from engine.plan.request import PlanRequest
from webapp.accounts.models import Team
from webapp.accounts.permissions import may, require, require_somewhere, visible_or_404
from webapp.asked_once import fresh_key
from webapp.figures import download
from webapp.jobs.models import Run
from webapp.jobs.services import launch_placement, launch_plan
from webapp.jobs.tables import RunTable
from webapp.lists import bound_table, list_page
from webapp.planning import services
from webapp.planning.compose import initial_of
from webapp.planning.dry import dry_run, dry_run_document, refusal
from webapp.planning.forms import PlanForm, everywhere
from webapp.planning.measured_run import MeasuredRun, initial_of_run, measured
from webapp.planning.models import OPEN, Computation, ComputationKind, ComputationState, Plan
from webapp.planning.placement_predicted import option_on_placement
from webapp.planning.placing import placement_to_launch
from webapp.planning.plan_tables import (
    compared_fronts,
    compared_lines,
    differences,
    fronts_table,
    plan_file,
    side_by_side,
)
from webapp.planning.plan_work import answers_at_once
from webapp.planning.refinement import refinement_of
from webapp.planning.selectors import plan_context, refining_context, result_of
from webapp.planning.services.refinements import wants_second_look
from webapp.planning.tables import PlanFilterSet, PlanTable
from webapp.planning.what_if import asked
from webapp.queries import whole

MOST_COMPARED = 6
MOST_OFFERED = 50  # plans to choose from on the page of a comparison


def plan_list(request: HttpRequest) -> HttpResponse:
    asked_for = Computation.objects.visible_to(request.user).of(ComputationKind.PLAN).filter(state__in=OPEN)
    computing = asked_for.only("name", "state")[:MOST_OFFERED]
    return list_page(
        request, title="Plans", rows=Plan.objects.visible_to(request.user).for_lists(),
        filter_class=PlanFilterSet, table_class=PlanTable, create=("planning:plan-create", "New plan"),
        actions=[(reverse("planning:plan-compare"), "Compare plans")],
        template="planning/plan_list.html", context={"computing": computing},
        empty="No plans yet. A plan shows the iteration time and cost of each number of DP-cells.",
    )  # fmt: skip


def plan_create(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user)
    found = _measured(request)
    form = PlanForm(request.POST or None, user=request.user, initial=_initial(request, found))
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            return _make(
                request, values["team"], values["name"], form.request_document, form.training,
                at_once=form.at_once, key=values["idempotency_key"],
            )  # fmt: skip
        except InputError as error:
            form.take_input_error(error)
        except ValidationError as error:
            form.take_errors(error)
    context = {
        "title": "New plan", "form": form, "sections": form.sections, "submit_label": "Compute plan",
        "cancel_url": reverse("planning:plan-list"), "wide": True, "measured": found,
    }  # fmt: skip
    return render(request, "planning/plan_form.html", context, status=422 if form.errors else 200)


def _make(
    request: HttpRequest, team: Team, name: str, document: dict[str, Any], training: dict[str, Any] | None, *,
    at_once: bool, key: str,
) -> HttpResponse:  # fmt: skip
    """Make a plan while the page waits, or have the search worker make it; answers with the page to go to.

    Raises InputError and ValidationError as `services.create_plan`.
    """
    asked_for: dict[str, Any] = {
        "team": team,
        "name": name,
        "request": document,
        "training": training,
        "key": key,
    }
    if not at_once:
        computation = services.ask_for_plan(request.user, **asked_for)
        return redirect("planning:plan-computing", pk=computation.pk)
    plan = services.create_plan(request.user, **asked_for, budget_s=WHAT_IF_S)
    if wants_second_look(plan.result) and refinement_of(plan, plan.request) is None:
        services.ask_to_refine(request.user, plan, plan.request)
    return redirect("planning:plan-detail", pk=plan.pk)


def plan_computing(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """How far a plan is that the search worker computes; goes to the plan once it is there."""
    computation = _computing(request, pk)
    made, follows = computation.plan, bool(request.headers.get("HX-Request"))
    if made is not None:
        there = redirect("planning:plan-detail", pk=made.pk)
        return HttpResponse(headers={"HX-Redirect": there.url}) if follows else there
    context = {"computation": computation, "may_operate": may(request.user, computation.team)}
    page = "plan_computing_state" if follows else "plan_computing"
    return render(request, f"planning/{page}.html", context)


def _computing(request: HttpRequest, pk: uuid.UUID) -> Computation:
    rows = Computation.objects.of(ComputationKind.PLAN).select_related("team", "created_by", "plan")
    return visible_or_404(rows, request.user, pk=pk)


@require_POST
def plan_stop(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Stop computing a plan."""
    if not services.ask_to_cancel(request.user, _computing(request, pk)):
        messages.info(request, "It has already ended.")
    return redirect("planning:plan-computing", pk=pk)


def _measured(request: HttpRequest) -> MeasuredRun | None:
    """What the run named by ?run= measured, which the user must be able to read; None where none is named."""
    pk = whole(request.GET.get("run"))
    if pk is None:
        return None
    run = visible_or_404(Run.objects.select_related("job__team"), request.user, pk=pk)
    found = measured(run)
    if found is None:
        messages.info(request, f"{run} has no complete iteration yet, or its spans are no longer kept.")
    return found


def _initial(request: HttpRequest, found: MeasuredRun | None) -> dict[str, Any]:
    """The values of the plan named by ?from=, of one that was only asked for (?again=), which the user
    must be able to read, or of a run with what it measured; else the inventory's data centres."""
    if request.GET.get("again"):
        try:
            asked_for = _computing(request, uuid.UUID(request.GET["again"]))
        except ValueError:
            raise Http404 from None
        unmade = Plan(
            team=asked_for.team, name=asked_for.name, request=asked_for.request["document"],
            training=asked_for.request["training"],
        )  # fmt: skip
        return {**initial_of(unmade), "name": asked_for.name}
    source = whole(request.GET.get("from"))
    if source is None:
        return everywhere(request.user) if found is None else initial_of_run(found)
    return initial_of(visible_or_404(Plan.objects.all(), request.user, pk=source))


def plan_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """A plan, or a what-if of it (webapp/planning/what_if.py); for htmx the part that a change changes."""
    plan = _visible(request, pk)
    context = plan_context(plan, request.user, request.GET)
    context["launch_key"] = fresh_key()
    context["command"] = f"meridian plan plan-{pk}.json"
    context["document_name"] = f"plan-{pk}.json"
    query = f"?{context['what_query']}" if context["what_query"] else ""
    context["document_url"] = reverse("planning:plan-document", args=[pk]) + query
    context["address"] = request.build_absolute_uri(reverse("planning:plan-detail", args=[pk]) + query)
    selected, changed = context["selected"], context["what"].is_changed
    may_launch = selected and not changed and selected["launch"]["ok"]
    context["dry"] = _before_launch(context) if may_launch else None
    if may_launch and (why := refusal(context["dry"])):
        selected["launch"] |= {"ok": False, "reason": why}
    if request.headers.get("HX-Request"):
        response = render(request, "planning/plan_answer.html", context | {"fragment": True})
        response["HX-Replace-Url"] = context["address"]
        return response
    runs = Run.objects.visible_to(request.user).for_lists().filter(job__plan=plan)
    context["runs"] = bound_table(request, RunTable, runs, prefix="runs-")
    return render(request, "planning/plan_detail.html", context)


def _before_launch(context: dict[str, Any]) -> dict[str, Any]:
    """The dry run of the option shown, on its placement where a launch takes that; the label says which."""
    plan, selected, stock = context["plan"], context["selected"], context["stock"]
    index, launch = selected["index"], selected["launch"]
    placement = context["placing"].used
    if placement is None:
        return dry_run(plan, index, stock)
    try:
        placed = option_on_placement(plan, plan.result["options"][index], placement)
    except InputError as error:
        told = f"{error.allowed[:1].upper()}{error.allowed[1:]}: {error.value}."
        context["placing"] = replace(context["placing"], state="failed", reason=told)
        return dry_run(plan, index, stock)
    lack = stock.shortage(plan.team_id, placed.document, placed.seats)
    launch |= {"label": f"{launch['label']}, placed", "reason": lack.text if lack else ""}
    return dry_run_document(placed.document, plan.team, stock, placed.seats)


def _visible(request: HttpRequest, pk: int) -> Plan:
    return visible_or_404(Plan.objects.select_related("team", "created_by"), request.user, pk=pk)


def plan_document(request: HttpRequest, pk: int) -> HttpResponse:
    """The document that `meridian plan` answers."""
    text = json.dumps(asked(_visible(request, pk), request.GET).document, indent=2)
    return download(text, "application/json", f"plan-{pk}.json")


def plan_table(request: HttpRequest, pk: int, table: str) -> HttpResponse:
    """A table or chart of a plan as CSV."""
    document, result = result_of(_visible(request, pk), request.GET)
    text = plan_file(document, result, table, request.GET.get("option"))
    if text is None:
        raise Http404
    return download(text, "text/csv", f"plan-{pk}-{table}.csv")


@require_POST
def plan_refine(request: HttpRequest, pk: int) -> HttpResponse:
    """Have the plan, or the what-if that the body names, refined; answers with how far that is."""
    plan = _visible(request, pk)
    what = asked(plan, request.POST)
    known = refinement_of(plan, what.document)
    if known is None or known.state == ComputationState.CANCELLED:
        services.ask_to_refine(request.user, plan, what.document)
    else:
        require(request.user, plan.team)
    return _refining(request, plan, what.used)


@require_POST
def plan_refine_stop(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop refining the plan, or the what-if that the body names: what was found is kept."""
    plan = _visible(request, pk)
    require(request.user, plan.team)
    what = asked(plan, request.POST)
    known = refinement_of(plan, what.document)
    if known is not None:
        services.ask_to_cancel(request.user, known)
    return _refining(request, plan, what.used)


def plan_refining(request: HttpRequest, pk: int) -> HttpResponse:
    """How far the refinement of the plan, or of the what-if that the address names, is."""
    plan = _visible(request, pk)
    return _refining(request, plan, asked(plan, request.GET).used)


def _refining(request: HttpRequest, plan: Plan, used: dict[str, str]) -> HttpResponse:
    context = refining_context(plan, request.user, used)
    return render(request, "planning/plan_refining.html", context)


@require_POST
def plan_save(request: HttpRequest, pk: int) -> HttpResponse:
    """Keep the what-if that the body names as a plan of its own."""
    plan = _visible(request, pk)
    what = asked(plan, request.POST)
    back = redirect("planning:plan-detail", pk=pk)
    if what.error or not what.is_changed:
        messages.error(request, f"Not saved: {what.error or 'it is the same as the plan.'}")
        return back
    try:
        at_once = answers_at_once(parse(PlanRequest, what.document))
        key = request.POST.get("idempotency_key", "")
        return _make(
            request, plan.team, _name(request), what.document, plan.training, at_once=at_once, key=key
        )
    except (InputError, ValidationError) as error:
        said = " ".join(error.messages) if isinstance(error, ValidationError) else f"{error}."
        messages.error(request, f"Not saved: {said}")
        return redirect(f"{back.url}?{urlencode(what.used)}")


@require_POST
def plan_rename(request: HttpRequest, pk: int) -> HttpResponse:
    plan = _visible(request, pk)
    try:
        services.rename_plan(request.user, plan, _name(request))
    except ValidationError as error:
        messages.error(request, f"Not renamed: {' '.join(error.messages)}")
    return redirect("planning:plan-detail", pk=pk)


@require_POST
def plan_clone(request: HttpRequest, pk: int) -> HttpResponse:
    copied = services.clone_plan(request.user, _visible(request, pk))
    return redirect("planning:plan-detail", pk=copied.pk)


def plan_compare(request: HttpRequest) -> HttpResponse:
    """Plans side by side: those that the address names (?plan=1&plan=2), at most MOST_COMPARED."""
    visible = Plan.objects.visible_to(request.user).select_related("team")
    wanted = [pk for text in request.GET.getlist("plan") if (pk := whole(text)) is not None]
    found = {plan.pk: plan for plan in visible.filter(pk__in=wanted)}
    plans = [found[pk] for pk in dict.fromkeys(wanted) if pk in found][:MOST_COMPARED]
    table = side_by_side(plans)
    if request.GET.get("as") == "csv":
        asked_for = fronts_table(plans) if request.GET.get("table") == "fronts" else table
        return download(asked_for.as_csv(), "text/csv", f"plans-{asked_for.name}.csv")
    context = {
        "title": "Compare plans", "plans": plans, "lines": compared_lines(table),
        "differences": differences(plans),
        "offered": visible.order_by("-created_at").only("name", "team", "created_at")[:MOST_OFFERED],
        "most": MOST_COMPARED, "query": request.GET.urlencode(), "charts": compared_fronts(plans),
    }  # fmt: skip
    return render(request, "planning/plan_compare.html", context)


@require_POST
def plan_launch(request: HttpRequest, pk: int) -> HttpResponse:
    plan = _visible(request, pk)
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
    if why := refusal(dry_run_document(placed.document, plan.team, seats=placed.seats)):
        raise InputError("option", index, why.rstrip("."))
    return launch_placement(user, placement, name=plan.name, placed=placed, key=key)


def _name(request: HttpRequest) -> str:
    return request.POST.get("name", "").replace("\0", "").strip()


def _index(request: HttpRequest, plan: Plan) -> int:
    text = request.POST.get("option", "")
    index = whole(text, len(plan.result["options"]) - 1)
    if index is None:
        raise InputError("option", text, "must be the index of an option of this plan")
    return index
