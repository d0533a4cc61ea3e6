"""What the Traces pages show: key figures, tables, what-ifs next to the measured figures."""

from typing import Any

from engine.schedule.registry import name_of
from webapp.common.figures import Column, Fact, Figures
from webapp.common.markup import DASH, as_bytes
from webapp.computations.models import OPEN, Computation, ComputationKind
from webapp.traces.models import Trace

# Formats of `engine.analyze` in words.
FORMATS = {
    "bytedance": "ByteDance parquet",
    "spans": "Meridian spans",
    "kineto": "torch.profiler",
    "perfetto": "Perfetto",
}
MOST_ROWS = 8  # of a table on the page; the file has all
MOST_WHAT_IFS = 20  # requests whose answers are shown


def traces() -> Any:
    """Computations that analyse an uploaded trace."""
    return Computation.objects.of(ComputationKind.TRACE)


def listed(user: Any) -> Any:
    """Those that `user` may see, as lists show them."""
    return traces().visible_to(user).select_related("trace", "created_by").defer("request", "answer")


def what_ifs(trace: Trace) -> list[Computation]:
    """What was asked about a trace, the newest first."""
    rows = Computation.objects.filter(of_trace__trace=trace).order_by("-created_at")
    return list(rows[:MOST_WHAT_IFS])


def open_ones(computation: Computation, computations: list[Computation]) -> list[Computation]:
    """Of a trace's computations, those that wait or are at work."""
    return [each for each in (computation, *reversed(computations)) if each.state in OPEN]


def result_context(computation: Computation) -> dict[str, Any]:
    """Everything that the page of a trace shows of its answers, and how far the work is."""
    computations = what_ifs(computation.trace)
    analysis = answer_of(computation).get("analysis")
    return {
        "computation": computation,
        "trace": computation.trace,
        "format": FORMATS.get(computation.trace.format, ""),
        "size": as_bytes(computation.trace.bytes),
        "files": computation.request["files"],
        "analysis": analysis,
        "facts": facts(analysis) if analysis else [],
        "tables": [table for table in tables(analysis) if table.rows] if analysis else [],
        "what_ifs": what_if_table(analysis, computations) if analysis else None,
        "failed": [each for each in computations[:1] if each.state == "failed"],
        "open": open_ones(computation, computations),
    }


def answer_of(computation: Computation) -> dict[str, Any]:
    """{"analysis", "timeline"}; empty before the analysis."""
    return computation.answer or {}


def whole_answer(computation: Computation) -> dict[str, Any]:
    """What `meridian analyze --json` prints, with the questions that were asked here."""
    answers = _answers(what_ifs(computation.trace))
    analysis = answer_of(computation)["analysis"]
    return analysis | ({"what_if": answers} if answers else {})


def facts(analysis: dict[str, Any]) -> list[Fact]:
    """The key figures."""
    bubbles, layout = analysis["bubbles"], analysis["layout"]
    return [
        Fact(
            label="Iteration",
            **_time(analysis["step_s"]),
            beside=f"mean of {analysis['steps']:,}",
        ),
        Fact(
            label="Utilization",
            value=f"{100 * analysis['utilization']:.1f}",
            unit="%",
            beside="of all worker time",
        ),
        Fact(
            label="Bubbles",
            value=f"{100 * bubbles['fraction']:.1f}",
            unit="%",
            beside=f"{bubbles['total_s']:,.1f} s of all workers",
        ),
        Fact(
            label="Slowdown",
            value=_times(analysis["slowdown"]),
            unit="×",
            beside=_beside("ideal", analysis["ideal_step_s"]),
        ),
        Fact(
            label="Launch slowdown",
            value=_times(analysis["launch_slowdown"]),
            unit="×",
            beside=_beside("without delays", analysis["no_delay_step_s"]),
        ),
        Fact(
            label="Workers",
            value=f"{analysis['workers']:,}",
            beside=f"replicas × stages: {layout['replicas']:,} × {layout['stages']:,}",
        ),
    ]


def _time(seconds: float) -> dict[str, str]:
    if seconds >= 10:
        return {"value": f"{seconds:,.2f}", "unit": "s"}
    return {"value": f"{1e3 * seconds:,.1f}", "unit": "ms"}


def _beside(what: str, seconds: float | None) -> str:
    if seconds is None:
        return "not in this trace"
    return f"{what} {' '.join(_time(seconds).values())}"


def _times(slowdown: float | None) -> str:
    return DASH if slowdown is None else f"{slowdown:.3f}"


def tables(analysis: dict[str, Any]) -> list[Figures]:
    """The tables of an analysis. Stages and replicas count from 1, as in the timeline."""
    return [
        _workers(analysis),
        _slowdowns(analysis, "stages", "Slowest stages", "slowdown_by_stage", "Stage"),
        _slowdowns(analysis, "replicas", "Slowest replicas", "slowdown_by_replica", "Replica"),
        _slowdowns(analysis, "ops", "Slowest ops", "slowdown_by_op", "Op"),
        _critical_path(analysis),
    ]


def _workers(analysis: dict[str, Any]) -> Figures:
    slowdowns = analysis["slowdown_by_worker"] or {}
    rows = []
    for worker, utilization in analysis["utilization_by_worker"].items():
        replica, stage = map(int, worker.split(","))
        rows.append(
            {
                "replica": replica + 1,
                "stage": stage + 1,
                "slowdown": slowdowns.get(worker),
                "utilization": utilization,
            }
        )
    rows.sort(key=lambda row: (-(row["slowdown"] or 0), row["utilization"], row["replica"], row["stage"]))
    return Figures(
        name="workers",
        title="Slowest workers" if slowdowns else "Least busy workers",
        note=_explained(analysis),
        rows=rows,
        most=MOST_ROWS,
        columns=[
            Column(label="Replica", key="replica", decimals=0),
            Column(label="Stage", key="stage", decimals=0),
            *([Column(label="Slowdown", key="slowdown", unit="×", decimals=3)] if slowdowns else []),
            Column(label="Utilization", key="utilization", unit="%", decimals=1, scale=100),
        ],
    )


def _explained(analysis: dict[str, Any]) -> str:
    """Which share of the lost time goes if the slowest workers, or the last stage, become ideal."""
    slowest = analysis["slowest_workers"]
    if slowest is None or slowest["explained"] is None:
        return "By slowdown, then by utilization"
    last = 100 * analysis["last_stage"]["explained"]
    text = (
        f"If the slowest 3 % were ideal, {100 * slowest['explained']:.1f} % of the lost time would go; if "
        f"the last stage were, {last:.1f} %"
    )
    return text.replace("-", "−")


def _slowdowns(analysis: dict[str, Any], name: str, title: str, key: str, label: str) -> Figures:
    by_size = sorted((analysis[key] or {}).items(), key=lambda item: -item[1])
    counted = label != "Op"
    rows = [
        {"which": int(which) + 1 if counted else op_name(which), "slowdown": value}
        for which, value in by_size
    ]
    return Figures(
        name=name,
        title=title,
        note="The ideal iteration with these as measured",
        rows=rows,
        most=MOST_ROWS,
        columns=[
            Column(label=label, key="which", decimals=0 if counted else None),
            Column(label="Slowdown", key="slowdown", unit="×", decimals=4),
        ],
    )


def op_name(op: str) -> str:
    """An op of `engine.analyze.trace` in words."""
    return op.replace("-pp-comm", " transfer").replace("-", " ").capitalize()


def _critical_path(analysis: dict[str, Any]) -> Figures:
    """Time of the critical path by op and worker, the longest first."""
    path = analysis["critical_path"] or []
    sums: dict[tuple[str, int, int], dict[str, Any]] = {}
    for run in path:
        key = run["op"], run["replica"], run["stage"]
        first = {"op": op_name(key[0]), "replica": key[1] + 1, "stage": key[2] + 1, "ops": 0, "time_s": 0.0}
        row = sums.setdefault(key, first)
        row["ops"] += run["ops"]
        row["time_s"] += run["end_s"] - run["start_s"]
    whole = path[-1]["end_s"] if path else 0.0
    rows = sorted(sums.values(), key=lambda row: -row["time_s"])
    return Figures(
        name="critical-path",
        title="Critical path",
        note=f"Of iteration {path[0]['step']}, the median without delays" if path else "",
        rows=[row | {"share": row["time_s"] / whole if whole else None} for row in rows],
        most=MOST_ROWS,
        columns=[
            Column(label="Op", key="op"),
            Column(label="Replica", key="replica", decimals=0),
            Column(label="Stage", key="stage", decimals=0),
            Column(label="Ops", key="ops", decimals=0, wide=True),
            Column(label="Time", key="time_s", unit="ms", decimals=2, scale=1e3),
            Column(label="Share", key="share", unit="%", decimals=1, scale=100),
        ],
    )


def what_if_table(analysis: dict[str, Any], computations: list[Computation]) -> Figures:
    """The measured iteration, and next to it the answers, the newest first."""
    measured = {
        "what": "As measured",
        "step_s": analysis["step_s"],
        "utilization": analysis["utilization"],
    }
    rows = [measured, *({**one, "what": told(one["what_if"])} for one in _answers(computations))]
    return Figures(
        name="what-ifs",
        title="What-ifs",
        note="Base: the replay without delays for equal workers, else the measured order, simulated",
        rows=rows,
        columns=[
            Column(label="What if", key="what"),
            Column(label="Base", key="base_s", unit="ms", decimals=1, scale=1e3, wide=True),
            Column(label="Iteration", key="step_s", unit="ms", decimals=1, scale=1e3),
            Column(label="Speed-up", key="speedup", unit="×", decimals=3),
            Column(label="Utilization", key="utilization", unit="%", decimals=1, scale=100),
            *([Column(label="Why not", key="reason")] if any(row.get("reason") for row in rows) else []),
        ],
    )


def _answers(computations: list[Computation]) -> list[dict[str, Any]]:
    return [one for each in computations for one in (each.answer or {}).get("what_if", ())]


def told(question: str) -> str:
    """A question of `meridian analyze --what-if` in words."""
    name, _, value = question.partition("=")
    if name == "policy":
        return f"Policy {name_of(value)}"
    if name == "link":
        latency, transfer = (1e3 * float(part) for part in value.split(","))
        return f"Links of {latency:g} ms latency, {transfer:g} ms transfer"
    if name == "stages":
        return f"Stage times × {value.replace(',', ', ')}"
    return "Equal workers"
