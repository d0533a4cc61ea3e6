"""What the Placement pages show: figures, tables, the matrix of the network, the cost over evaluations."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.db.models import F
from django.http import Http404

from engine.errors import InputError
from engine.inputs import parse
from engine.job.changed import value_at
from engine.plan.placement import scenarios
from engine.plan.placement.request import PlacementRequest
from webapp.accounts.permissions import visible_or_404
from webapp.common.figures import LEVELS, Column, Figures, Matrix
from webapp.common.queries import whole
from webapp.computations.models import Computation
from webapp.inventory.models import DataCenter
from webapp.placement.forms import SOURCE_WORDS, document_of
from webapp.placement.map import placement_map
from webapp.placement.network import Network, network_from, of_case, of_document
from webapp.placement.options import form_values, option_of, placed_plan
from webapp.placement.pages import pages
from webapp.planning.document import train_document
from webapp.planning.models import Plan

LAUNCHED = ("forward_ms", "backward_ms", "recompute_ms", "activation_bytes")  # of a plan with explicit times
MOST_PLACES = 40  # of the matrix on the page; the file has all
MOST_ROWS = 200  # of a table on the page; the file has all
MEASURES = {
    "latency": ("Latency, one way", "ms", "latency_ms", 1),
    "bandwidth": ("Bandwidth", "Gbit/s", "bandwidth_gbps", 3),
}
ENDED = {
    "evaluations": "the limit of evaluations was reached",
    "bounds": "bounds ruled out the remaining candidates",
    "proven": "every partition was evaluated: none is cheaper",
    "seconds": "the time limit was reached",
    "cancelled": "stopped",
}


def listed() -> Any:
    """Placements as lists show them: `grid` [P, D] and `cost_s`, without the documents themselves."""
    figures = pages.rows().annotate(
        grid=F("request__grid"), cost_s=F("answer__placement__cost_s"), source=F("request__source")
    )
    return figures.select_related("created_by").defer("request", "answer")


def network_of(question: dict[str, Any]) -> Network:
    """The devices of a kept question and the network between them."""
    if question["network"] is not None:
        return network_from(question["network"])
    document = question["document"]
    if document.get("scenario") and "latency_ms" not in document and "bandwidth_gbps" not in document:
        return of_case(document["scenario"])
    return of_document(parse(PlacementRequest, document))


def initial_from(user: Any, query: Mapping[str, str]) -> dict[str, Any]:
    """The form's first values: of another placement (from), of an option of a plan, or of the inventory's."""
    if query.get("plan"):
        plan = visible_or_404(Plan.objects.select_related("team"), user, pk=whole(query["plan"]) or 0)
        option = option_of(plan, query.get("option"))
        if option is None:
            raise Http404
        return form_values(plan, int(query["option"]), option)
    key = query.get("from", "")
    if not key:
        return {"datacenters": list(DataCenter.objects.visible_to(user).values_list("pk", flat=True)[:20])}
    placement = pages.named(user, key)
    return {**placement.request["asked"], "name": f"{placement.name} again"[:80]}


def launch_values(placement: Computation, user: Any) -> dict[str, Any]:
    """The first values of the launch form: those of the plan that was placed, if it is there to be read."""
    placed = placed_plan(placement.request, Plan.objects.visible_to(user).filter(team=placement.team))
    if placed is None:
        return {}
    plan, option = placed
    job, training = plan.request["job"], plan.training or {}
    values = {**training, **training.get("model", {}), "policy": option["policy"]}
    values |= {name: job[name] for name in (*LAUNCHED, "microbatches") if job.get(name) is not None}
    if "model" not in job:
        return values
    try:
        return values | _of_model(train_document(plan.request, option, plan.training))
    except InputError:
        return values  # what cannot be launched is said at the plan


def _of_model(document: dict[str, Any]) -> dict[str, Any]:
    """Of the run of a plan of a model: what is trained, and the times of its slowest stage."""
    cell = document["cell"]
    values = {**document["model"], "micro_batch": cell["micro_batch"]}
    if "activation_bytes" in cell:
        values["activation_bytes"] = cell["activation_bytes"]
    for name, times in value_at(document, "device.times_ms", {}).items():
        values[f"{name}_ms"] = max(times) if isinstance(times, list) else times
    return values


def result_context(computation: Computation, show: str) -> dict[str, Any]:
    """All that placement_result.html shows, besides the computation itself."""
    question, answer = computation.request, computation.answer or {}
    network = network_of(question)
    placement, progress = answer.get("placement"), computation.progress or {}
    document = question["document"]
    if document.get("scenario"):
        document = {
            name: v for name, v in scenarios.fill_in(document).items() if not name.endswith(("_ms", "_gbps"))
        }
    context: dict[str, Any] = {
        "network": network,
        "source": SOURCE_WORDS[question["source"]],
        "asked": document,
        "here": Counter(network.places[place].name for place in network.place_of).most_common(),
        "progress": progress,
        "percent_searched": _percent(progress),
        "matrix": matrix(network, show),
        "measures": [(name, label) for name, (label, *_) in MEASURES.items()],
        "chart": _chart(placement, answer.get("baselines", []), progress),
        "found": placement,
    }
    if placement is None:
        return context
    return context | {
        "ended": ENDED[placement["stopped_by"]],
        "tables": tables(placement, answer["baselines"], network, answer.get("run", {})),
        "against": answer.get("run"),
        "map": placement_map(network, placement["groups"], placement["pipelines"]),
    }


def _percent(progress: dict[str, Any]) -> float | None:
    done, limit = progress.get("evaluations"), progress.get("limit")
    return 100 * done / limit if done is not None and limit else None


def matrix(network: Network, show: str) -> Matrix:
    """The matrix of the first MOST_PLACES places; `show` is a name of MEASURES, else the first."""
    show = show if show in MEASURES else "latency"
    label, unit, field, decimals = MEASURES[show]
    table: list[list[float | None]] = getattr(network, field)
    names = [place.name for place in network.places[:MOST_PLACES]]
    values = [v for row in table[: len(names)] for v in row[: len(names)] if v is not None]
    most = max(values, default=0.0)
    rows = []
    for i, name in enumerate(names):
        cells: list[tuple[str, int | None, str]] = []
        for j, other in enumerate(names):
            value = table[i][j]
            if value is None:
                cells.append(("–", None, f"{name}: one device"))
                continue
            level = min(LEVELS - 1, int(value / most * LEVELS)) if most > 0 else 0
            pair = f"{name} – {other}" if i != j else f"inside {name}"
            cells.append((f"{value:,.{decimals}f}", level, f"{pair}: {value:,.{decimals}f} {unit}"))
        rows.append((name, cells))
    by_device = len(network.places) == network.devices
    return Matrix(
        show=show,
        label=label,
        unit=unit,
        names=names,
        rows=rows,
        most=most,
        of=len(network.places),
        by_device=by_device,
    )


def tables(
    placement: dict[str, Any], baselines: list[dict[str, Any]], network: Network, run: dict[str, Any]
) -> dict[str, Figures]:
    """Every table of a placement by name; `matrix` and `history` are files only."""
    figures = (
        _costs(placement, baselines),
        _groups(placement, network),
        _pipelines(placement, network),
        _history(placement, baselines),
        _matrix_rows(network),
        *([_against(run)] if "placed_ms" in run else []),
    )
    return {table.name: table for table in figures}


def _costs(placement: dict[str, Any], baselines: list[dict[str, Any]]) -> Figures:
    ours = placement["cost_s"]
    rows = [{"name": "ours", "kind": "search", "cost_s": ours, "ratio": 1.0 if ours else None}]
    for kind, others in (("structured start", placement["starts"]), ("baseline", baselines)):
        rows += [
            {
                "name": other["name"],
                "kind": kind,
                "cost_s": other["cost_s"],
                "ratio": other["cost_s"] / ours if ours else None,
            }
            for other in others
        ]
    return Figures(
        name="costs",
        title="Compared with",
        rows=rows,
        note="Eq. 1, seconds of communication per iteration; all with the same matching and order",
        columns=[
            Column(label="Placement", key="name"),
            Column(label="Kind", key="kind", wide=True),
            Column(label="Cost", key="cost_s", unit="s", decimals=4),
            Column(label="Relative to ours", key="ratio", unit="×", decimals=2),
        ],
    )


def _against(run: dict[str, Any]) -> Figures:
    """Iteration times of the plan, of a run of it, and of a run on the placement."""
    planned = run["planned_ms"]
    rows = [
        {"name": label, "ms": run[name], "ratio": run[name] / planned}
        for name, label in (
            ("plan_ms", "As the plan says"),
            ("planned_ms", "A run of the plan's option"),
            ("placed_ms", "A run on this placement"),
        )
    ]
    return Figures(
        name="iteration",
        title="Iteration time",
        rows=rows,
        note="predicted, compared with the plan's",
        columns=[
            Column(label="", key="name"),
            Column(label="Iteration", key="ms", unit="ms", decimals=1),
            Column(label="Relative to the option's run", key="ratio", unit="×", decimals=3),
        ],
    )


def _groups(placement: dict[str, Any], network: Network) -> Figures:
    hops = [*placement["hop_cost_s"], None]
    rows = [
        {
            "stage": i + 1,
            "places": _devices_by_dc(group, network),
            "dp_s": placement["group_cost_s"][i],
            "hop_s": hops[i],
            "devices": ", ".join(network.labels[device] for device in group),
        }
        for i, group in enumerate(placement["groups"])
    ]
    return Figures(
        name="groups",
        title="Groups",
        note="one per stage, in pipeline order",
        rows=rows,
        most=MOST_ROWS,
        columns=[
            Column(label="Stage", key="stage", decimals=0),
            Column(label="Devices in", key="places"),
            Column(label="Devices", key="devices", wide=True),
            Column(label="Gradients", key="dp_s", unit="s", decimals=4),
            Column(label="To the next", key="hop_s", unit="s", decimals=4),
        ],
    )


def _devices_by_dc(group: list[int], network: Network) -> str:
    """Where the devices of a group stand: Oregon 4, Virginia 4; alone, what they are called."""
    here = Counter(network.places[network.place_of[device]].name for device in group)
    if max(here.values()) == 1:
        return ", ".join(here)
    return ", ".join(f"{name} {count}" for name, count in here.items())


def _pipelines(placement: dict[str, Any], network: Network) -> Figures:
    rows = [
        {
            "pipeline": i + 1,
            "path": _path(pipeline, network),
            **{f"s{k}": network.labels[device] for k, device in enumerate(pipeline)},
        }
        for i, pipeline in enumerate(placement["pipelines"])
    ]
    stages = len(placement["groups"])
    return Figures(
        name="pipelines",
        title="Pipelines",
        note="the device of each stage",
        rows=rows,
        most=MOST_ROWS,
        columns=[
            Column(label="Pipeline", key="pipeline", decimals=0),
            Column(label="Path", key="path"),
            *(Column(label=f"S{k + 1}", key=f"s{k}", wide=True) for k in range(stages)),
        ],
    )


def _path(pipeline: list[int], network: Network) -> str:
    """Places in order, neighbours that are one place once: Oregon 3, Virginia 5."""
    runs: list[tuple[str, int]] = []
    for device in pipeline:
        name = network.places[network.place_of[device]].name
        runs = [*runs[:-1], (name, runs[-1][1] + 1)] if runs and runs[-1][0] == name else [*runs, (name, 1)]
    return " → ".join(name if count == 1 else f"{name} {count}" for name, count in runs)


def _history(placement: dict[str, Any], baselines: list[dict[str, Any]]) -> Figures:
    rows = [{"name": "ours", **fall} for fall in placement["history"]]
    rows += [
        {"name": other["name"], "evaluations": at, "cost_s": cost}
        for other in baselines
        for at, cost in other["history"]
    ]
    return Figures(
        name="history",
        title="Cost over evaluations",
        rows=rows,
        most=MOST_ROWS,
        columns=[
            Column(label="Search", key="name"),
            Column(label="Evaluations", key="evaluations", decimals=0),
            Column(label="Least cost", key="cost_s", unit="s", decimals=6),
        ],
    )


def _matrix_rows(network: Network) -> Figures:
    names = [place.name for place in network.places]
    rows = [
        {"from": a, "to": b, "latency": network.latency_ms[i][j], "bandwidth": network.bandwidth_gbps[i][j]}
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if network.latency_ms[i][j] is not None
    ]
    return Figures(
        name="matrix",
        title="Network",
        rows=rows,
        columns=[
            Column(label="From", key="from"),
            Column(label="To", key="to"),
            Column(label="Latency", key="latency", unit="ms", decimals=3),
            Column(label="Bandwidth", key="bandwidth", unit="Gbit/s", decimals=6),
        ],
    )


def _chart(
    placement: dict[str, Any] | None, baselines: list[dict[str, Any]], progress: dict[str, Any]
) -> dict[str, Any] | None:
    """{lines: [{name, points}], levels: [{name, cost_s}], last}: what the chart of cost over time draws."""
    if placement is None:
        falls = progress.get("falls") or []
        if not falls:
            return None
        last = progress["evaluations"]
        return {"lines": [{"name": "ours", "points": falls}], "levels": [], "last": last}
    ours = [[fall["evaluations"], fall["cost_s"]] for fall in placement["history"]]
    lines = [{"name": "ours", "points": ours}]
    lines += [{"name": b["name"], "points": b["history"]} for b in baselines if b["history"]]
    levels = [{"name": b["name"], "cost_s": b["cost_s"]} for b in baselines if not b["history"]]
    last = max([placement["evaluations"], *(point[0] for line in lines for point in line["points"][-1:])])
    return {"lines": lines, "levels": levels, "last": last}


def file_of(computation: Computation, name: str) -> str | None:
    """A table as CSV, in full; None where there is none of that name, or no answer yet."""
    answer = computation.answer or {}
    if "placement" not in answer:
        return None
    network = network_of(computation.request)
    table = tables(answer["placement"], answer["baselines"], network, answer.get("run", {})).get(name)
    return None if table is None else table.as_csv()


def command_document(computation: Computation) -> dict[str, Any]:
    """The document of `meridian place`, matrices as lists."""
    document = document_of(computation.request)
    lists = {name: value.tolist() for name, value in document.items() if hasattr(value, "tolist")}
    return document | lists
