"""What jobs add to the page of a plan: whether its option can be launched, what that meets, and its runs."""

from dataclasses import replace
from typing import Any

from django.http import HttpRequest
from django.utils.text import capfirst

from engine.errors import InputError
from webapp.common.additions import Addition, Context
from webapp.common.asked_once import fresh_key
from webapp.common.lists import bound_table
from webapp.jobs.dry import dry_run, dry_run_document, refusal
from webapp.jobs.gpu_inventory import GpuInventory
from webapp.jobs.models import Run
from webapp.jobs.tables import RunTable
from webapp.placement.placed import option_on_placement
from webapp.planning.document import train_document
from webapp.planning.models import Plan
from webapp.planning.planned_model import STAND_IN
from webapp.planning.replicas import replicas_document
from webapp.planning.trained import trained_words


def _of_plan(request: HttpRequest, context: Context) -> Context:
    """`launch` of the option shown, and its `dry` run where it can be launched; None of a what-if."""
    plan, selected = context["plan"], context["selected"]
    if selected is None or context["what"].is_changed:
        return {"launch": None, "dry": None}
    gpu_inventory = GpuInventory([(plan.team_id, plan.request)]) if context["may_operate"] else None
    option = plan.result["options"][selected["index"]]
    launch = launch_check(plan, option, gpu_inventory)
    if gpu_inventory is None or not launch["ok"]:
        return {"launch": launch, "dry": None}
    given = _before_launch(context, launch, gpu_inventory)
    if why := refusal(given["dry"]):
        given["launch"] |= {"ok": False, "reason": f"{why}{_otherwise(plan, why)}"}
    return given


def _otherwise(plan: Plan, why: str) -> str:
    """What else can be launched where the planned model does not fit; empty where that is not why."""
    planned = "model" in plan.request["job"] and "model" not in (plan.training or {})
    return f" Or copy the plan and have it {STAND_IN}." if planned and why.startswith("Memory") else ""


def launch_check(plan: Plan, option: dict[str, Any], gpu_inventory: GpuInventory | None) -> dict[str, Any]:
    """{ok, reason, label, trains}: whether `option` can be launched, what it would wait for, what it trains.

    gpu_inventory : of an operator of the plan's team; nobody else may launch.
    """
    label = f"Launch D = {option['dp_cells']}"
    if gpu_inventory is None:
        return {"ok": False, "reason": "Only an operator of the team may launch.", "label": label}
    try:
        document = train_document(plan.request, option, plan.training)
    except InputError as error:
        return {"ok": False, "reason": capfirst(error.allowed), "label": label}
    lack = gpu_inventory.shortage(plan.team_id, document)
    trains = trained_words(document, plan.request)
    return {"ok": True, "reason": lack.text if lack else "", "label": label, "trains": trains}


def _before_launch(context: Context, launch: dict[str, Any], gpu_inventory: GpuInventory) -> Context:
    """The dry run of the option shown, on its placement where a launch takes that; the label says which."""
    plan, index, placing = context["plan"], context["selected"]["index"], context["placing"]
    if placing.used is None:
        return {"launch": launch, "dry": dry_run(plan, index, gpu_inventory)}
    try:
        placed = option_on_placement(plan, plan.result["options"][index], placing.used)
    except InputError as error:
        detail = "" if error.value is None else f": {error.value}"
        reason = f"{capfirst(error.allowed)}{detail}."
        failed = replace(placing, state="failed", reason=reason)
        return {"launch": launch, "dry": dry_run(plan, index, gpu_inventory), "placing": failed}
    lack = gpu_inventory.shortage(plan.team_id, placed.document, placed.gpu_of_rank)
    launch = {**launch, "label": f"{launch['label']}, placed", "reason": lack.text if lack else ""}
    return {
        "launch": launch,
        "dry": dry_run_document(placed.document, plan.team, gpu_inventory, placed.gpu_of_rank, plan.request),
    }


def _replicas(request: HttpRequest, context: Context) -> Context:
    """`replicas`: {ok, reason, key, trains} of a launch of the data parallelism next to the plan; None
    without one, of a what-if, and for whoever may not launch."""
    cross_dc = context["cross_dc"]
    if not cross_dc or not cross_dc["rows"] or not cross_dc["of_plan"] or not context["may_operate"]:
        return {"replicas": None}
    plan, data = context["plan"], cross_dc["rows"][0]["data"]
    if not data["feasible"]:  # the table says why
        return {"replicas": None}
    gpu_inventory = GpuInventory([(plan.team_id, plan.request)])
    try:
        document = replicas_document(plan.request, data, plan.training)
    except InputError as error:
        return {"replicas": {"ok": False, "reason": f"{capfirst(error.allowed)}."}}
    if why := refusal(dry_run_document(document, plan.team, gpu_inventory, planned=plan.request)):
        return {"replicas": {"ok": False, "reason": why}}
    lack = gpu_inventory.shortage(plan.team_id, document)
    trains = trained_words(document, plan.request)
    return {
        "replicas": {"ok": True, "reason": lack.text if lack else "", "key": fresh_key(), "trains": trains}
    }


def _runs(request: HttpRequest, context: Context) -> Context:
    runs = Run.objects.visible_to(request.user).current().filter(job__plan=context["plan"])
    return {"runs": bound_table(request, RunTable, runs.for_lists().with_models(), prefix="runs-")}


ADDITIONS = (
    Addition(
        page="plan",
        order=20,
        name="launch",
        context=_of_plan,
        templates={
            "reason": "jobs/plan_reason.html",
            "answer": "jobs/plan_before.html",
            "actions": "jobs/plan_launch.html",
            "placing-tools": "jobs/plan_without.html",
        },
    ),
    Addition(page="plan", order=30, name="replicas", context=_replicas),
    Addition(
        page="plan-cross-dc",
        order=10,
        name="replicas",
        context=_replicas,
        templates={"below": "jobs/plan_replicas.html"},
    ),
    Addition(
        page="plan-whole", order=10, name="runs", context=_runs, templates={"runs": "jobs/plan_runs.html"}
    ),
    Addition(page="placement", order=10, name="launch", templates={"actions": "jobs/placement_launch.html"}),
)
