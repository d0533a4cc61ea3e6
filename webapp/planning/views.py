"""Pages of plans."""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from webapp.common.additions import extended
from webapp.common.asked_once import fresh_key
from webapp.common.editing import BEGAN, overtaken
from webapp.common.figures import download
from webapp.common.lists import list_page
from webapp.common.queries import whole
from webapp.common.sources import first_values
from webapp.computations import services as computations
from webapp.computations.models import OPEN, Computation, ComputationKind, ComputationState
from webapp.computations.pages import stop
from webapp.planning import archive, services
from webapp.planning.compose import initial_of
from webapp.planning.cross_dc import cross_dc_context
from webapp.planning.forms import PlanForm, everywhere
from webapp.planning.missing import missing, to_join
from webapp.planning.model_fields import ModelFields, figures_for, memory_for
from webapp.planning.models import Plan
from webapp.planning.plan_tables import (
    compared_fronts,
    compared_lines,
    differences,
    fronts_table,
    plan_file,
    side_by_side,
)
from webapp.planning.room import room_of
from webapp.planning.selectors import plan_context, refining_context, result_of
from webapp.planning.services.work import wants_second_look
from webapp.planning.tables import PlanFilterSet, PlanTable
from webapp.planning.what_if import WhatIf, what_if_of
from webapp.planning.work import answers_at_once

MOST_COMPARED = 6
MOST_OFFERED = 50  # plans to choose from on the page of a comparison


def plan_list(request: HttpRequest) -> HttpResponse:
    asked_for = Computation.objects.visible_to(request.user).of(ComputationKind.PLAN).filter(state__in=OPEN)
    computing = asked_for.only("name", "state")[:MOST_OFFERED]
    return list_page(
        request,
        title="Plans",
        rows=Plan.objects.visible_to(request.user).for_lists(),
        filter_class=PlanFilterSet,
        table_class=PlanTable,
        create=("planning:plan-create", "New plan"),
        actions=[(reverse("planning:plan-compare"), "Compare plans")],
        template="planning/plan_list.html",
        context={"computing": computing},
        bulk=archive.pages.bulk(request),
        empty="No plans yet. A plan shows the iteration time and cost of each number of DP-cells.",
    )


def plan_create(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user)
    offered, notice = first_values("plan", request)
    form = PlanForm(
        request.POST or None, request.FILES or None, user=request.user, initial=_initial(request, offered)
    )
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            return _make(
                request,
                values["team"],
                values["name"],
                form.request_document,
                form.training,
                at_once=form.at_once,
                key=values["idempotency_key"],
            )
        except InputError as error:
            form.take_input_error(error)
        except ValidationError as error:
            form.take_errors(error)
    context = {
        "title": "New plan",
        "form": form,
        "sections": form.sections,
        "submit_label": "Compute plan",
        "cancel_url": reverse("planning:plan-list"),
        "wide": True,
        **notice,
    }
    return render(request, "planning/plan_form.html", context, status=422 if form.errors else 200)


@require_POST
def plan_model(request: HttpRequest) -> HttpResponse:
    """What the model is that the form has chosen, as a part of its page."""
    require_somewhere(request.user)
    form = ModelFields(request.POST)
    form.full_clean()
    values = form.cleaned_data
    context: dict[str, Any] = {"figures": None, "error": " ".join(map(str, form.errors.get("config", [])))}
    if not form.errors and values["model"]:
        layout = _first_layout(request.POST)
        # Some presets have as many layers as the plan has stages.
        figures = figures_for(values["model"], layout["stages"] if layout else 1)
        assumed = [(name, json.dumps(value)) for name, value in figures.assumed.items()]
        context |= {"figures": figures, "assumed": assumed}
        if layout is not None:
            context |= {**layout, "memory_bytes": memory_for(values["model"], **layout)}
            context["room"] = room_of(request.user, request.POST, values["model"], layout)
    return render(request, "planning/model_figures.html", context)


def _first_layout(post: Mapping[str, str]) -> dict[str, int] | None:
    """The first of each number that the plan's form has of a layout; None where one is missing or wrong."""
    fields = {"stages": "partitions", "tp": "tp", "micro_batch": "model_micro_batch", "cp": "cp", "ep": "ep"}
    try:
        values = {of: PlanForm.base_fields[name].clean(post.get(name, "")) for of, name in fields.items()}
    except ValidationError:
        return None
    degrees = {name: values.pop(name) or 1 for name in ("cp", "ep")}
    return {of: value[0] for of, value in values.items()} | degrees if all(values.values()) else None


def _make(
    request: HttpRequest,
    team: Team,
    name: str,
    document: dict[str, Any],
    training: dict[str, Any] | None,
    *,
    at_once: bool,
    key: str,
) -> HttpResponse:
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
    if wants_second_look(plan.result) and plan.latest(ComputationKind.REFINE, plan.request) is None:
        services.ask_to_refine(request.user, plan, plan.request)
    return redirect("planning:plan-detail", pk=plan.pk)


def plan_computing(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """How far a plan is that the search worker computes; goes to the plan once it is there."""
    computation = _computing(request, pk)
    plan = Plan.objects.filter(work__computation=computation).first()
    follows = bool(request.headers.get("HX-Request"))
    if plan is not None:
        there = redirect("planning:plan-detail", pk=plan.pk)
        return HttpResponse(headers={"HX-Redirect": there.url}) if follows else there
    context = {"computation": computation, "may_operate": may(request.user, computation.team)}
    page = "plan_computing_state" if follows else "plan_computing"
    return render(request, f"planning/{page}.html", context)


def _computing(request: HttpRequest, pk: uuid.UUID) -> Computation:
    rows = Computation.objects.of(ComputationKind.PLAN).select_related("team", "created_by")
    return visible_or_404(rows, request.user, pk=pk)


@require_POST
def plan_stop(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Stop computing a plan."""
    stop(request, _computing(request, pk))
    return redirect("planning:plan-computing", pk=pk)


def _initial(request: HttpRequest, offered: dict[str, Any] | None) -> dict[str, Any]:
    """The values of the plan named by ?from=, of one that was only asked for (?again=), which the user
    must be able to read, or what a later app offers; else the inventory's data centres."""
    if request.GET.get("again"):
        try:
            asked_for = _computing(request, uuid.UUID(request.GET["again"]))
        except ValueError:
            raise Http404 from None
        unmade = Plan(
            team=asked_for.team,
            name=asked_for.name,
            request=asked_for.request["document"],
            training=asked_for.request["training"],
        )
        return {**initial_of(unmade), "name": asked_for.name}
    source = whole(request.GET.get("from"))
    if source is None:
        return everywhere(request.user) if offered is None else offered
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
    context["missing"], context["to_join"] = missing(plan), to_join(plan)
    context = extended("plan", request, context)
    if request.headers.get("HX-Request"):
        response = render(request, "planning/plan_answer.html", context | {"fragment": True})
        response["HX-Replace-Url"] = context["address"]
        return response
    return render(request, "planning/plan_detail.html", extended("plan-whole", request, context))


def _visible(request: HttpRequest, pk: int) -> Plan:
    return visible_or_404(Plan.objects.select_related("team", "created_by"), request.user, pk=pk)


def plan_document(request: HttpRequest, pk: int) -> HttpResponse:
    """The document that `meridian plan` answers."""
    text = json.dumps(what_if_of(_visible(request, pk), request.GET).document, indent=2)
    return download(text, "application/json", f"plan-{pk}.json")


def plan_table(request: HttpRequest, pk: int, table: str) -> HttpResponse:
    """A table or chart of a plan as CSV."""
    document, result = result_of(_visible(request, pk), request.GET)
    text = plan_file(document, result, table, request.GET.get("option"))
    if text is None:
        raise Http404
    return download(text, "text/csv", f"plan-{pk}-{table}.csv")


def _what_if(request: HttpRequest, pk: int) -> WhatIf:
    """The plan, or the what-if of it that the body or the address names."""
    return what_if_of(_visible(request, pk), request.POST if request.method == "POST" else request.GET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """What the search worker computes of a plan, or of a what-if of it; each page says how far that is.

    kind : of the computation.
    ask : (actor, plan, document) asks for one.
    again : states after which another may be asked for.
    answer : how far it is.
    """

    kind: ComputationKind
    ask: Callable[[Any, Plan, dict[str, Any]], Computation]
    again: tuple[ComputationState, ...]
    answer: Callable[[HttpRequest, WhatIf], HttpResponse]

    def page(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self.answer(request, _what_if(request, pk))

    def start(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Have it computed, where it is not yet."""
        what = _what_if(request, pk)
        require(request.user, what.plan.team)
        computation = what.plan.latest(self.kind, what.document)
        if computation is None or computation.state in self.again:
            self.ask(request.user, what.plan, what.document)
        return self.answer(request, what)

    def stop(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Stop it: what was found is kept."""
        what = _what_if(request, pk)
        require(request.user, what.plan.team)
        computation = what.plan.latest(self.kind, what.document)
        if computation is not None:
            computations.ask_to_cancel(request.user, computation)
        return self.answer(request, what)


def _refining(request: HttpRequest, what: WhatIf) -> HttpResponse:
    return render(request, "planning/plan_refining.html", refining_context(what, request.user))


def _cross_dc(request: HttpRequest, what: WhatIf) -> HttpResponse:
    """The plan against data parallelism over the WAN."""
    context = extended("plan-cross-dc", request, cross_dc_context(what.plan, what, request.user))
    return render(request, "planning/cross_dc.html", context)


refinement = Background(
    kind=ComputationKind.REFINE,
    ask=services.ask_to_refine,
    again=(ComputationState.CANCELLED,),
    answer=_refining,
)
comparison = Background(
    kind=ComputationKind.CROSS_DC,
    ask=services.ask_to_compare,
    again=(ComputationState.CANCELLED, ComputationState.FAILED),
    answer=_cross_dc,
)


@require_POST
def plan_save(request: HttpRequest, pk: int) -> HttpResponse:
    """Keep the what-if that the body names as a plan of its own."""
    what = _what_if(request, pk)
    plan = what.plan
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
        message = " ".join(error.messages) if isinstance(error, ValidationError) else f"{error}."
        messages.error(request, f"Not saved: {message}")
        return redirect(f"{back.url}?{urlencode(what.used)}")


@require_POST
def plan_rename(request: HttpRequest, pk: int) -> HttpResponse:
    plan = _visible(request, pk)
    name = _name(request)
    if why := overtaken(request.POST.get(BEGAN, ""), plan.name, plan.name, name):
        messages.error(request, f"Not renamed. {why}")
        return redirect("planning:plan-detail", pk=pk)
    try:
        services.rename_plan(request.user, plan, name)
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
    pks = [pk for text in request.GET.getlist("plan") if (pk := whole(text)) is not None]
    by_pk = {plan.pk: plan for plan in visible.filter(pk__in=pks)}
    plans = [by_pk[pk] for pk in dict.fromkeys(pks) if pk in by_pk][:MOST_COMPARED]
    offered = visible.current().order_by("-created_at").only("name", "team", "created_at")
    table = side_by_side(plans)
    if request.GET.get("as") == "csv":
        asked_for = fronts_table(plans) if request.GET.get("table") == "fronts" else table
        return download(asked_for.as_csv(), "text/csv", f"plans-{asked_for.name}.csv")
    context = {
        "title": "Compare plans",
        "plans": plans,
        "lines": compared_lines(table),
        "differences": differences(plans),
        "offered": offered[:MOST_OFFERED],
        "most": MOST_COMPARED,
        "query": request.GET.urlencode(),
        "charts": compared_fronts(plans),
    }
    return render(request, "planning/plan_compare.html", context)


def _name(request: HttpRequest) -> str:
    return request.POST.get("name", "").replace("\0", "").strip()
