"""Designs a network for a training cluster: the answer to one request (Wang et al., "Rail-only", 2024)."""

from dataclasses import replace

import numpy as np

from engine.cluster.collectives import Rates, full_bisection_s, hierarchical_s
from engine.cluster.fabric import (
    Fabric,
    Prices,
    TransceiverFailures,
    most_spares,
    outages,
    rail_only,
    rail_optimised,
    with_spares,
)
from engine.errors import InputError
from engine.model.flops import hardware_flops, model_flops
from engine.model.iteration import Machine, iteration
from engine.model.kernels import WIDTH, Device
from engine.plan.network.failures import Cluster, Failure, failures
from engine.plan.network.request import CollectiveInput, NetworkRequest
from engine.plan.network.result import (
    CollectiveTime,
    FabricOutages,
    FabricPair,
    IterationRow,
    NetworkResult,
    Spares,
)
from engine.plan.network.strategies import PARTS, Chosen, Domains, NoneFits, Training, fastest
from engine.plan.network.traffic import Job, traffic


def design(request: NetworkRequest) -> NetworkResult:
    """Collectives, iteration times, fabrics, traffic and failures for `request`.

    Raises
    ------
    InputError
        The GPU has no two-byte format.
    """
    chosen = _chosen(request)
    first = chosen.get(request.hb_domains[0])
    job = _job(request, first) if isinstance(first, Chosen) else None
    return NetworkResult(
        collectives=tuple(_collective(request, collective) for collective in request.collectives),
        iterations=_rows(request, chosen),
        fabrics=tuple(fabric_pair(request, size) for size in request.hb_domains),
        traffic=None if job is None else traffic(job),
        failures=_failures(request, first) if isinstance(first, Chosen) else (),
        job=job,
    )


def iteration_rows(request: NetworkRequest) -> tuple[IterationRow, ...]:
    """The iteration times alone: one row per size of HB domain, none without a model."""
    return _rows(request, _chosen(request))


def training_of(request: NetworkRequest) -> Training:
    """The document's training job."""
    shape, gpu = request.shape, request.gpu
    assert shape is not None  # the document's own check
    assert gpu is not None
    assert request.batch is not None
    return Training(
        model=shape,
        how=request.how,
        batch=request.batch,
        memory_bytes=gpu.memory_bytes,
        shard_optimizer=request.shard_optimizer,
        tp=request.fixed_tp,
        pp=request.pp,
        dp=request.dp,
        interleave=request.interleave,
        micro_batch=request.fixed_micro_batch,
    )


def machine_of(request: NetworkRequest, hb_domain: int | None) -> Machine:
    """The document's machine at the rates that it reaches; None: all GPUs in one HB domain."""
    efficiency, gpu = request.efficiency.efficiency(), request.gpu
    hb, nic = request.hb_bytes_per_s, request.nic_bytes_per_s
    assert gpu is not None  # the document's own check
    assert hb is not None
    assert nic is not None
    try:
        device = Device.of(gpu, efficiency)
    except InputError as error:
        raise InputError("gpu_type", gpu.name, error.allowed) from None
    rates = Rates(hb_bytes_per_s=hb * efficiency.hb, nic_bytes_per_s=nic * efficiency.nic)
    return Machine(device=device, hb_domain=hb_domain, rates=rates)


def fabric_pair(request: NetworkRequest, hb_domain: int) -> FabricPair:
    """Both fabrics, and the savings of rail-only."""
    prices = Prices(**request.prices.model_dump())
    full = rail_optimised(request.gpus, request.switch_radix, prices)
    rails = rail_only(request.gpus, hb_domain, request.switch_radix, prices)
    return FabricPair(
        hb_domain=hb_domain,
        rail_optimised=full,
        rail_only=rails,
        cost_saving=_saving(rails.cost_usd, full.cost_usd),
        power_saving=_saving(rails.power_w, full.power_w),
        spares=_spares(request, full, rails, prices) if request.spare_switches else None,
        outages=_outages(request, full, rails, prices),
    )


def _saving(cost: float, whole: float) -> float | None:
    return 1 - cost / whole if whole else None


def _spares(request: NetworkRequest, full: Fabric, rails: Fabric, prices: Prices) -> Spares:
    radix = request.switch_radix
    spared = with_spares(rails, request.spare_switches, radix, prices)
    return Spares(
        switches=request.spare_switches,
        rail_only=spared,
        cost_saving=_saving(spared.cost_usd, full.cost_usd),
        power_saving=_saving(spared.power_w, full.power_w),
        most=most_spares(rails, full, radix, prices),
    )


def _outages(request: NetworkRequest, full: Fabric, rails: Fabric, prices: Prices) -> FabricOutages | None:
    if request.transceiver_failures is None:
        return None
    rule = TransceiverFailures(**request.transceiver_failures.model_dump())
    return FabricOutages(
        rail_optimised=outages(full, request.gpus, rule, prices),
        rail_only=outages(rails, request.gpus, rule, prices),
    )


def _chosen(request: NetworkRequest) -> dict[int, Chosen | NoneFits]:
    return {size: _fastest(request, size) for size in request.hb_domains} if request.model else {}


def _fastest(request: NetworkRequest, hb_domain: int | None) -> Chosen | NoneFits:
    size = hb_domain or request.gpus
    domains = Domains(size=size, groups=((request.gpus // size, size),))
    machine = machine_of(request, hb_domain)
    return fastest(training_of(request), machine, domains, leave_idle=request.leave_idle)


def _rows(request: NetworkRequest, chosen: dict[int, Chosen | NoneFits]) -> tuple[IterationRow, ...]:
    if not chosen:
        return ()
    ideal = _fastest(request, None)
    ideal_s = ideal.iteration_s if isinstance(ideal, Chosen) else None
    return tuple(_row(request, size, answer, ideal_s) for size, answer in chosen.items())


def _row(
    request: NetworkRequest, size: int, answer: Chosen | NoneFits, ideal_s: float | None
) -> IterationRow:
    if isinstance(answer, NoneFits):
        needed = None if answer.memory_bytes is None else answer.memory_bytes / 1e9
        return IterationRow(hb_domain=size, feasible=False, reason=answer.reason, memory_gb_per_gpu=needed)
    training, gpu = training_of(request), request.gpu
    assert gpu is not None
    model, how, batch = training.model, training.how, training.batch
    spent = answer.iteration_s * request.gpus * gpu.flops(WIDTH)
    hardware = hardware_flops(model, batch, how.recompute, fused_attention=how.fused_attention)
    at = answer.strategies
    return IterationRow(
        hb_domain=size,
        feasible=True,
        tp=int(at.tp),
        pp=int(at.pp),
        dp=int(at.dp),
        interleave=int(at.interleave),
        micro_batch=int(at.micro_batch),
        gpus_used=int(at.gpus),
        iteration_s=answer.iteration_s,
        rail_optimised_s=_with_spines(request, answer),
        ideal_s=ideal_s,
        mfu=model_flops(model, batch) / spent,
        hfu=hardware / spent,
        memory_gb_per_gpu=answer.memory_bytes / 1e9,
        parts_s={name: float(getattr(answer.parts, name)) for name in PARTS},
    )


def _with_spines(request: NetworkRequest, answer: Chosen) -> float:
    training = training_of(request)
    with_spines = replace(machine_of(request, answer.hb_domain), spines=True)
    parts = iteration(training.model, training.how, answer.strategies, training.batch, with_spines)
    return float(np.ravel(parts.total)[0])


def _collective(request: NetworkRequest, given: CollectiveInput) -> CollectiveTime:
    """At nominal rates, as in Eqs. 1–3, without efficiency."""
    hb, nic = request.hb_bytes_per_s, request.nic_bytes_per_s
    assert hb is not None  # the document's own check
    assert nic is not None
    rates = Rates(hb_bytes_per_s=hb, nic_bytes_per_s=nic)
    return CollectiveTime(
        op=given.op,
        bytes=given.bytes,
        x=given.x,
        y=given.y,
        rail_only_s=float(hierarchical_s(given.op, given.bytes, given.x, given.y, rates)),
        rail_optimised_s=float(full_bisection_s(given.op, given.bytes, given.x, given.y, rates)),
    )


def _job(request: NetworkRequest, answer: Chosen) -> Job:
    training = training_of(request)
    return Job(
        model=training.model,
        how=training.how,
        strategies=answer.strategies,
        batch=training.batch,
        hb_domain=answer.hb_domain,
        gpus=request.gpus,
    )


def _failures(request: NetworkRequest, answer: Chosen) -> tuple[Failure, ...]:
    cluster = Cluster(
        training=training_of(request),
        machine=machine_of(request, answer.hb_domain),
        gpus=request.gpus,
        hb_domain=answer.hb_domain,
        switch_radix=request.switch_radix,
        module=request.module,
        spare_switches=request.spare_switches,
        before=answer,
    )
    return failures(cluster)
