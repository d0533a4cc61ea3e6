"""What the plan page shows: options with a verdict in words, and the predicted timeline of one."""

from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.plan.cell import scenario_of
from engine.plan.request import PlanRequest
from engine.plan.result import Option, Partition
from engine.simulate import simulate
from webapp.accounts.permissions import may
from webapp.jobs.allocate import shortage_of
from webapp.jobs.document import train_document
from webapp.live.codes import code_of
from webapp.live.shape import lanes, shape_of
from webapp.planning.models import Plan

MOST_TIMELINE_SPANS = 20_000


def plan_context(plan: Plan, user: Any, asked: str | None) -> dict[str, Any]:
    """The context of planning/plan_detail.html, without the table of runs."""
    dcs = [dc["name"] for dc in plan.request["datacenters"]]
    operates = may(user, plan.team)
    options = [_option(plan, index, dcs, operates) for index in range(len(plan.result["options"]))]
    selected = _selected(options, plan.result.get("best"), asked)
    limits = {
        "budget": plan.request.get("budget_per_iteration"),
        "deadline_ms": _deadline_ms(plan.request),
    }
    return {
        "plan": plan,
        "options": options,
        "dcs": dcs,
        "figure_columns": 9 if plan.request.get("iterations") else 8,
        "selected": selected,
        "plan_request": plan.request,
        "excluded": plan.result.get("excluded", []),
        "may_operate": operates,
        "plan_json": {
            "options": plan.result["options"],
            "pareto": plan.result.get("pareto", []),
            "best": plan.result.get("best"),
            "selected": selected and selected["index"],
            "timeline": timeline(plan, selected),
            "limits": limits,
        },
    }


def _option(plan: Plan, index: int, dcs: list[str], operates: bool) -> dict[str, Any]:
    option = plan.result["options"][index]
    best = index == plan.result.get("best")
    pareto = index in plan.result.get("pareto", [])
    verdict = option.get("reason") or ("Best" if best else "On the Pareto front" if pareto else "")
    return {
        **option,
        "index": index,
        "is_best": best,
        "on_pareto": pareto,
        "verdict": verdict,
        "gpu_cells": [(option.get("gpus_used") or {}).get(dc) or None for dc in dcs],
        "launch": launch_check(plan, option, operates),
        **_against_limits(plan.request, option),
    }


def _against_limits(request: dict[str, Any], option: dict[str, Any]) -> dict[str, Any]:
    """Bubbles in %, days of all iterations, and which of the plan's limits the option breaks."""
    utilization, length_ms = option.get("utilization"), option.get("iteration_ms")
    iterations, cost = request.get("iterations"), option.get("cost_per_iteration")
    budget, deadline = request.get("budget_per_iteration"), _deadline_ms(request)
    return {
        "bubbles": None if utilization is None else 100 * (1 - utilization),
        "days": length_ms * iterations / 8.64e7 if length_ms and iterations else None,
        "over_budget": budget is not None and cost is not None and cost > budget,
        "late": deadline is not None and length_ms is not None and length_ms > deadline,
    }


def launch_check(plan: Plan, option: dict[str, Any], operates: bool) -> dict[str, Any]:
    """{ok, reason, label}: whether `option` can be launched, and what it would wait for."""
    label = f"Launch D = {option['dp_cells']}"
    if not operates:
        return {"ok": False, "reason": "Only an operator of the team may launch.", "label": label}
    if not plan.training:
        return {
            "ok": False,
            "reason": "Planned from a preset: this version launches explicit times only.",
            "label": label,
        }
    try:
        document = train_document(plan.request, option, plan.training)
    except InputError as error:
        return {"ok": False, "reason": f"{error.allowed[:1].upper()}{error.allowed[1:]}", "label": label}
    return {"ok": True, "reason": shortage_of(document, plan.team), "label": label}


def _selected(options: list[dict[str, Any]], best: int | None, asked: str | None) -> dict[str, Any] | None:
    if asked and asked.isdigit() and int(asked) < len(options):
        return options[int(asked)]
    return options[best] if best is not None else None


def _deadline_ms(request: dict[str, Any]) -> float | None:
    """Longest iteration that meets the deadline."""
    if not request.get("deadline_h") or not request.get("iterations"):
        return None
    return request["deadline_h"] * 3.6e6 / request["iterations"]


def timeline(plan: Plan, option: dict[str, Any] | None) -> dict[str, Any] | None:
    """Lanes, links and predicted spans of one cell of `option`; None where there is none to draw."""
    if option is None or not option.get("feasible"):
        return None
    scenario = scenario_of(parse(PlanRequest, plan.request), engine_option(option))
    if scenario.stages * scenario.pipelines * scenario.microbatches * 3 > MOST_TIMELINE_SPANS:
        return None
    result = simulate(scenario.model_copy(update={"spans": True})).as_dict()
    used = list(dict.fromkeys(part["dc"] for part in option["partitions"]))
    shape = shape_of(
        {
            "datacenters": [{"name": name} for name in used],
            "links": plan.request.get("links", []),
            "stages": scenario.stages,
            "pipelines": scenario.pipelines,
            "policy": option["policy"],
            "dc_of_stage": [used.index(p["dc"]) for p in option["partitions"] for _ in range(p["stages"])],
        }
    )
    spans: dict[int, list[Any]] = {rank: [rank] for rank in range(shape.ranks)}
    for span in result["spans"]:
        stage = span["stage"] if span["track"] == "gpu" else span["from_stage"]
        spans[span["pipeline"] * shape.stages + stage].append(code_of(_seconds(span), origin=0.0))
    return {
        "dcs": [{"name": name} for name in shape.dcs],
        "lanes": lanes(shape, []),
        "links": list(shape.links),
        "predicted": {
            "iteration_ms": result["makespan"],
            "utilization": result["utilization"],
            "spans": list(spans.values()),
        },
    }


def engine_option(option: dict[str, Any]) -> Option:
    """An option as kept, as the engine's own."""
    values = {name: option[name] for name in Option.__slots__ if name in option}
    return Option(**{**values, "partitions": tuple(Partition(**part) for part in option["partitions"])})


def _seconds(span: dict[str, Any]) -> dict[str, Any]:
    """A span of a scenario in milliseconds, in seconds."""
    return {
        **span,
        **{name: span[name] / 1e3 for name in ("start", "end", "arrives") if span.get(name) is not None},
    }
