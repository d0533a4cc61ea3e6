"""From the request's document to what the algorithms work with: a cluster, and the times of a stage."""

import math
from dataclasses import dataclass

from engine.cluster.cluster import Cluster, DataCenter, WanLink
from engine.cluster.gpus import Gpu, gpu
from engine.errors import InputError
from engine.model.presets import preset
from engine.model.profile import (
    BACKWARD_OVER_FORWARD,
    Compute,
    StageProfile,
    block_forward_s,
    stage_profiles,
)
from engine.model.transformer import Transformer
from engine.plan.request import DEFAULT_INTRA_GBPS, JobInput, ModelInput, PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job as the algorithms see it.

    forward_s : forward time of the pipeline's beat, its fullest stage on the slowest GPU.
    comm_to_compute : C, transfer of one microbatch over one node pair's own share ÷ `forward_s`; not rounded.
    parameters_per_stage : those of the largest stage; None where not needed and not given.
    activation_bytes, tokens_per_microbatch : of one microbatch; None where not given.
    tensor_parallel : GPUs per stage of a pipeline.
    model, compute : None where the document gives times.
    cell : pipelines in a DP-cell where the search chose another number than C says.
    """

    partitions: int
    microbatches: int
    forward_s: float
    backward_s: float
    recompute_s: float
    comm_to_compute: float
    parameters_per_stage: float | None
    activation_bytes: float | None
    tokens_per_microbatch: int | None
    tensor_parallel: int = 1
    model: Transformer | None = None
    compute: Compute | None = None
    cell: int | None = None

    @property
    def cell_pipelines(self) -> int:
        """Pipelines in a DP-cell: C rounded half up, at least 1 (Atlas §4.4, rule 1)."""
        return self.cell or max(1, math.floor(self.comm_to_compute + 0.5))

    @property
    def transfer_s(self) -> float:
        """One microbatch's activation or gradient over one node pair's own share."""
        return self.comm_to_compute * self.forward_s

    def profiles(self, gpus: tuple[Gpu, ...]) -> tuple[StageProfile, ...]:
        """The profile of each stage, stage i on `gpus[i]`."""
        if self.model is not None and self.compute is not None:
            return stage_profiles(self.model, self.compute, gpus)
        stage = StageProfile(
            layers=1,
            parameters=round(self.parameters_per_stage or 0),
            forward_s=self.forward_s,
            backward_s=self.backward_s,
            recompute_s=self.recompute_s,
        )
        return (stage,) * len(gpus)


def cluster_of(request: PlanRequest) -> Cluster:
    """The data centres and links of the document, in SI units."""
    datacenters = tuple(
        DataCenter(
            name=dc.name,
            gpus=dc.gpus,
            gpu=gpu(dc.gpu_type),
            price_per_gpu_hour=dc.price_per_gpu_hour,
            intra_bytes_per_s=(DEFAULT_INTRA_GBPS if dc.intra_gbps is None else dc.intra_gbps) * 1e9 / 8,
            latitude=dc.latitude,
            longitude=dc.longitude,
        )
        for dc in request.datacenters
    )
    links = (
        WanLink(
            ends=frozenset(link.between),
            latency_s=link.latency_ms / 1e3,
            cap_bytes_per_s=link.bandwidth_gbps * 1e9 / 8,
            connections=link.connections,
            egress_price_per_gb=link.egress_price_per_gb,
        )
        for link in request.links
    )
    return Cluster(datacenters=datacenters, links={link.ends: link for link in links})


def job_of(request: PlanRequest, cluster: Cluster) -> Job:
    """The job of the document: as given, or computed from its model and the slowest listed link.

    Raises
    ------
    InputError
        More partitions than the model has layers, or a number format that a GPU does not have.
    """
    given = request.job
    if given.model is None:
        return _explicit(given)
    model = _shape(given.model, given.partitions)
    compute = Compute(
        micro_batch=given.micro_batch,
        tensor_parallel=given.tp,
        mfu=given.mfu,
        dtype_bytes=given.dtype_bytes,
        recompute=given.recompute,
    )
    try:
        return _modelled(given, model, compute, _slowest_gpu(request, cluster, compute), cluster)
    except InputError as error:
        raise InputError(f"job.{error.field}", error.value, error.allowed) from None


def _explicit(given: JobInput) -> Job:
    assert given.forward_ms is not None  # these three: the document's own check
    assert given.backward_ms is not None
    assert given.comm_to_compute is not None
    return Job(
        partitions=given.partitions,
        microbatches=given.microbatches,
        forward_s=given.forward_ms / 1e3,
        backward_s=given.backward_ms / 1e3,
        recompute_s=(given.recompute_ms or 0.0) / 1e3,
        comm_to_compute=given.comm_to_compute,
        parameters_per_stage=given.parameters_per_stage,
        activation_bytes=given.activation_bytes,
        tokens_per_microbatch=given.tokens_per_microbatch,
    )


def _modelled(given: JobInput, model: Transformer, compute: Compute, slowest: Gpu, cluster: Cluster) -> Job:
    stages = given.partitions
    forward_s = block_forward_s(model, stages, compute, slowest)
    profiles = stage_profiles(model, compute, (slowest,) * stages)
    activation_bytes = model.activation_bytes(given.micro_batch, given.dtype_bytes)
    slowest_link = min((link.bytes_per_s for link in cluster.links.values()), default=math.inf)
    return Job(
        partitions=stages,
        microbatches=given.microbatches,
        forward_s=forward_s,
        backward_s=BACKWARD_OVER_FORWARD * forward_s,
        recompute_s=forward_s if compute.recompute else 0.0,
        comm_to_compute=activation_bytes / slowest_link / forward_s,
        parameters_per_stage=max(profile.parameters for profile in profiles),
        activation_bytes=activation_bytes,
        tokens_per_microbatch=given.micro_batch * model.seq,
        tensor_parallel=given.tp,
        model=model,
        compute=compute,
    )


def _shape(given: str | ModelInput, stages: int) -> Transformer:
    return preset(given, stages=stages) if isinstance(given, str) else shape_of(given)


def shape_of(given: ModelInput) -> Transformer:
    """The shape that a document gives in place of a preset's name, with what it leaves out filled in."""
    kv_heads = given.kv_heads or given.heads
    ffn = given.ffn or 4 * given.hidden
    looks_like_llama = ffn != 4 * given.hidden or kv_heads < given.heads
    return Transformer(
        layers=given.layers,
        hidden=given.hidden,
        heads=given.heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=given.vocab,
        seq=given.seq,
        family=given.family or ("llama" if looks_like_llama else "gpt"),
    )


def _slowest_gpu(request: PlanRequest, cluster: Cluster, compute: Compute) -> Gpu:
    usable = [dc for dc in cluster.datacenters if dc.gpus and dc.name in request.allowed_names]
    candidates = usable or list(cluster.datacenters)
    return min((dc.gpu for dc in candidates), key=lambda gpu: gpu.flops(compute.dtype_bytes))
