"""From a placement of GPUs of the inventory to the document of `meridian train`: which GPU each rank gets."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from webapp.computations.models import Computation
from webapp.inventory.models import Device, Node
from webapp.inventory.selectors import named_pools
from webapp.placement.network import network_from
from webapp.planning.compose import links_of
from webapp.planning.document import sections_of

EMULATED_ONLY = ("times_ms", "activation_bytes")


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
