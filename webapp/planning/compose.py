"""From the plan form's values and the inventory to the document of `meridian plan`."""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from engine.model.serving import PrefillBudget
from engine.plan.what_if import transfer_to_forward
from webapp.common.number_lists import one_or_many
from webapp.inventory.models import Device, GpuPool, WanLink
from webapp.inventory.selectors import named_pools, pools
from webapp.planning.data_fields import PATH_OF, files_of
from webapp.planning.model_fields import model_values
from webapp.planning.models import Plan

RULES = (
    "policy",
    "order",
    "objective",
    "bill",
    "max_dp_cells",
    "budget_per_iteration",
    "iterations",
    "deadline_h",
)
COUNTED = ("partitions", "microbatches", "tp", "cp", "ep", "mfu", "recompute", "zero")
# What a launch of a plan of a model trains: that model, or a small one with its times, a stand-in.
PLANNED, SMALL = "planned", "small"
ON, OFF = "on", "off"
SHAPE = ("layers", "hidden", "heads", "seq")
TRAINED = ("device", *PATH_OF, "micro_batch", "steps", "lr", "seed")
PREFILL = ("weight_budget_gb", "kv_budget_gb")
EXPLICIT = ("forward_ms", "backward_ms", "recompute_ms", "parameters_per_stage", "activation_bytes")


def request_of(values: dict[str, Any]) -> dict[str, Any]:
    """The document of `meridian plan`: pools of the chosen data centres, their links, job and rules.

    Of each pool the GPUs count that a launch could use: those of the device that it trains on.
    """
    chosen = named_pools(values["datacenters"], device_of(values))
    links = links_of(chosen)
    document = {
        "method": values.get("method") or "algorithm1",
        "datacenters": [_datacenter(name, pool) for name, pool in chosen.items()],
        "links": links,
        "job": _job(values, links),
        "allreduce": values["source"] == "model" or values.get("parameters_per_stage") is not None,
    }
    return document | {name: values[name] for name in RULES if values.get(name) not in (None, "")}


def device_of(values: dict[str, Any]) -> str | None:
    """The device that a launch trains on; None where too little is said of what it trains."""
    training = training_of(values)
    return training["device"] if training else None


def training_of(values: dict[str, Any]) -> dict[str, Any] | None:
    """What a launch trains, as fields of `meridian train`, without a `model` where that is the planned one;
    None where too little is said."""
    shape = {name: values.get(name) for name in SHAPE}
    as_planned = values["source"] == "model" and values.get("trains") != SMALL
    if not values.get("steps") or (None in shape.values() and not as_planned):
        return None
    training = {
        "device": values.get("device") or Device.EMULATED.value,
        "steps": values["steps"],
        "lr": values.get("lr") or 1e-3,
        "seed": values.get("seed") or 0,
    }
    training |= files_of(values)
    if as_planned:
        return training
    if values.get("vocab"):
        shape["vocab"] = values["vocab"]
    return training | {"model": shape, "micro_batch": values.get("micro_batch") or 1}


def initial_of(plan: Plan) -> dict[str, Any]:
    """The form's values that lead to `plan` again; the inverse of `request_of` and `training_of`."""
    job, training = plan.request["job"], plan.training or {}
    names = [dc["name"] for dc in plan.request["datacenters"]]
    dcs = list({pool.dc_id: pool.dc for pool in pools(plan.team, names).values()}.values())
    values = {
        **{name: plan.request[name] for name in RULES if plan.request.get(name) is not None},
        **{name: job[name] for name in (*EXPLICIT, *COUNTED) if name in job},
        **{name: training[name] for name in TRAINED if name in training},
        **training.get("model", {}),
        "team": plan.team_id,
        "name": plan.free_name(),
        "method": plan.request.get("method", "search"),
        "datacenters": dcs,
        "source": "model" if "model" in job else "times",
        "trains": SMALL if "model" in training else PLANNED,
    }
    if "model" in job:
        prefill = job.get("prefill") or {}
        layers = job.get("layers_per_stage", "even")
        values |= {"layers_per_stage": layers} if isinstance(layers, list) else {"spread": layers}
        values["sequence_parallel"] = ON if job.get("sequence_parallel", True) else OFF
        if job.get("memory_margin"):
            values["memory_margin"] = round(100 * job["memory_margin"], 9)
        if isinstance(flag := job.get("recompute"), bool):
            prefill = prefill | {"recompute": "full" if flag else "none"}
        return (
            values | prefill | model_values(job["model"]) | {"model_micro_batch": job.get("micro_batch", 1)}
        )
    if job.get("comm_to_compute") != transfer_to_forward(values, links_of(named_pools(dcs))):
        values["comm_to_compute"] = job.get("comm_to_compute")
    return values


def _datacenter(name: str, pool: Any) -> dict[str, Any]:
    dc = pool.dc
    document = {
        "name": name,
        "gpus": pool.gpu_count,
        "gpu_type": pool.gpu_type,
        "price_per_gpu_hour": float(pool.price_per_gpu_hour),
        "intra_gbps": dc.intra_gbps,
    }
    if dc.hb_domain is not None:
        document |= {"fabric": dc.fabric, "hb_domain": dc.hb_domain}
    if dc.latitude is not None and dc.longitude is not None:
        document |= {"latitude": dc.latitude, "longitude": dc.longitude}
    return document


def links_of(chosen: dict[str, GpuPool]) -> list[dict[str, Any]]:
    """Links between pools: those of their data centres; inside one, the network that all its nodes share."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, pool in chosen.items():
        names[pool.dc_id].append(name)
    wan = WanLink.objects.filter(a__in=names, b__in=names).order_by("a__name", "b__name")
    documents = [
        _link(link, pair) for link in wan for pair in itertools.product(names[link.a_id], names[link.b_id])
    ]
    for inside in names.values():
        documents += [
            {"between": list(pair), "latency_ms": 0.0, "bandwidth_gbps": chosen[pair[0]].dc.intra_gbps}
            for pair in itertools.combinations(inside, 2)
        ]
    return documents


def _link(link: WanLink, between: tuple[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "between": list(between),
        "latency_ms": link.latency_ms,
        "bandwidth_gbps": link.bandwidth_gbps,
    }
    if link.connections:
        document["connections"] = link.connections
    if link.egress_price_per_gb:
        document["egress_price_per_gb"] = float(link.egress_price_per_gb)
    return document


def _job(values: dict[str, Any], links: Iterable[dict[str, Any]]) -> dict[str, Any]:
    job: dict[str, Any] = {
        "partitions": one_or_many(values["partitions"]),
        "microbatches": values["microbatches"],
    }
    if values["source"] == "model":
        job |= {"model": values["model"], "micro_batch": one_or_many(values.get("model_micro_batch")) or 1}
        asked_for = {name: values[name] for name in PREFILL if values.get(name)}
        prefill = PrefillBudget(**asked_for).model_dump() if asked_for else None
        rest = {
            "tp": one_or_many(values.get("tp")),
            **{name: values[name] for name in ("cp", "ep") if (values.get(name) or 1) > 1},
            "layers_per_stage": values.get("layers_per_stage") or values.get("spread"),
            "mfu": values.get("mfu"),
            "recompute": values.get("recompute"),
            "zero": values.get("zero"),
            "prefill": prefill,
            "memory_margin": (values.get("memory_margin") or 0) / 100,
        }
        if values.get("sequence_parallel") == OFF:
            job["sequence_parallel"] = False
        return job | {name: value for name, value in rest.items() if value}
    job |= {name: values[name] for name in EXPLICIT if values.get(name) is not None}
    comm_to_compute = values.get("comm_to_compute")
    job["comm_to_compute"] = (
        transfer_to_forward(values, links) if comm_to_compute is None else comm_to_compute
    )
    if values.get("micro_batch") and values.get("seq"):
        job["tokens_per_microbatch"] = values["micro_batch"] * values["seq"]
    return job
