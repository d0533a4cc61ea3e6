"""What the plan page shows: options with a verdict in words, and one of them in full."""

import json
from collections.abc import Mapping
from typing import Any

from django.utils.http import urlencode

from engine.inputs import parse
from engine.model.description import ModelFigures
from engine.plan.request import PlanRequest
from engine.plan.what_if import lost, no_option
from engine.schedule.contention import schedule_name
from webapp.accounts.permissions import may
from webapp.common.queries import whole
from webapp.computations.models import Computation, ComputationKind, ComputationState
from webapp.planning.cross_dc import cross_dc_context
from webapp.planning.model_fields import figures_for
from webapp.planning.models import Plan
from webapp.planning.one_click import compared, one_clicks
from webapp.planning.plan_cell import MOST_TIMELINE_SPANS, MOST_WHAT_IF_SPANS, cell_of, stages_table, timeline
from webapp.planning.stage_bars import MOST_BARS, stage_bars, stage_time_bars
from webapp.planning.what_if import WhatIf, answer_at_once, differences, sliders, what_if_of
from webapp.planning.work import what_if_at_once

_LAYOUT = ("partitions", "tp", "micro_batch")  # of a job: several of them are tried where it lists several
WIDE_DCS = 8  # more data centres than this have no column each
# What a search's `stopped_by` says of its answer.
SEARCHED = {
    "proven": "proven optimal for these schedules",
    "candidates": "only the most promising routes and splits were tried",
    "sampled": "only some numbers or sizes of DP-cells were tried",
    "budget": "the time limit was reached before all candidates that could be better were tried",
    "cancelled": "stopped early",
}


# Of a what-if that the search worker has still to compute.
UNANSWERED: dict[str, Any] = {"options": [], "best": None, "pareto": [], "excluded": [], "waits": True}


def plan_context(plan: Plan, user: Any, query: Mapping[str, str]) -> dict[str, Any]:
    """The context of planning/plan_answer.html: the plan as the address asks for it."""
    what = what_if_of(plan, query)
    refinement = plan.latest(ComputationKind.REFINE, what.document)
    result, took_ms = _result(what, refinement)
    operates = may(user, plan.team)
    dcs = [dc["name"] for dc in what.document["datacenters"]]
    dcs = dcs if len(dcs) <= WIDE_DCS else []
    options = [_option(what, result, each, dcs) for each in range(len(result["options"]))]
    index = option_index(query.get("option"), len(options), result.get("best"))
    selected = None if index is None else options[index]
    several_layouts = any(isinstance(what.document["job"].get(name), list) for name in _LAYOUT)
    budget, deadline_ms = what.document.get("budget_per_iteration"), _deadline_ms(what.document)
    most = MOST_WHAT_IF_SPANS if what.is_changed else MOST_TIMELINE_SPANS
    cell = cell_of(what.document, selected, most)
    refining = _refining(result, refinement, operates)
    times = stage_time_bars(selected)
    bars = stage_bars(selected, profiled="layer_profiles" in what.document["job"])
    return {
        "plan": plan,
        "what": what,
        "what_query": urlencode(what.used),
        "what_vals": json.dumps(what.used),
        "differences": differences(plan.request, what.document),
        "one_clicks": one_clicks(plan.request),
        **_compared(what, result, refinement),
        **cross_dc_context(plan, what, user),
        "result": result,
        "options": options,
        "dcs": dcs,
        "several_layouts": several_layouts,
        "columns_before_dcs": (columns := 7 + bool(what.document.get("iterations")) + several_layouts),
        "columns_after_d": columns + len(dcs),
        "selected": selected,
        "stages": stages_table(selected, cell) if selected and selected["feasible"] else None,
        "memory_bars": bars[:MOST_BARS],
        "more_bars": len(bars) if len(bars) > MOST_BARS else 0,
        "time_bars": times[:MOST_BARS],
        "more_times": len(times) if len(times) > MOST_BARS else 0,
        "plan_request": what.document,
        "model_figures": _model_figures(what.document["job"]),
        "excluded": result.get("excluded", []),
        "left_out": result.get("left_out", []),
        "searched": result.get("search") and SEARCHED[result["search"]["stopped_by"]],
        "took_ms": took_ms,
        "may_operate": operates,
        "refining": refining,
        "sliders": sliders(plan.request, what.document),
        "plan_json": {
            "options": [_drawn(option) for option in result["options"]],
            "pareto": result.get("pareto", []),
            "best": result.get("best"),
            "selected": selected and selected["index"],
            "timeline": timeline(what.document, selected, cell) if selected and cell else None,
            "limits": {"budget": budget, "deadline_ms": deadline_ms},
            "before": _ghosts(plan) if what.is_changed else [],
            "query": urlencode(what.used),
        },
    }


def _result(what: WhatIf, refinement: Computation | None) -> tuple[dict[str, Any], float]:
    """The answer, and the ms that it took: the plan's own, a refined what-if, or one computed at once."""
    if not what.is_changed:
        return what.plan.result, what.plan.computed_ms
    if refinement is not None and not refinement.is_open and refinement.answer:
        began, ended = refinement.started_at, refinement.finished_at
        return refinement.answer["result"], (ended - began).total_seconds() * 1e3 if began and ended else 0.0
    if not what_if_at_once(parse(PlanRequest, what.document)):
        return UNANSWERED, 0.0
    return answer_at_once(what.document)


def _compared(what: WhatIf, result: dict[str, Any], refinement: Computation | None) -> dict[str, Any]:
    """{compared, same_effort, none_feasible} of a what-if beside its plan.

    same_effort : both are of fast schedules alone, and the plan's own answer is a better one.
    """
    if not what.is_changed or result.get("waits"):
        return {}
    plan = what.plan
    is_refined = refinement is not None and not refinement.is_open and refinement.answer
    if is_refined or not what_if_at_once(parse(PlanRequest, plan.request)):
        before = plan.result
    else:
        before, _ = answer_at_once(plan.request)
    return {
        "compared": compared(before, result),
        "same_effort": _best(before, "iteration_ms") != _best(plan.result, "iteration_ms"),
        "planned_best": plan.best,
        "none_feasible": result["best"] is None and no_option(lost(plan.request, what.document), result),
    }


def _best(result: dict[str, Any], name: str) -> Any:
    return None if result["best"] is None else result["options"][result["best"]][name]


def result_of(plan: Plan, query: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(document, answer) of a plan as the address asks for it."""
    what = what_if_of(plan, query)
    return what.document, _result(what, plan.latest(ComputationKind.REFINE, what.document))[0]


def refining_context(what: WhatIf, user: Any) -> dict[str, Any]:
    """The context of planning/plan_refining.html alone."""
    plan = what.plan
    refinement = plan.latest(ComputationKind.REFINE, what.document)
    result, _ = _result(what, refinement)
    operates = may(user, plan.team)
    return {
        "plan": plan,
        "what": what,
        "may_operate": operates,
        "what_query": urlencode(what.used),
        "what_vals": json.dumps(what.used),
        "refining": _refining(result, refinement, operates),
        "ended": refinement is not None and not refinement.is_open,
    }


def _refining(result: dict[str, Any], refinement: Computation | None, operates: bool) -> dict[str, Any]:
    """{state, progress, waits}: refined, open, failed, stopped, wanted (by one who may ask for it), fast (who
    may not); waits: there is no answer yet."""
    waits = {"waits": result.get("waits", False)}
    if refinement is not None and refinement.is_open:
        return waits | {"state": "open", "progress": refinement.progress or {}, "computation": refinement}
    if refinement is not None and refinement.state == ComputationState.FAILED:
        return {"state": "failed", "error": refinement.error}
    if refinement is not None and refinement.state == ComputationState.CANCELLED:
        return {"state": "stopped"}
    if waits["waits"] or _wants_refining(result):
        return waits | {"state": "wanted" if operates else "fast"}
    if refinement is not None or any(option.get("schedule") for option in result["options"]):
        return {"state": "refined"}
    return {"state": ""}


def _wants_refining(result: dict[str, Any]) -> bool:
    """Whether an answer has options that `auto` has not looked at yet."""
    return any(option.get("refining") for option in result["options"])


def _drawn(option: dict[str, Any]) -> dict[str, Any]:
    """The part of an option that the page's script reads: its figures and names, not its schedule."""
    shown = {name: value for name, value in option.items() if name != "schedule"}
    return {**shown, "policy_name": schedule_name(option.get("policy", ""), option.get("contention"))}


def _ghosts(plan: Plan) -> list[dict[str, Any]]:
    """The plan's own options, for the drawing of what a change does to them."""
    names = ("dp_cells", "feasible", "iteration_ms", "cost_per_iteration")
    return [{name: option.get(name) for name in names} for option in plan.result["options"]]


def _model_figures(job: dict[str, Any]) -> ModelFigures | None:
    """What the planned model is; None for times as given, or layers as measured."""
    if "model" not in job or job.get("layer_profiles"):
        return None
    several = job["partitions"] if isinstance(job["partitions"], list) else [job["partitions"]]
    return figures_for(job["model"], min(several))


def _option(what: WhatIf, result: dict[str, Any], index: int, dcs: list[str]) -> dict[str, Any]:
    option = result["options"][index]
    best = index == result.get("best")
    pareto = index in result.get("pareto", [])
    verdict = option.get("reason") or ("Best" if best else "Pareto front" if pareto else "")
    return {
        **option,
        "index": index,
        "is_best": best,
        "on_pareto": pareto,
        "verdict": verdict,
        "policy_name": schedule_name(option.get("policy", ""), option.get("contention")),
        "layout": _layout(option),
        "gpu_cells": [(option.get("gpus_used") or {}).get(dc) or None for dc in dcs],
        **_against_limits(what.document, option),
    }


def _layout(option: dict[str, Any]) -> tuple[int, int, int] | None:
    """Stages, degree of tensor parallelism and sequences a microbatch; None of what is infeasible."""
    if option.get("iteration_ms") is None:
        return None
    stages = sum(part["stages"] for part in option["partitions"])
    return stages, option.get("tp") or 1, option.get("micro_batch") or 1


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
        "idle": ", ".join(f"{dc} {n:,}" for dc, n in (option.get("gpus_idle") or {}).items()),
    }


def option_index(text: str | None, count: int, best: int | None) -> int | None:
    """The option that an address asks for, among `count`; what is none of them asks for the best."""
    index = whole(text, count - 1)
    return best if index is None else index


def _deadline_ms(request: dict[str, Any]) -> float | None:
    """Longest iteration that meets the deadline."""
    if not request.get("deadline_h") or not request.get("iterations"):
        return None
    return request["deadline_h"] * 3.6e6 / request["iterations"]
