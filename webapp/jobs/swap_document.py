"""The document of workers that swap, from what a form says, and a form's values from a swap plan."""

from collections.abc import Mapping
from typing import Any

from engine.errors import InputError
from engine.job.changed import changed
from engine.job.swap.filled import filled
from engine.model.document import ModelInput, shape_of
from engine.model.hugging_face import HuggingFaceModel
from engine.model.transformer import Transformer, is_own
from engine.plan.swap.models import named
from engine.plan.swap.plan import plan_swap
from engine.plan.swap.request import SwapRequest
from webapp.inventory.selectors import named_pools
from webapp.jobs.check import GIB
from webapp.planning.compose import links_of
from webapp.planning.planned_model import with_files

SHAPE = ("family", "layers", "hidden", "heads", "kv_heads", "ffn", "seq", "vocab")
TIMES = ("forward_ms", "recompute_ms", "backward_ms")


def swap_document(values: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `meridian train` for workers that are spread over data centres.

    values : of a form: `datacenters` (rows), `device`, `workers`, the model's shape, times and batch.

    Raises
    ------
    InputError
        The data centres have fewer GPUs of the device than there are to be workers.
    """
    chosen: dict[str, Any] = named_pools(values["datacenters"], values["device"])
    shares = spread(values["workers"], {name: pool.gpu_count for name, pool in chosen.items()})
    pools = {name: chosen[name] for name in shares}
    # A plan is one for all workers.
    least = min(pools.values(), key=lambda pool: pool.gpu.memory_bytes)
    document = {
        "datacenters": [{"name": name, "gpus": count} for name, count in shares.items()],
        "links": links_of(pools),
        "cell": {
            "pipelines": values["workers"],
            **{name: values[name] for name in ("microbatches", "micro_batch", "accumulation")},
        },
        "model": with_files({name: values[name] for name in SHAPE if values.get(name)}, values),
        "device": {"kind": values["device"]},
        "optimizer": {
            **{name: values[name] for name in ("steps", "lr", "seed")},
            "weight_decay_on": "matrices",
        },
        "strategy": {
            "kind": "swap",
            "gpu": gpu_given({"name": least.gpu_type}, values),
            "gradients": values["gradients"],
        },
    }
    if values["device"] == "emulated":
        times = {name.removesuffix("_ms"): values[name] for name in TIMES}
        document = changed(document, {"device.times_ms": times})
    return filled(document)


def spread(workers: int, gpus: Mapping[str, int]) -> dict[str, int]:
    """How many workers each pool gets: as even as its GPUs allow; a pool without any is left out.

    Raises InputError: there are fewer GPUs than workers.
    """
    total = sum(gpus.values())
    if workers > total:
        allowed = f"at most {total:,}, the GPUs of that device in the chosen data centres"
        raise InputError("cell.pipelines", workers, allowed)
    shares = dict.fromkeys(gpus, 0)
    while workers:
        for name in [name for name, count in gpus.items() if shares[name] < count][:workers]:
            shares[name] += 1
            workers -= 1
    return {name: count for name, count in shares.items() if count}


def gpu_given(gpu: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`strategy.gpu` with what a form says of it; what is left empty is left out."""
    memory_gib = values.get("memory_gib")
    given = {
        "memory_bytes": None if memory_gib is None else memory_gib * GIB,
        "host_to_device_gb_s": values.get("host_to_device_gb_s"),
    }
    others = {name: value for name, value in gpu.items() if name not in given}
    return others | {name: value for name, value in given.items() if value is not None}


def values_of_plan(request: SwapRequest) -> dict[str, Any]:
    """What a launch form begins with, from the question of a swap plan.

    Times are those of the plan, which emulated GPUs take. A model that no run of swap trains gives no shape.
    """
    result = plan_swap(request)
    forward_ms = 1e3 * sum(layer.forward_s for layer in result.layers)
    backward_ms = 1e3 * sum(layer.backward_s for layer in result.layers)
    recompute_ms = forward_ms if request.recompute else 0.0
    workers = request.workers if isinstance(request.workers, int) else 1
    values = {
        "workers": workers,
        "microbatches": result.accumulation,
        "micro_batch": request.micro_batch,
        "memory_gib": request.gpu.memory_bytes and request.gpu.memory_bytes / GIB,
        "host_to_device_gb_s": request.gpu.host_to_device_gb_s,
        "gradients": request.gradients,
        "forward_ms": forward_ms,
        "recompute_ms": recompute_ms,
        "backward_ms": backward_ms - recompute_ms,
        **_shape(request),
    }
    if request.global_batch and result.accumulation:
        values["accumulation"] = max(1, round(request.global_batch / (workers * result.accumulation)))
    return {name: value for name, value in values.items() if value}


def _shape(request: SwapRequest) -> dict[str, Any]:
    if isinstance(request.model, ModelInput | HuggingFaceModel):
        shape: Transformer = shape_of(request.model)
    elif isinstance(request.model, str):
        shape = named(request.model)
    else:
        return {}
    return {name: getattr(shape, name) for name in SHAPE} if is_own(shape) else {}
