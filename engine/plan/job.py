"""Converts the request's document to the algorithms' input: a cluster, and the times of a stage."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean

from engine.cluster.all_reduce import Nodes, domain_size
from engine.cluster.cluster import Cluster, DataCenter, WanLink
from engine.cluster.collectives import Rates, Values, hierarchical_s, ring_all_reduce_s
from engine.cluster.gpus import Gpu, Network
from engine.errors import InputError
from engine.model.document import shape_of
from engine.model.layer_profiles import GRADIENT_BYTES
from engine.model.profile import StageProfile
from engine.model.transformer import Transformer
from engine.plan.gradients import Parameters, StageReplicas, largest
from engine.plan.layers import MOST_LAYERS, Balance
from engine.plan.profiled_job import ProfiledJob
from engine.plan.recompute import recomputed_stages
from engine.plan.request import (
    DEFAULT_INTRA_GBPS,
    DataCenterInput,
    JobInput,
    LayerProfilesInput,
    Layout,
    LinkInput,
    PlanRequest,
)
from engine.plan.stages import Stages, link_rate, stages_of

ALONE = StageReplicas()  # each with all experts, and each sequence on one GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job in one layout, as the algorithms see it.

    forward_s : forward time of the fullest stage on the slowest GPU, which sets the pipeline's pace.
    comm_to_compute : C, transfer of one microbatch over one node pair's own share ÷ `forward_s`; not rounded.
    stage_parameters : of the stages whose gradients may take longest to sum; empty if not known.
    replicas : how a stage's are joined.
    activation_bytes, tokens_per_microbatch : of one microbatch; None if not given.
    gradient_bytes : of a number of a gradient.
    tied_parameters : of a matrix that is embedding and output matrix, on different stages; else 0.
    is_modelled : from a model or its layer profile; else the document gives times.
    cell : pipelines in a DP-cell, if the search chose a number other than C's.
    balance : spreads the layers over the GPUs that they are placed on; None: the layers are `stages`'.
    zero : 1: the replicas of a stage share the optimizer's state.
    """

    layout: Layout
    microbatches: int
    forward_s: float
    backward_s: float
    recompute_s: float
    comm_to_compute: float
    stage_parameters: tuple[Parameters, ...]
    activation_bytes: float | None
    tokens_per_microbatch: int | None
    stages: Stages
    replicas: StageReplicas = ALONE
    gradient_bytes: int = 2
    tied_parameters: int = 0
    is_modelled: bool = False
    cell: int | None = None
    balance: Balance | None = None
    zero: int = 0

    @property
    def partitions(self) -> int:
        """Stages of a pipeline."""
        return self.layout.partitions

    @property
    def parameters_per_stage(self) -> float | None:
        """Those of the largest stage; None if not known."""
        return max((stage.all for stage in self.stage_parameters), default=None)

    @property
    def gpus_per_stage(self) -> int:
        """GPUs per stage of a pipeline."""
        return self.layout.gpus_per_stage

    @property
    def cell_pipelines(self) -> int:
        """Pipelines in a DP-cell: C rounded half up, at least 1 (Atlas §4.4, rule 1)."""
        return self.cell or max(1, math.floor(self.comm_to_compute + 0.5))

    @property
    def sends_inside(self) -> bool:
        """Whether GPUs of a stage, or of its replicas, send each other messages for each microbatch."""
        return self.gpus_per_stage * self.replicas.ep > 1

    @property
    def step_of_cells(self) -> int:
        """Numbers of DP-cells are multiples of this: their pipelines are whole expert-parallel groups."""
        return self.replicas.ep // math.gcd(self.replicas.ep, self.cell_pipelines)

    @property
    def transfer_s(self) -> float:
        """One microbatch's activation or gradient over one node pair's own share."""
        return self.comm_to_compute * self.forward_s

    @property
    def tokens_per_pipeline(self) -> int:
        """Tokens of one pipeline and iteration, which throughputs compare by; 1 where unknown."""
        return 1 if self.tokens_per_microbatch is None else self.microbatches * self.tokens_per_microbatch

    @property
    def tied_bytes(self) -> int:
        """Gradients of the tied matrix."""
        return self.gradient_bytes * self.tied_parameters

    def of_pipelines(self, pipelines: int) -> "Job":
        """The job as each of `pipelines` pipelines has it: all replicas of a stage are in one data centre."""
        if not self.zero:
            return self
        replicas, ep = pipelines * self.layout.cp, self.replicas.ep
        balance = self.balance and self.balance.sharded_over(replicas, ep)
        return replace(self, stages=self.stages.sharded_over(replicas, ep), balance=balance)

    def all_reduce_s(self, pipelines: int, bytes_per_s: Values) -> Values:
        """Seconds in which the stages of `pipelines` pipelines sum their gradients at `bytes_per_s`.

        With ZeRO-1 they scatter the sums and gather the new weights. The bytes are the same, as a ring
        all-reduce is a reduce-scatter and an all-gather (Rajbhandari et al. 2020, §7.2.1). 0 if the number of
        parameters is not known.
        """
        if not self.stage_parameters:
            return 0.0 * bytes_per_s

        def along_a_ring(nbytes: float, replicas: int) -> Values:
            return ring_all_reduce_s(nbytes / 2, replicas, bytes_per_s)  # it takes fp16 numbers

        return self.replicas.all_reduce_s(self.stage_parameters, self.gradient_bytes, pipelines, along_a_ring)

    def all_reduce_in_s(self, pipelines: int, dc: DataCenter, stages: int | None = None) -> float:
        """The same inside a data centre: along a ring, or on rails over HB domains (Rail-only, Eq. 1).

        An HB domain has as many of the replicas as leave no rest and have room.

        stages : that the data centre hosts, whose domains all need room; None: a bound, as if all had room.
        """
        if dc.hb_domain is None or not self.stage_parameters:
            return float(self.all_reduce_s(pipelines, dc.intra_bytes_per_s))
        most = max(1, dc.hb_domain // self.gpus_per_stage)
        nodes: tuple[Nodes, ...] = ()
        if stages is not None:
            hosted, each = stages * pipelines, self.gpus_per_stage
            one = Nodes(gpus=dc.gpus, gpus_per_node=dc.hb_domain, replicas=hosted, gpus_per_replica=each)
            nodes = (one,)
        rates = Rates(hb_bytes_per_s=dc.gpu.link_bytes_per_s, nic_bytes_per_s=dc.intra_bytes_per_s)

        def on_rails(nbytes: float, replicas: int) -> Values:
            x = domain_size(replicas, most, nodes)
            return hierarchical_s("allreduce", nbytes, x, replicas // x, rates)

        return float(
            self.replicas.all_reduce_s(self.stage_parameters, self.gradient_bytes, pipelines, on_rails)
        )

    def spreads(self, gpus: tuple[Gpu, ...]) -> tuple["Job", ...]:
        """The job with the layers of each stage that are worth a try, stage i on `gpus[i]`.

        If they are to be balanced, also the even ones: these have fewer parameters on the largest stage.
        """
        if self.balance is None:
            return (self,)
        layers = self.balance.layers_on(gpus)
        even = tuple(profile.layers for profile in self.stages.on(gpus[0]))
        return tuple(
            replace(
                self,
                layout=replace(self.layout, layers=each),
                stages=(stages := self.balance.stages_with(each)),
                stage_parameters=_parameters(stages.on(gpus[0])),
                balance=None,
            )
            for each in dict.fromkeys((layers, even))
            if each is not None
        )

    def no_room_on(self, gpu: Gpu) -> str | None:
        """Why no stage at all fits `gpu`, whatever its layers; None if at least one may."""
        return (self.stages if self.balance is None else self.balance.smallest).no_room_on(gpu)

    def profiles(self, gpus: tuple[Gpu, ...]) -> tuple[StageProfile, ...]:
        """The profile of each stage, stage i on `gpus[i]`."""
        return tuple(self.stages.on(gpu)[stage] for stage, gpu in enumerate(gpus))


def cluster_of(request: PlanRequest) -> Cluster:
    """The data centres and links of the document, in SI units."""
    datacenters = tuple(map(_datacenter, request.datacenters))
    if margin := request.job.memory_margin:
        datacenters = tuple(replace(dc, gpu=replace(dc.gpu, margin=margin)) for dc in datacenters)
    if request.job.ep > 1:
        datacenters = tuple(replace(dc, gpu=_in_network(dc)) for dc in datacenters)
    links = map(_link, request.both_ways)
    return Cluster(datacenters=datacenters, links={link.ends: link for link in links})


def _datacenter(dc: DataCenterInput) -> DataCenter:
    return DataCenter(
        name=dc.name,
        gpus=dc.gpus,
        gpu=dc.gpu(),
        price_per_gpu_hour=dc.price_per_gpu_hour,
        intra_bytes_per_s=(DEFAULT_INTRA_GBPS if dc.intra_gbps is None else dc.intra_gbps) * 1e9 / 8,
        intra_latency_s=dc.intra_latency_ms / 1e3,
        fabric=dc.fabric,
        hb_domain=dc.hb_domain,
        latitude=dc.latitude,
        longitude=dc.longitude,
    )


def _in_network(dc: DataCenter) -> Gpu:
    """Its type of GPU with the network of a node, over which tokens go to their experts.

    Types are told apart by name, so that says it too.
    """
    network = Network(bytes_per_s=dc.intra_bytes_per_s, latency_s=dc.intra_latency_s)
    name = f"{dc.gpu.name} at {8e-9 * network.bytes_per_s:g} Gbit/s"
    if network.latency_s:
        name += f" and {1e3 * network.latency_s:g} ms"
    return replace(dc.gpu, name=name, network=network)


def _link(ways: tuple[LinkInput, ...]) -> WanLink:
    """A link at the mean of its directions, as DT-FM (§2) takes those of its devices."""
    return WanLink(
        ends=frozenset(ways[0].between),
        latency_s=fmean(way.latency_ms for way in ways) / 1e3,
        cap_bytes_per_s=fmean(way.bandwidth_gbps for way in ways) * 1e9 / 8,
        connections=ways[0].connections,
        egress_price_per_gb=fmean(way.egress_price_per_gb for way in ways),
    )


def job_of(request: PlanRequest, cluster: Cluster, layout: Layout | None = None) -> Job:
    """The job of the document: as given, or computed from its model and the slowest listed link.

    layout : one of the document's own; by default the first.

    Raises
    ------
    InputError
        The job does not fit its model (more partitions than layers, a `tp` that does not divide its heads),
        or a number format that a GPU does not have.
    """
    given = request.job
    layout = layout or given.layouts[0]
    try:
        if given.layer_profiles is not None:
            return _profiled_job(request, cluster, layout, given.layer_profiles)
        model = None if given.model is None else shape_of(given.model, layout.partitions)
        if model is not None and layout.layers is not None and sum(layout.layers) != model.layers:
            allowed = f"must add up to the model's {model.layers} layers"
            raise InputError("layers_per_stage", list(layout.layers), allowed)
        stages = recomputed_stages(given, layout, model)
        profiles = _slowest(stages, request, cluster)
    except InputError as error:
        raise InputError(f"job.{error.field}", error.value, error.allowed) from None
    # If layers are even the first: the last has the output matrix too, and never more layers.
    beat = max(profiles, key=lambda profile: profile.layers)
    if model is None:
        assert given.comm_to_compute is not None  # the document's own check
        return _job(given, layout, stages, beat, comm_to_compute=given.comm_to_compute)
    activation_bytes = model.activation_bytes(layout.micro_batch, given.dtype_bytes)
    slowest_link = min((link.bytes_per_s for link in cluster.links.values()), default=math.inf)
    return replace(
        _job(given, layout, stages, beat, comm_to_compute=activation_bytes / slowest_link / beat.forward_s),
        stage_parameters=_parameters(profiles),
        replicas=_replicas(request, cluster, layout),
        activation_bytes=activation_bytes,
        tokens_per_microbatch=layout.micro_batch * model.seq,
        tied_parameters=model.tied_parameters if layout.partitions > 1 else 0,
        is_modelled=True,
        balance=_balance(request, layout, model),
    )


def _parameters(profiles: Iterable[StageProfile]) -> tuple[Parameters, ...]:
    return largest(Parameters(stage.parameters, stage.expert_parameters) for stage in profiles)


def _replicas(request: PlanRequest, cluster: Cluster, layout: Layout) -> StageReplicas:
    """On the GPUs with the slowest links among those that may be used."""
    link_bytes_per_s = min(map(link_rate, types_of(request, cluster)))
    return StageReplicas(ep=request.job.ep, cp=layout.cp, inside_bytes_per_s=layout.tp * link_bytes_per_s)


def _balance(request: PlanRequest, layout: Layout, model: Transformer) -> Balance | None:
    """What balances the layers; None if they are given, or even, as they stay if they are not alike."""
    given = request.job
    if given.layers_per_stage != "balanced" or layout.layers is not None:
        return None
    if model.layers > MOST_LAYERS or model.moe_blocks(0, model.layers) not in (0, model.layers):
        return None
    limit = request.memory_limit or given.microbatches
    return Balance(
        layers=model.layers,
        stages=layout.partitions,
        microbatches=given.microbatches,
        most_held=min(given.microbatches, layout.partitions, limit),
        of_layers=lambda layers: stages_of(given, replace(layout, layers=layers), model),
    )


def _profiled_job(request: PlanRequest, cluster: Cluster, layout: Layout, given: LayerProfilesInput) -> Job:
    """The job of a layer profile; its slowest stage sets the pace."""
    profiled = ProfiledJob.of(request.job, layout, given, types_of(request, cluster))
    profiles = _slowest(profiled.stages, request, cluster)
    beat = max(profiles, key=lambda profile: profile.forward_s)
    slowest_link = min((link.bytes_per_s for link in cluster.links.values()), default=math.inf)
    comm_to_compute = profiled.activation_bytes / slowest_link / beat.forward_s
    return replace(
        _job(request.job, layout, profiled.stages, beat, comm_to_compute=comm_to_compute),
        stage_parameters=_parameters(profiles),
        activation_bytes=profiled.activation_bytes,
        tokens_per_microbatch=None if given.seq is None else layout.micro_batch * given.seq,
        gradient_bytes=GRADIENT_BYTES,
        is_modelled=True,
    )


def _job(
    given: JobInput, layout: Layout, stages: Stages, beat: StageProfile, *, comm_to_compute: float
) -> Job:
    return Job(
        layout=layout,
        microbatches=given.microbatches,
        forward_s=beat.forward_s,
        backward_s=beat.backward_s,
        recompute_s=beat.recompute_s,
        comm_to_compute=comm_to_compute,
        stage_parameters=()
        if given.parameters_per_stage is None
        else (Parameters(given.parameters_per_stage),),
        activation_bytes=given.activation_bytes,
        tokens_per_microbatch=given.tokens_per_microbatch,
        stages=stages,
        zero=given.zero,
    )


def _slowest(stages: Stages, request: PlanRequest, cluster: Cluster) -> tuple[StageProfile, ...]:
    """The profiles on the slowest GPUs among those that may be used."""
    types = types_of(request, cluster)
    return max((stages.on(gpu) for gpu in types), key=lambda profiles: profiles[0].forward_s)


def types_of(request: PlanRequest, cluster: Cluster) -> tuple[Gpu, ...]:
    """The types of GPU that may be used, or all if there are none."""
    usable = [dc for dc in cluster.datacenters if dc.gpus and dc.name in request.allowed_names]
    return tuple({dc.gpu.name: dc.gpu for dc in usable or cluster.datacenters}.values())
