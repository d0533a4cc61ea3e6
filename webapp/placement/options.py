"""Placements of an option of a plan: offered where its nodes or the links between them are not alike."""

from typing import Any

from django.db.models import F

from engine.inputs import parse
from engine.job.model_document import TrainModel
from engine.job.network import hop_network
from webapp.common.queries import whole
from webapp.computations.models import Computation, ComputationKind, ComputationState
from webapp.inventory.models import GpuPool
from webapp.inventory.selectors.pools import pools
from webapp.planning.models import Plan

FP16_BYTES = 2
INTRA_GBPS = 100.0  # where a plan says nothing else (docs/planning.md)
MOST_LISTED = 5
LAYOUT = ("dp_cells", "pipelines", "partitions")


def what_differs(request: dict[str, Any], option: dict[str, Any]) -> list[str]:
    """What is not alike among the nodes and links that `option` uses, as sentences; none where all is.

    Parameters
    ----------
    request, option : the plan's document and one entry of its answer's `options` (docs/dev/contracts.md).
    """
    used = list(dict.fromkeys(part["dc"] for part in option.get("partitions") or ()))
    if len(used) < 2 or option["pipelines"] < 2:
        return []  # there is nothing to choose: every pipeline takes the same way
    sites = [site for site in request["datacenters"] if site["name"] in used]
    inside = {site["name"]: f"{site.get('intra_gbps', INTRA_GBPS):g} Gbit/s" for site in sites}
    differences = [
        _line("GPUs differ", {site["name"]: site.get("gpu_type", "") for site in sites}),
        _line("Networks inside differ", inside),
        _line("Links differ", _links(request, used)),
    ]
    return [text for text in differences if text]


def _links(request: dict[str, Any], used: list[str]) -> dict[str, str]:
    """What the link of every two of `used` carries, or that there is none."""
    link_of = {frozenset(link["between"]): link for link in request.get("links", [])}
    figures = {}
    for index, a in enumerate(used):
        for b in used[index + 1 :]:
            link = link_of.get(frozenset((a, b)))
            figures[f"{a} – {b}"] = _figures(link) if link else "none"
    return figures


def _figures(link: dict[str, Any]) -> str:
    wire = hop_network(
        latency_ms=link["latency_ms"], cap_gbps=link["bandwidth_gbps"], connections=link.get("connections")
    )
    return f"{link['latency_ms']:g} ms, {wire.rate_bytes_per_s * 8 / 1e9:.3g} Gbit/s"


def _line(what: str, figures: dict[str, str]) -> str:
    if len(set(figures.values())) < 2:
        return ""
    return f"{what}: {'; '.join(f'{name} {text}' for name, text in figures.items())}."


def key_of(option: dict[str, Any]) -> dict[str, Any]:
    """What makes `option` the one that was placed: refining may give it other orders."""
    return {name: option.get(name) for name in (*LAYOUT, "policy", "iteration_ms")}


def one_gpu_a_stage(option: dict[str, Any]) -> bool:
    """Whether a stage of a pipeline is on one GPU: others have no placement."""
    return (option.get("tp") or 1) * (option.get("cp") or 1) == 1


def option_of(plan: Plan, index: Any) -> dict[str, Any] | None:
    """The option that `index` names, if GPUs of the inventory can be placed for it."""
    number = whole(str(index), len(plan.result["options"]) - 1)
    option = None if number is None else plan.result["options"][number]
    fits = option is not None and option.get("feasible") and one_gpu_a_stage(option)
    return option if fits else None


def gpus_of(plan: Plan, option: dict[str, Any]) -> dict[GpuPool, int]:
    """The GPUs that `option` uses, by pool; pools that are gone are left out."""
    used = option["gpus_used"]
    return {pool: used[name] for name, pool in pools(plan.team, used).items()}


def form_values(plan: Plan, index: int, option: dict[str, Any]) -> dict[str, Any]:
    """The first values of the Placement form: the option's GPUs, stages and pipelines, and what they send."""
    job, result = plan.request["job"], plan.result
    values: dict[str, Any] = {
        "plan": plan.pk,
        "option": index,
        "team": plan.team_id,
        "source": "inventory",
        "device": "gpu",
        "name": f"{plan.name[:60]} D = {option['dp_cells']}",
        "datacenters": sorted({pool.dc_id for pool in gpus_of(plan, option)}),
        "stages": sum(part["stages"] for part in option["partitions"]),
        "data_parallel": option["pipelines"],
        "model": "",
    }
    parameters = result.get("parameters_per_stage") or job.get("parameters_per_stage")
    activations = result.get("activation_bytes") or job.get("activation_bytes")
    if parameters is None and plan.training:
        parameters = parse(TrainModel, plan.training["model"]).shape.parameters / values["stages"]
    if parameters is not None:
        values["dp_bytes"] = float(parameters * FP16_BYTES)
    if activations is not None:
        values["pp_bytes"] = float(activations * job["microbatches"])
    return values


def placed_plan(question: dict[str, Any], visible: Any) -> tuple[Plan, dict[str, Any]] | None:
    """The plan and the option that a placement's question is of, among the plans `visible`; None where the
    plan has none of that layout any more."""
    source = question.get("asked", {})
    pk = whole(str(source.get("plan")))
    plan = None if pk is None else visible.filter(pk=pk).first()
    option = None if plan is None else option_of(plan, source.get("option"))
    if plan is not None and (of := question.get("of")):
        alike = (each for each in plan.result["options"] if all(each.get(n) == of[n] for n in LAYOUT))
        option = max(alike, key=lambda each: key_of(each) == of, default=None)
    return None if plan is None or option is None else (plan, option)


def placements_of(plan: Plan) -> list[Computation]:
    """The latest placements that were asked for from the page of `plan`, without what they answered but
    `placed_ms`, and `planned_ms` of a run of the option itself (`placed_against_plan`)."""
    rows = Computation.objects.of(ComputationKind.PLACEMENT).filter(team=plan.team_id, of_plan__plan=plan)
    figures = rows.annotate(placed_ms=F("answer__run__placed_ms"), planned_ms=F("answer__run__planned_ms"))
    computations = figures.exclude(state=ComputationState.FAILED).defer("request", "answer")
    return list(computations[:MOST_LISTED])
