"""What the Schedules pages show: figures as rows, a policy's timeline drawn again from its text, files."""

import contextlib
import io
import json
from typing import Any

from django.http import HttpRequest

from engine.inputs import parse
from engine.job.shape import lanes, shape_of
from engine.plan.cell import scenario_of
from engine.plan.request import PlanRequest
from engine.schedule.contention import contention_name
from engine.schedule.ir import Schedule
from engine.schedule.registry import name_of
from engine.schedule.runtimes import megatron_files, torch_files
from engine.schedule.scenario import BEST, Scenario
from engine.schedule.text import parse_schedule
from engine.simulate import SimulationResult, simulate_schedule
from engine.simulate.export import write_csv
from engine.simulate.trace import chrome_trace
from webapp.accounts.permissions import visible_or_404
from webapp.common.figures import zipped
from webapp.common.queries import whole
from webapp.common.sources import first_values
from webapp.computations.models import Computation, ComputationKind
from webapp.planning.models import Plan
from webapp.planning.plan_cell import MOST_TIMELINE_SPANS, coded, engine_option
from webapp.schedules.forms import initial_of_scenario
from webapp.schedules.pages import pages


def initial_from(request: HttpRequest) -> dict[str, Any]:
    """The form's first values: of a comparison (?from=), an option of a plan (?plan=), or what a later app
    offers."""
    user, query = request.user, request.GET
    if number := query.get("from"):
        return _of_computation(user, str(number))
    if (pk := whole(query.get("plan"))) is not None:
        return _of_plan(visible_or_404(Plan.objects.all(), user, pk=pk), whole(query.get("option")))
    offered, _ = first_values("comparison", request)
    return offered or {"name": "", "policies": ["1f1b", "varuna", "atlas"]}


def _of_computation(user: Any, key: str) -> dict[str, Any]:
    computation = pages.named(user, key)
    request = computation.request
    swept = {name: request[name] for name in ("parameter", "values") if name in request}
    return {
        **initial_of_scenario(request["scenario"]),
        **swept,
        "name": f"{computation.name} again"[:80],
        "policies": request["policies"],
        "unit": request.get("unit", "slot"),
    }


def _of_plan(plan: Plan, index: int | None) -> dict[str, Any]:
    options = plan.result["options"]
    option = options[index] if index is not None and index < len(options) else plan.best
    if option is None or not option.get("feasible"):
        return {"name": f"{plan.name} compared"[:80]}
    scenario = scenario_of(parse(PlanRequest, plan.request), engine_option(option))
    return compared(f"{plan.name} compared", scenario)


def compared(name: str, scenario: Scenario) -> dict[str, Any]:
    """The first values of a comparison of `scenario`, whose times are in ms."""
    document = scenario.model_dump(exclude_none=True)
    document["dc_of_stage"] = list(scenario.dcs)
    return {
        **initial_of_scenario(document),
        "name": name[:80],
        "policies": list(dict.fromkeys(["1f1b", "varuna", "atlas", scenario.policy])),
        "unit": "ms",
        "sharing": "",
        "contention": BEST,
    }


def unit_of(computation: Computation) -> str:
    """The unit of its times, as pages write it."""
    unit = str(computation.request.get("unit", "slot"))
    return "slots" if unit == "slot" else unit


def result_context(computation: Computation) -> dict[str, Any]:
    """rows, what of them the charts need, and how far the computation is."""
    answer = computation.answer or {}
    sweeps = computation.kind == ComputationKind.SWEEP
    rows = answer.get("rows" if sweeps else "results", [])
    best = min((row["makespan"] for row in rows if row.get("makespan")), default=None)
    return {
        "rows": rows,
        "sweeps": sweeps,
        "unit": unit_of(computation),
        "best": best,
        "figures": _sweep_figures(rows) if sweeps else [_figures(row, best) for row in rows],
        "sweep_points": _points(rows) if sweeps else None,
        "drawable": {row["policy"]: name_of(row["policy"]) for row in rows if row.get("schedule")},
        "scenario": computation.request["scenario"],
        "asked": computation.request,
        "progress": computation.progress or {},
    }


def _sweep_figures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    best: dict[str, float] = {}
    for row in rows:
        if row["makespan"] is not None:
            key = str(row["value"])
            best[key] = min(best.get(key, row["makespan"]), row["makespan"])
    return [
        {
            **row,
            "is_best": row["makespan"] is not None
            and row["makespan"] <= best[str(row["value"])] * (1 + 1e-9),
            "utilization_percent": None if row["utilization"] is None else 100 * row["utilization"],
        }
        for row in rows
    ]


def _points(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """{values, lines: [{policy, name, makespans}]} for the chart; a makespan is null where there is none."""
    values = list(dict.fromkeys(row["value"] for row in rows))
    makespans = {(row["policy"], row["value"]): row["makespan"] for row in rows}
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lines = [
        {
            "policy": policy,
            "name": name_of(policy),
            "makespans": [makespans.get((policy, value)) for value in values],
        }
        for policy in policies
    ]
    return {"values": values, "lines": lines}


def _how(row: dict[str, Any]) -> str:
    """What the policy settled on and why its search ended, in words."""
    chosen = row.get("chosen") or {}
    parts = [f"{chosen.get('sharing')} sharing"]
    if (chosen.get("chunks") or 1) > 1:
        parts.append(f"{chosen['traversal']} of {chosen['chunks']} chunks")
    if chosen.get("contention") and chosen.get("sharing") == "temporal":
        parts.append(f"links {contention_name(chosen['contention'])}")
    if chosen.get("recompute_rule"):
        parts.append(f"recompute {chosen['recompute_rule']}")
    if chosen.get("idea"):
        parts.append(chosen["idea"])
    if row.get("stopped_by"):
        ended = {"proven": "proven", "time": "out of time", "cancelled": "stopped"}[row["stopped_by"]]
        parts.append(f"{ended} after {row['search_s']:.1f} s")
    return ", ".join(parts)


def _figures(row: dict[str, Any], best: float | None) -> dict[str, Any]:
    peaks = row.get("peak_in_flight") or []
    per_stage = [max(stage) for stage in zip(*peaks, strict=True)]
    makespan = row.get("makespan")
    return {
        **row,
        "peak": max(per_stage, default=None),
        "peak_per_stage": ", ".join(f"{peak:g}" for peak in per_stage),
        "is_best": makespan is not None and best is not None and makespan <= best * (1 + 1e-9),
        "over_best": None if makespan is None or best is None else 100 * (makespan / best - 1),
        "gap_percent": None if row.get("gap") is None else 100 * row["gap"],
        "bubble_percent": None if row.get("bubble_fraction") is None else 100 * row["bubble_fraction"],
        "utilization_percent": None if row.get("utilization") is None else 100 * row["utilization"],
        "how": _how(row),
        "robust": (row.get("robustness") or {}).get("p95"),
    }


def timed(computation: Computation, row: dict[str, Any]) -> SimulationResult:
    """The result of one policy, timed again from the schedule that was kept."""
    document = {**computation.request["scenario"], "policy": row["policy"], "spans": True}
    scenario = parse(
        Scenario, {name: v for name, v in document.items() if name not in ("chunks", "traversal")}
    )
    return simulate_schedule(scenario, parse_schedule(row["schedule"]))


def drawn_timeline(computation: Computation, row: dict[str, Any]) -> dict[str, Any]:
    """The snapshot that the canvas draws; ``{"too_large": spans}`` where there are too many."""
    result = timed(computation, row)
    assert result.timeline is not None, "only feasible policies have a timeline"
    spans = result.spans()
    if len(spans) > MOST_TIMELINE_SPANS:
        return {"too_large": len(spans), "runtimes": runtimes_of(result.timeline.schedule)}
    scenario, names = result.scenario, sorted(set(result.scenario.dcs))
    shape = shape_of(
        {
            "datacenters": [{"name": f"DC {dc + 1}"} for dc in names],
            "links": [],
            "cell": {
                "stages": scenario.stages,
                "pipelines": scenario.pipelines,
                "dc_of_stage": [names.index(dc) for dc in scenario.dcs],
            },
            "strategy": {
                "policy": row["policy"],
                "sharing": (row.get("chosen") or {}).get("sharing"),
            },
        }
    )
    dcs = shape.dcs_of_pipeline[0]
    crossed = dict.fromkeys(
        (dcs[span.from_stage or 0], dcs[span.to_stage or 0]) for span in spans if span.track == "wan"
    )
    return {
        "unit": unit_of(computation),
        "runtimes": runtimes_of(result.timeline.schedule),
        "dcs": [{"name": name} for name in shape.dcs],
        "lanes": lanes(shape, []),
        # A loop also crosses from the last data centre to the first.
        "links": [{"from": a, "to": b, "cap_gbps": None, "latency_ms": None} for a, b in sorted(crossed)],
        "predicted": {
            "iteration_ms": result.makespan,
            "utilization": row["utilization"],
            "spans": coded(spans, shape),
        },
    }


RUNTIMES = {"torch": torch_files, "megatron": megatron_files}


def runtimes_of(schedule: Schedule) -> list[str]:
    """The other runtimes that can run this order."""
    able = []
    for name, files in RUNTIMES.items():
        with contextlib.suppress(ValueError):
            files(schedule)
            able.append(name)
    return able


def schedule_file(result: SimulationResult, form: str, unit: str) -> tuple[str | bytes, str, str] | None:
    """(content, content type, suffix) of a download; None for an unknown one.

    Raises ValueError if another runtime cannot run this order.
    """
    assert result.timeline is not None, "only feasible policies have a schedule"
    if form == "schedule":
        return f"{result.timeline.schedule}\n", "text/plain", "schedule.txt"
    if form == "trace":
        return json.dumps(chrome_trace(result.spans(), unit=unit)), "application/json", "trace.json"
    if form == "spans":
        file = io.StringIO()
        write_csv(result.spans(), file)
        return file.getvalue(), "text/csv", "csv"
    if form in RUNTIMES:
        return zipped(RUNTIMES[form](result.timeline.schedule)), "application/zip", f"{form}.zip"
    return None
