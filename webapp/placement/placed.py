"""From a placement of GPUs of the inventory to the document of `meridian train`: which GPU each rank gets,
and the predicted time of such a run compared with that of its plan."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.utils.text import capfirst

from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.predict import predict
from webapp.computations.models import Computation
from webapp.inventory.models import Device, Node
from webapp.inventory.selectors import named_pools
from webapp.placement.network import network_from
from webapp.placement.options import placed_plan
from webapp.planning.compose import links_of
from webapp.planning.document import pinned_document, sections_of, train_document, train_fields
from webapp.planning.models import Plan

EMULATED_ONLY = ("times_ms", "activation_bytes")
# Of a run's fields, what says where it computes: a placement has its own.
WHERE = ("datacenters", "links", "stages", "dc_of_stage", "pipelines", "cells", "device", "schedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """A document of `meridian train` with `devices`, and [name of the node, GPU] of each of its ranks."""

    document: dict[str, Any]
    gpu_of_rank: list[list[Any]]


def placed_job(
    placement: Computation, training: dict[str, Any], answer: dict[str, Any] | None = None
) -> PlacedJob:
    """The job that trains on the groups and pipelines of `placement`, as the inventory stands now.

    Parameters
    ----------
    training : {model, microbatches, micro_batch, policy, steps, lr, seed, times_ms?, activation_bytes?} by
        their flat names; the last two are left out where nodes do not emulate.
    answer : the engine's answer, where `placement` does not hold it yet.

    Raises
    ------
    InputError
        The placement is of no inventory or not done, the inventory does not hold its GPUs any more, or the
        engine refuses the document.
    """
    answer = answer or (None if placement.is_open else (placement.answer or {}).get("placement"))
    if answer is None:
        raise InputError(
            "placement", placement.name, "has no result yet: a run needs its groups and pipelines"
        )
    pipelines = answer["pipelines"]
    gpu_of_device = {
        device: gpu
        for pipeline in pipelines
        for device, gpu in zip(pipeline, _gpus_of(placement, pipeline), strict=True)
    }
    nodes = _nodes(placement, gpu_of_device)
    pools = named_pools(list({node.dc_id: node.dc for node in nodes.values()}.values()))
    names = {pool.pk: name for name, pool in pools.items()}
    gpus_of_pool = Counter(nodes[name].pool_id for name, _ in gpu_of_device.values())
    used = {name: pool for name, pool in pools.items() if gpus_of_pool[pool.pk]}
    order = list(used)
    pool_of_device = {device: names[nodes[name].pool_id] for device, (name, _) in gpu_of_device.items()}
    at = sorted(gpu_of_device, key=lambda device: (order.index(pool_of_device[device]), device))
    number = {device: position for position, device in enumerate(at)}
    fields = {
        "datacenters": [{"name": name, "gpus": gpus_of_pool[pool.pk]} for name, pool in used.items()],
        "links": links_of(used),
        "stages": len(answer["groups"]),
        "pipelines": len(pipelines),
        "all_reduce": "auto",
        "devices": {
            "pipelines": [[number[device] for device in pipeline] for pipeline in pipelines],
            "groups": [[number[device] for device in group] for group in answer["groups"]],
        },
        **_trained(training, nodes),
    }
    document = sections_of(fields)
    parse(TrainJob, document)
    return PlacedJob(
        document=document,
        gpu_of_rank=[list(gpu_of_device[device]) for pipeline in pipelines for device in pipeline],
    )


def _gpus_of(placement: Computation, pipeline: list[int]) -> list[tuple[str, int]]:
    if placement.request["source"] != "inventory":
        raise InputError(
            "placement",
            placement.name,
            "was not made from the inventory, so its devices are not GPUs of the site",
        )
    gpu_of_device = network_from(placement.request["network"]).gpu_of_device
    if not gpu_of_device:
        allowed = "does not record its nodes: place the devices again (Copy and edit)"
        raise InputError("placement", placement.name, allowed)
    gpus = [gpu_of_device[device] for device in pipeline]
    if None in gpus:
        allowed = "places whole nodes with several GPUs, but a rank runs on one GPU: place GPUs instead"
        raise InputError("placement", placement.name, allowed)
    return [(gpu[0], gpu[1]) for gpu in gpus if gpu is not None]


def _nodes(placement: Computation, gpu_of_device: dict[int, tuple[str, int]]) -> dict[str, Node]:
    """The nodes of `gpu_of_device` by name: all of the placement's team, with those GPUs, where they were."""
    wanted = {name for name, _ in gpu_of_device.values()}
    rows = Node.objects.filter(name__in=wanted, dc__team=placement.team).select_related("dc", "pool")
    nodes = {node.name: node for node in rows}
    network = network_from(placement.request["network"])
    missing = set()
    for device, (name, gpu) in gpu_of_device.items():
        node, dc = nodes.get(name), network.places[network.place_of[device]].name
        if node is None or node.dc.name != dc:
            missing.add(f"{name} in {dc}")
        elif gpu >= node.gpus:
            missing.add(f"GPU {gpu} of {name}")
    if missing:
        allowed = "these are no longer in the inventory: place the devices again"
        raise InputError("placement", ", ".join(sorted(missing)), allowed)
    return nodes


def _trained(training: dict[str, Any], nodes: dict[str, Node]) -> dict[str, Any]:
    """`training` on the device that all nodes have."""
    devices = sorted({node.device for node in nodes.values()})
    if len(devices) > 1:
        raise InputError("placement", ", ".join(devices), "its nodes must all have the same device kind")
    if devices[0] == Device.EMULATED:
        return {**training, "device": devices[0]}
    values = {name: value for name, value in training.items() if name not in EMULATED_ONLY}
    return {**values, "device": devices[0]}


def placed_against_plan(placement: Computation, answer: dict[str, Any]) -> dict[str, Any]:
    """{plan_ms, planned_ms, placed_ms}, or {reason} where the placement cannot be run.

    Parameters
    ----------
    answer : the answer of the engine, which `placement` need not hold yet.

    Returns
    -------
    plan_ms : iteration of the option, as the plan says.
    planned_ms, placed_ms : as predicted of a run that is launched from the option, and from the placement.
    """
    placed = placed_plan(placement.request, Plan.objects.filter(work__computation=placement))
    if placed is None:
        return {"reason": "The plan has no such option any more."}
    plan, option = placed
    try:
        return {
            "plan_ms": option["iteration_ms"],
            "planned_ms": _iteration_ms(train_document(plan.request, option, plan.training)),
            "placed_ms": _iteration_ms(option_on_placement(plan, option, placement, answer).document),
        }
    except InputError as error:
        return {"reason": f"{capfirst(error.allowed)}."}


def option_on_placement(
    plan: Plan, option: dict[str, Any], placement: Computation, answer: dict[str, Any] | None = None
) -> PlacedJob:
    """The job that a launch of `option` gives, on the GPUs where `placement` puts them.

    Raises InputError where either cannot be run; says why.
    """
    planned = train_fields(plan.request, option, plan.training)
    training = {name: value for name, value in planned.items() if name not in WHERE}
    return placed_job(placement, training, answer)


def _iteration_ms(document: dict[str, Any]) -> float:
    return predict(parse(TrainJob, pinned_document(document))).iteration_s * 1e3
