"""Tables of plans as files, and plans side by side."""

import io
from typing import Any

from engine.inputs import parse
from engine.plan.cell import simulated
from engine.plan.request import PlanRequest
from engine.schedule.contention import schedule_name
from engine.simulate.export import write_csv
from webapp.common.figures import Column, Figures
from webapp.planning.models import Plan
from webapp.planning.plan_cell import cell_of, engine_option, stages_table
from webapp.planning.selectors import option_index

COLUMNS = (
    Column(label="D", key="dp_cells", decimals=0),
    Column(label="Feasible", key="feasible"),
    Column(label="Reason", key="reason"),
    Column(label="Order", key="order_text"),
    Column(label="Stages", key="stages_text"),
    Column(label="Pipelines", key="pipelines", decimals=0),
    Column(label="TP", key="tp", decimals=0),
    Column(label="Micro-batch", key="micro_batch", decimals=0),
    Column(label="Policy", key="policy"),
    Column(label="Contention", key="contention"),
    Column(label="Iteration", key="iteration_ms", unit="ms", decimals=3),
    Column(label="Bound", key="bound_ms", unit="ms", decimals=3),
    Column(label="Pipeline", key="pp_time_ms", unit="ms", decimals=3),
    Column(label="All-reduce", key="allreduce_ms", unit="ms", decimals=3),
    Column(label="Throughput", key="throughput", unit="pipelines/s", decimals=4),
    Column(label="Tokens", key="tokens_per_s", unit="1/s", decimals=1),
    Column(label="Utilization", key="utilization", decimals=4),
    Column(label="Egress", key="egress_gb", unit="GB", decimals=3),
    Column(label="Cost", key="cost_per_iteration", unit="$/iteration", decimals=6),
    Column(label="Cost", key="cost_per_million_tokens", unit="$/M tokens", decimals=6),
    Column(label="GPU hours", key="gpu_hours", unit="per iteration", decimals=4),
    Column(label="GPUs used", key="used_text"),
    Column(label="GPUs not used", key="idle_text"),
    Column(label="On the Pareto front", key="on_pareto"),
    Column(label="Best", key="is_best"),
)


def plan_file(document: dict[str, Any], result: dict[str, Any], name: str, option: str | None) -> str | None:
    """A table of a plan as CSV: options, pareto, stages or timeline of an option, excluded; else None."""
    if name == "timeline":
        chosen = _chosen(result, option)
        if chosen is None or not chosen.get("feasible"):
            return None
        file = io.StringIO()
        write_csv(simulated(parse(PlanRequest, document), engine_option(chosen)).spans(), file)
        return file.getvalue()
    tables = {"options": options_table, "pareto": pareto_table, "excluded": excluded_table}
    if name == "stages":
        chosen = _chosen(result, option)
        return stages_table(chosen, cell_of(document, chosen)).as_csv()
    return tables[name](result).as_csv() if name in tables else None


def _chosen(result: dict[str, Any], option: str | None) -> dict[str, Any] | None:
    index = option_index(option, len(result["options"]), result["best"])
    return None if index is None else result["options"][index]


def options_table(result: dict[str, Any]) -> Figures:
    """Every option with all its figures."""
    rows = [
        {
            **option,
            "order_text": _listed(part["dc"] for part in option["partitions"]),
            "stages_text": _listed(part["stages"] for part in option["partitions"]),
            "used_text": _counts(option.get("gpus_used")),
            "idle_text": _counts(option.get("gpus_idle")),
            "on_pareto": index in result.get("pareto", []),
            "is_best": index == result.get("best"),
        }
        for index, option in enumerate(result["options"])
    ]
    return Figures(name="options", title="Options", columns=COLUMNS, rows=rows)


def pareto_table(result: dict[str, Any]) -> Figures:
    """What the chart of cost against time draws."""
    rows = [row for row in options_table(result).rows if row["feasible"]]
    keys = ("dp_cells", "iteration_ms", "cost_per_iteration", "on_pareto", "is_best")
    return Figures(
        name="pareto", title="Cost against time", rows=rows, columns=[c for c in COLUMNS if c.key in keys]
    )


def excluded_table(result: dict[str, Any]) -> Figures:
    """Data centres that the best option leaves out, and why."""
    return Figures(
        name="excluded",
        title="Not used",
        rows=result.get("excluded", []),
        columns=[Column(label="DC", key="dc"), Column(label="Reason", key="reason")],
    )


def _listed(values: Any) -> str:
    return ", ".join(str(value) for value in values)


def _counts(gpus: dict[str, int] | None) -> str:
    return ", ".join(f"{dc} {count}" for dc, count in (gpus or {}).items())


# Rows of the comparison: label, unit, decimals, and where the value is: of the best option, or of the plan.
COMPARED = (
    ("Method", "", None, "request.method"),
    ("Schedule", "", None, "schedule"),
    ("Stages", "", 0, "stages"),
    ("Microbatches", "", 0, "request.job.microbatches"),
    ("DP-cells, D", "", 0, "best.dp_cells"),
    ("Pipelines", "", 0, "best.pipelines"),
    ("Data centres", "", None, "order"),
    ("GPUs used", "", 0, "gpus"),
    ("GPUs not used", "", 0, "idle"),
    ("Iteration", "ms", 1, "best.iteration_ms"),
    ("Bound", "ms", 1, "best.bound_ms"),
    ("All-reduce", "ms", 1, "best.allreduce_ms"),
    ("Throughput", "pipelines/s", 3, "best.throughput"),
    ("Tokens", "k/s", 1, "ktokens"),
    ("Bubbles", "%", 1, "bubbles"),
    ("Cost", "$/iteration", 5, "best.cost_per_iteration"),
    ("Cost", "$/M tokens", 3, "best.cost_per_million_tokens"),
    ("GPU hours", "per iteration", 4, "best.gpu_hours"),
    ("Egress", "GB/iteration", 2, "best.egress_gb"),
)


def side_by_side(plans: list[Plan]) -> Figures:
    """One row a figure, one column a plan; of the option that each plan calls best."""
    facts = [_facts(plan) for plan in plans]
    rows = []
    for label, unit, decimals, key in COMPARED:
        column = Column(label="", key=key, decimals=decimals)
        cells = {
            f"p{i}": column.text(fact) if decimals is None else column.value(fact)
            for i, fact in enumerate(facts)
        }
        texts = {f"t{i}": column.text(fact) for i, fact in enumerate(facts)}
        rows.append({"label": label, "unit": unit, **cells, **texts, "differs": len(set(texts.values())) > 1})
    return Figures(
        name="compare",
        title="Side by side",
        rows=rows,
        columns=[
            Column(label="Figure", key="label"),
            Column(label="Unit", key="unit"),
            *(Column(label=plan.name, key=f"p{i}") for i, plan in enumerate(plans)),
        ],
    )


def compared_lines(table: Figures) -> list[tuple[str, str, bool, list[str]]]:
    """(label, unit, whether the plans differ, the text of each plan) of the rows of `side_by_side`."""
    plans = len(table.columns) - 2
    return [
        (row["label"], row["unit"], row["differs"], [row[f"t{i}"] for i in range(plans)])
        for row in table.rows
    ]


def _facts(plan: Plan) -> dict[str, Any]:
    best = plan.best or {}
    tokens, utilization = best.get("tokens_per_s"), best.get("utilization")
    return {
        "request": {"method": "search", **plan.request},
        "best": best,
        "schedule": schedule_name(best["policy"], best.get("contention")) if best else None,
        "stages": sum(part["stages"] for part in best.get("partitions", [])) or None,
        "order": _listed(part["dc"] for part in best.get("partitions", [])),
        "gpus": sum((best.get("gpus_used") or {}).values()) if best else None,
        "idle": sum((best.get("gpus_idle") or {}).values()) if best else None,
        "ktokens": None if tokens is None else tokens / 1e3,
        "bubbles": None if utilization is None else 100 * (1 - utilization),
    }


def differences(plans: list[Plan]) -> list[tuple[str, list[str]]]:
    """What the plans were asked that differs: GPUs and price of data centres, links, limits; by plan."""
    questions = [_asked(plan.request) for plan in plans]
    names = list(dict.fromkeys(name for each in questions for name in each))
    rows = [(name, [each.get(name, "–") for each in questions]) for name in names]
    return [(name, cells) for name, cells in rows if len(set(cells)) > 1]


def _asked(request: dict[str, Any]) -> dict[str, str]:
    question = {
        dc["name"]: f"{dc['gpus']:,} {dc['gpu_type']}, ${dc['price_per_gpu_hour']:g}/GPU h"
        for dc in request["datacenters"]
    }
    for link in request.get("links", []):
        question[" – ".join(link["between"])] = (
            f"{link['latency_ms']:g} ms, {link['bandwidth_gbps']:g} Gbit/s"
        )
    for name, value in request["job"].items():
        question[f"job: {name.replace('_', ' ')}"] = (
            f"{value:,.10g}" if isinstance(value, int | float) else str(value)
        )
    rules = (
        "policy",
        "objective",
        "order",
        "bill",
        "budget_per_iteration",
        "deadline_h",
        "iterations",
        "max_dp_cells",
    )
    return question | {
        name.replace("_", " "): str(request[name]) for name in rules if request.get(name) is not None
    }


def compared_fronts(plans: list[Plan]) -> list[dict[str, Any]]:
    """[{name, points: [{dp_cells, iteration_ms, cost_per_iteration, on_front}]}] of options with a cost."""
    names = ("dp_cells", "iteration_ms", "cost_per_iteration")
    return [
        {
            "name": plan.name,
            "points": [
                {**{name: option[name] for name in names}, "on_front": index in plan.result.get("pareto", [])}
                for index, option in enumerate(plan.result["options"])
                if option["feasible"] and option["cost_per_iteration"] is not None
            ],
        }
        for plan in plans
    ]


def fronts_table(plans: list[Plan]) -> Figures:
    """What the chart of compared plans draws."""
    rows = [{"plan": drawn["name"], **point} for drawn in compared_fronts(plans) for point in drawn["points"]]
    keys = ("dp_cells", "iteration_ms", "cost_per_iteration")
    return Figures(
        name="fronts",
        title="Cost against time",
        rows=rows,
        columns=[
            Column(label="Plan", key="plan"),
            *(c for c in COLUMNS if c.key in keys),
            Column(label="On the Pareto front", key="on_front"),
        ],
    )
