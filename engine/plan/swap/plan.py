"""From a swap request to its plan: layers, partition, accumulation, step, and comparisons."""

from dataclasses import dataclass, replace

from engine.cluster.gpus import gpu as gpu_named
from engine.errors import InputError
from engine.model.document import ModelInput, shape_of
from engine.model.hugging_face import HuggingFaceModel
from engine.model.transformer import Transformer
from engine.plan.request import DEFAULT_MFU
from engine.plan.swap.events import Machine, atom_order, naive_order, steady_step
from engine.plan.swap.fleet import Fleet, Worker, ring_allreduce_s, seconds_to_fill
from engine.plan.swap.layers import Layer, sub_models
from engine.plan.swap.models import named
from engine.plan.swap.partition import MOST_CUT_BYTES, MOST_LAYERS, Chain
from engine.plan.swap.pipelines import Comparison, Network, naive, pipelines
from engine.plan.swap.profile import LAYERS_PER_BLOCK, Rates, layers_of, stored_bytes
from engine.plan.swap.request import DEFAULT_HOST_GB_S, LONGEST_S, GpuInput, LayerInput, SwapRequest
from engine.plan.swap.result import SwapResult
from engine.plan.swap.search import Room, find

# Per direction, 10^9 bytes/s: the link on which DEFAULT_HOST_GB_S was measured.
PCIE3_GB_S = 15.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as a swap plan sees it."""

    memory_bytes: float
    flops_per_s: float | None
    host_bytes_per_s: float


def plan_swap(request: SwapRequest) -> SwapResult:
    """The plan for the request's GPU, its fleet and its comparisons.

    Raises
    ------
    InputError
        A model of too many layers, a number format that the GPU does not have, more stages than layers.
    """
    result = _planned(request, request.gpu)
    if result.step is None:
        return result
    return replace(_fleet(request, result), compare=tuple(_compared(request, result)))


def device_of(given: GpuInput, request: SwapRequest) -> Device:
    """The GPU of the document in SI units; given figures replace the catalogue's."""
    known = gpu_named(given.name) if given.name else None
    host_gb_s = given.host_to_device_gb_s
    if host_gb_s is None:
        host_gb_s = DEFAULT_HOST_GB_S * (known.host_bytes_per_s / 1e9 / PCIE3_GB_S if known else 1.0)
    flops = None
    if given.tflops is not None:
        flops = given.tflops * 1e12 * (1.0 if request.mfu is None else request.mfu)
    elif known and request.explicit_layers is None:
        flops = known.flops(request.dtype_bytes) * (DEFAULT_MFU if request.mfu is None else request.mfu)
    memory = given.memory_bytes
    if memory is None:
        assert known is not None  # the document's own check
        memory = known.memory_bytes
    return Device(
        memory_bytes=memory,
        flops_per_s=flops,
        host_bytes_per_s=host_gb_s * 1e9,
    )


def _model(request: SwapRequest) -> Transformer:
    if isinstance(request.model, ModelInput | HuggingFaceModel):
        return shape_of(request.model)
    assert isinstance(request.model, str)
    return named(request.model)


def _rates(request: SwapRequest, device: Device) -> Rates:
    assert device.flops_per_s is not None  # the document's own check
    return Rates(
        flops_per_s=device.flops_per_s,
        host_bytes_per_s=device.host_bytes_per_s,
        dtype_bytes=request.dtype_bytes,
        sequences=request.micro_batch,
        recompute=request.recompute,
        gradients_in_layer=request.gradients == "host",
        block_gap_s=request.block_gap_s,
    )


def _layers(request: SwapRequest, device: Device) -> list[Layer]:
    if request.explicit_layers is not None:
        return [_measured(layer, device) for layer in request.explicit_layers]
    model = _model(request)
    if LAYERS_PER_BLOCK * model.layers + 2 > MOST_LAYERS:
        blocks = (MOST_LAYERS - 2) // LAYERS_PER_BLOCK
        raise InputError(
            "model.layers", model.layers, f"at most {blocks} blocks of {LAYERS_PER_BLOCK} layers"
        )
    layers = layers_of(model, _rates(request, device))
    _within_bounds(request, layers)
    return layers


def _within_bounds(request: SwapRequest, layers: list[Layer]) -> None:
    """Raises InputError for a model so large, or a GPU so slow, that it must be a typing error."""
    largest = max(layer.cut_bytes for layer in layers)
    if largest > MOST_CUT_BYTES:
        allowed = f"activations of {largest:.3g} bytes pass between layers: at most {MOST_CUT_BYTES:.3g}"
        raise InputError("micro_batch", request.micro_batch, allowed)
    longest = max(max(layer.backward_s, layer.load_s) for layer in layers)
    if longest > LONGEST_S:
        allowed = f"a layer would take {longest:.3g} s: at most {LONGEST_S:.3g}"
        raise InputError("gpu", request.gpu.model_dump(exclude_none=True), allowed)


def _measured(layer: LayerInput, device: Device) -> Layer:
    carried = layer.load_s * device.host_bytes_per_s
    return Layer(
        name=layer.name,
        memory_bytes=layer.memory_bytes,
        forward_s=layer.forward_s,
        backward_s=layer.backward_s,
        load_s=layer.load_s,
        cut_bytes=int(layer.cut_bytes),
        parameter_bytes=carried if layer.parameter_bytes is None else layer.parameter_bytes,
        gap_s=layer.gap_s,
    )


def _planned(request: SwapRequest, given: GpuInput) -> SwapResult:
    """The plan of one worker on one GPU, alone."""
    device = device_of(given, request)
    chain = Chain(_layers(request, device))
    room = _room(request, device, chain)
    cuts = find(chain, room, request.accumulation)
    result = SwapResult(
        layers=chain.layers,
        capacity_bytes=device.memory_bytes,
        reserved_bytes=room.reserved_bytes(cuts.accumulation or 1),
        resident=request.resident,
        gradients=request.gradients,
        reason=cuts.reason,
        accumulation=cuts.accumulation,
        host_bytes_per_s=device.host_bytes_per_s,
        with_spans=request.spans,
    )
    if not cuts.firsts:
        return result
    assert cuts.accumulation is not None  # a result with cuts has one
    subs = sub_models(chain.layers, cuts.firsts)
    machine = _machine(request, result, cuts.accumulation)
    return replace(
        result,
        subs=subs,
        cut_bytes=sum(chain.layers[sub.last].cut_bytes for sub in subs[:-1]),
        step=steady_step(subs, atom_order(len(subs)), machine),
    )


def _room(request: SwapRequest, device: Device, chain: Chain) -> Room:
    stay = request.gradients == "device"
    stored = 0.0
    if request.explicit_layers is None and not request.recompute:
        stored = stored_bytes(_model(request), _rates(request, device))
    return Room(
        capacity_bytes=device.memory_bytes,
        gradients_bytes=sum(layer.parameter_bytes for layer in chain.layers) if stay else 0.0,
        stored_bytes=stored,
        resident=request.resident,
    )


def _machine(request: SwapRequest, result: SwapResult, accumulation: int) -> Machine:
    return Machine(
        accumulation=accumulation,
        gradients_out_bytes_per_s=result.host_bytes_per_s if request.gradients == "host" else None,
        # ATOM's printed constraint does not require room for a second sub-model
        room_bytes=result.capacity_bytes - result.reserved_bytes if request.resident == 2 else None,
    )


def _compared(request: SwapRequest, result: SwapResult) -> list[Comparison]:
    """The naive order at the plan's sub-models, one mini-batch at a time, and the requested pipelines."""
    assert result.step is not None
    machine = _machine(request, result, 1)
    rows = [naive(steady_step(result.subs, naive_order(len(result.subs)), machine), result.step)]
    if request.compare is None:
        return rows
    comparison, chain = request.compare, Chain(result.layers)
    if comparison.stages > len(chain):
        raise InputError(
            "compare.stages", comparison.stages, f"at most one per layer: there are {len(chain)}"
        )
    for link in comparison.links:
        network = Network(name=link.name, bytes_per_s=link.mbps * 1e6 / 8, shared=link.shared)
        rows += pipelines(chain, network, comparison.stages, comparison.microbatches, result.step)
    return rows


def _fleet(request: SwapRequest, result: SwapResult) -> SwapResult:
    """`result` with its fleet, or with the reason why a kind of worker has no plan."""
    kinds = request.workers if isinstance(request.workers, list) else None
    if request.workers is None and request.global_batch is None:
        return result
    workers = []
    for i, kind in enumerate(kinds or []):
        planned = _planned(request, kind.gpu)
        if planned.reason or planned.step is None:
            return replace(result, reason=result.reason or f"workers[{i}]: {planned.reason}")
        workers.append(_worker(planned, kind.gpu, kind.count))
    if kinds is None:
        count = request.workers if isinstance(request.workers, int) else 1
        workers.append(_worker(result, request.gpu, count))
    payload = gradient_bytes(request, result)
    return replace(
        result,
        fleet=Fleet(
            workers=tuple(workers),
            gradient_bytes=payload,
            allreduce_s=_allreduce_s(request, payload, sum(worker.count for worker in workers)),
            global_batch=request.global_batch,
            batch_s=seconds_to_fill(workers, request.global_batch) if request.global_batch else None,
        ),
    )


def _worker(planned: SwapResult, gpu: GpuInput, count: int) -> Worker:
    assert planned.step is not None
    assert planned.accumulation is not None
    return Worker(
        label=gpu.name or "as given",
        count=count,
        accumulation=planned.accumulation,
        step_s=planned.step.step_s,
        first_load_s=planned.subs[0].load_s if len(planned.subs) > 1 else 0.0,
    )


def gradient_bytes(request: SwapRequest, result: SwapResult) -> float:
    """Bytes to all-reduce: the gradients of all parameters; a matrix that two layers share goes once."""
    if request.explicit_layers is None:
        return float(_model(request).parameters * request.dtype_bytes)
    return sum(layer.parameter_bytes for layer in result.layers)


def _allreduce_s(request: SwapRequest, payload: float, workers: int) -> float | None:
    if workers == 1:
        return 0.0
    if request.allreduce_gbps is None:
        return None
    return ring_allreduce_s(payload, workers, request.allreduce_gbps * 1e9 / 8)
