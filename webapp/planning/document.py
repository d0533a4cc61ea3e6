"""From an option of a plan to the document of `meridian train`: which stage runs in which DC."""

from collections.abc import Callable
from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.job.changed import changed
from engine.job.flat import in_sections
from engine.job.job import TrainJob
from engine.job.planned import pinned, wants_search, with_rule
from engine.schedule import Scenario, Search
from engine.schedule.text import parse_schedule
from webapp.planning.planned_model import planned_model, with_files

LONGEST_SEARCH_S = 20.0  # GPUs wait for it


def train_document(
    request: dict[str, Any], option: dict[str, Any], training: dict[str, Any] | None
) -> dict[str, Any]:
    """The document of `meridian train` that runs one `option` of a plan.

    Parameters
    ----------
    request, option : the plan's document and one entry of its answer's `options` (docs/dev/contracts.md).
    training : {model, micro_batch, steps, lr, seed, data?, clip?, device} of what is trained; without a
        `model` the one that was planned. None: the plan does not say.

    Raises
    ------
    InputError
        The option cannot be run in this version, or the document that it gives is refused.
    """
    document = sections_of(train_fields(request, option, training))
    job = parse(TrainJob, document)
    return changed(document, {"strategy.schedule": _orders(option, job)})


def sections_of(fields: dict[str, Any]) -> dict[str, Any]:
    """The document in sections of `train_fields`, without what is not given of its data."""
    document = in_sections(fields)
    absent = [name for name, value in document.get("data", {}).items() if value is None]
    return changed(document, {f"data.{name}": None for name in absent})


def site_job(document: dict[str, Any]) -> TrainJob:
    """The job of `document`, its search no longer than the site lets one take.

    Raises
    ------
    InputError
        The document is refused, or the site cannot place its ranks.
    """
    job = parse(TrainJob, document)
    if job.swap_strategy:
        for name in ("joins", "leaves"):
            if changes := getattr(job.swap_strategy, name):
                allowed = "works only with `meridian train`: the site starts all workers at once"
                raise InputError(f"strategy.{name}", [each.model_dump() for each in changes], allowed)
    if not wants_search(job):
        return job
    limit_s = min(job.pipeline_strategy.time_limit_s, LONGEST_SEARCH_S)
    return parse(TrainJob, changed(document, {"strategy.time_limit_s": limit_s}))


def pinned_document(
    document: dict[str, Any], search: Callable[[Scenario], Search] | None = None
) -> dict[str, Any]:
    """The document with its schedule in it where a search makes that: all nodes must run the same one.

    Takes as long as the search. `search` gives it its wires.

    Raises
    ------
    InputError
        The document is refused, the site cannot place its ranks, or its limits leave no schedule.
    """
    job = site_job(document)
    schedule = pinned(job, search(job.scenario) if search else None)
    if schedule is job:
        return document
    return changed(document, {"strategy.schedule": schedule.pipeline_strategy.schedule})


def ruled_document(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the fastest rule of contention by its name, where it asks for the best one.

    Raises InputError: the document is refused, or its limits leave no schedule.
    """
    job = site_job(document)
    ruled = with_rule(job)
    if ruled is job:
        return document
    return changed(document, {"strategy.contention": ruled.pipeline_strategy.contention})


def train_fields(
    request: dict[str, Any], option: dict[str, Any], training: dict[str, Any] | None
) -> dict[str, Any]:
    """The fields of that job by their flat names, without the orders that the plan found. Not validated.

    Raises InputError: the option cannot be run in this version.
    """
    if not option.get("feasible"):
        raise InputError("option", option.get("dp_cells"), option.get("reason") or "is not feasible")
    for name, alone in (("cp", "each sequence on one GPU"), ("ep", "all experts of a stage on one GPU")):
        degree = request["job"].get(name) or 1
        if degree > 1:
            raise InputError(name, degree, f"a training run has {alone}: to launch, plan with {name}: 1")
    if len(set(option.get("recompute") or ())) > 1:
        allowed = "a training run recomputes in all stages or in none: plan with full or none to launch"
        raise InputError("recompute", "auto", allowed)
    if request["job"].get("recompute") == "selective" and not request["job"].get("fused_attention", True):
        raise InputError("recompute", "selective", "a training run has full or none: plan with one to launch")
    if not training:
        raise InputError("training", None, "the plan has no section Training: copy the plan and fill it in")
    used = [part["dc"] for part in option["partitions"]]
    names = list(dict.fromkeys(used))
    sites = {dc["name"]: dc for dc in request["datacenters"]}
    fields = ("name", "gpus", "hb_domain")
    job = request["job"]
    document = {
        "datacenters": [
            {field: sites[name][field] for field in fields if sites[name].get(field) is not None}
            for name in names
        ],
        "links": [link for link in request.get("links", []) if set(link["between"]) <= set(names)],
        "stages": sum(part["stages"] for part in option["partitions"]),
        "dc_of_stage": [
            names.index(part["dc"]) for part in option["partitions"] for _ in range(part["stages"])
        ],
        "pipelines": option["pipelines"],
        **({"cells": option["dp_cells"]} if option["dp_cells"] > 1 else {}),
        **({"zero": 1} if job.get("zero") else {}),
        "microbatches": job["microbatches"],
        "policy": option["policy"],
        "weight_decay_on": "matrices",
        **{name: value for name, value in training.items() if name not in ("prepared", "tokenizer", "init")},
    }
    if training.get("prepared"):
        # With a field that is no text it is the section, whatever data centres are called.
        document["data"] = {"prepared": training["prepared"], "files": None}
    for rule in ("recompute_rule", "contention", "memory_limit"):
        if request.get(rule) is not None:
            document[rule] = request[rule]
    if option.get("contention"):
        document["contention"] = option["contention"]
    # On GPUs NCCL knows the domains by itself.
    if any("hb_domain" in dc for dc in document["datacenters"]) and document.get("device") == "emulated":
        document["all_reduce"] = "hierarchical"
    if "model" in job:
        document |= planned_model(request, option, training)
    elif document.get("device") == "emulated":
        document["times_ms"] = {
            "forward": job["forward_ms"],
            "backward": job["backward_ms"],
            "recompute": job.get("recompute_ms") or 0,
        }
        if job.get("activation_bytes"):
            document["activation_bytes"] = int(job["activation_bytes"])
    document["model"] = with_files(document["model"], training)
    return document


def _orders(option: dict[str, Any], job: TrainJob) -> str | None:
    """The orders that the plan found beyond its policy's, as text; none that the trained model is too
    small for, or that go round where links do not."""
    text = option.get("schedule")
    if text is None:
        return None
    traversal = parse_schedule(text).traversal
    fits = job.chunk_without_layer(traversal.chunks) is None and not traversal.wraps
    return str(text) if fits else None
