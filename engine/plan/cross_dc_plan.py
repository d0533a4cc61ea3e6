"""A plan's pipelines over the WAN against data parallelism over it, for the same global batch.

The pipelines are the plan's best option. With data parallelism every pipeline lies in one data centre, and
the gradients cross the WAN once an iteration. What happens inside a data centre (layout, schedule, memory,
all-reduce, update, price) is what the planner answers for that data centre alone, so both have the same
schedules to choose from. The gradients of each stage are reduced and scattered in each data centre, go round
a ring of the data centres, and are gathered again.

A link's bandwidth is that of one node pair. A boundary between two data centres has the bandwidth of all
node pairs that send over it: with pipelines one for each pipeline; with data parallelism, for each stage, as
many as the smaller of the two has pipelines.

Source: the CrossPipe slides (USENIX ATC 2025), "Cross-DC DP vs. Cross-DC PP"; node pairs: Atlas §4.1.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from engine.cluster.cluster import WanLink
from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.model.flops import Recompute
from engine.plan import choose, tied
from engine.plan.answer import WHAT_IF_S, plan
from engine.plan.cross_dc_ring import MOST_RING, Ring, best_ring
from engine.plan.job import Job, cluster_of, job_of
from engine.plan.request import Layout, PlanRequest
from engine.plan.result import Option
from engine.schedule.scenario import Contention

Better = Literal["data", "pipeline"]
# What the page of a plan compares, next to the plan as it is.
LARGER_BATCHES = (2, 4, 8)
MODES: tuple[Recompute, ...] = ("none", "selective", "full")
# Fields of a plan's document that say nothing of a data centre alone.
BETWEEN = frozenset(
    {"datacenters", "links", "job", "order", "allowed", "max_dp_cells", "budget_per_iteration", "deadline_h"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One of the two. If it cannot be, or exceeds a limit of the plan, `reason` says why.

    order : data centres of a pipeline, or of the ring.
    pipelines : in total; pipelines_per_dc : of data parallelism.
    microbatches : of one pipeline, at most.
    slowest_dc, layers_per_stage, stage_recompute : of data parallelism, the data centre whose pipelines take
        longest, and its layers and recomputation by stage; what a run of it takes over.
    wan_ms : of the gradients over the WAN, part of `iteration_ms`, and wan_latency_ms the part of it that no
        bandwidth shortens; None of pipelines, whose messages are part of the schedule.
    node_pairs : that send over the slowest boundary; boundary_gbps : all of them, per direction. None if
        nothing crosses the WAN.
    wan_gb : over all links, both directions, in one iteration; None if the job does not say.
    egress_cost, cost_per_iteration : dollars; the latter has the GPUs' price too.
    """

    feasible: bool
    reason: str | None = None
    order: tuple[str, ...] = ()
    pipelines: int | None = None
    pipelines_per_dc: dict[str, int] | None = None
    gpus_used: dict[str, int] | None = None
    stages: int | None = None
    tp: int | None = None
    micro_batch: int | None = None
    microbatches: int | None = None
    slowest_dc: str | None = None
    layers_per_stage: tuple[int, ...] | None = None
    stage_recompute: tuple[Recompute, ...] | None = None
    policy: str | None = None
    contention: Contention | None = None
    iteration_ms: float | None = None
    wan_ms: float | None = None
    wan_latency_ms: float | None = None
    node_pairs: int | None = None
    boundary_gbps: float | None = None
    wan_gb: float | None = None
    egress_cost: float | None = None
    cost_per_iteration: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both for one global batch and recomputation.

    batch_factor : microbatches of the plan's pipelines, as a multiple of the document's.
    recompute : instead of the document's; None: the document's.
    sequences : of the global batch; microbatches, if the job gives times.
    speedup : of the faster over the other; faster, cheaper : None unless both are feasible.
    break_even_gbps : of a whole boundary, per direction, for data parallelism to take as long as the
        pipelines do; None if no bandwidth is enough, or one of the two is not there.
    """

    batch_factor: int
    recompute: Recompute | None
    sequences: int
    pipeline: Alternative
    data: Alternative
    faster: Better | None
    speedup: float | None
    cheaper: Better | None
    break_even_gbps: float | None

    def as_dict(self) -> dict[str, Any]:
        """One entry of `cross_dc` in the JSON of `meridian plan --cross-dc`."""
        return asdict(self)


def default_variants(request: PlanRequest) -> list[tuple[int, Recompute | None]]:
    """The plan as it is, with larger batches, and with each other recomputation that the job can have."""
    job = request.job
    other = job.model is not None and job.layer_profiles is None and job.measured is None
    # Selective recomputation repeats nothing where attention's core stores nothing.
    same = {job.recompute, "selective"} if job.fused_attention else {job.recompute}
    modes = [mode for mode in MODES if mode not in same] if other else []
    return [(1, None), *((factor, None) for factor in LARGER_BATCHES), *((1, mode) for mode in modes)]


def compare_plan(
    request: PlanRequest,
    variants: Sequence[tuple[int, Recompute | None]],
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Comparison]:
    """Both for each (batch factor, recomputation) of `variants`.

    cancelled : as for `plan`, of which each has the budget of a what-if.

    Raises
    ------
    InputError
        The job does not fit its model, a larger batch is too large to simulate, or a job without a model is
        to have another recomputation.
    """
    document = request.model_dump(mode="json", exclude_unset=True)
    for factor, recompute in variants:
        if cancelled():
            return
        yield _Variant(_varied(document, factor, recompute), factor, recompute, cancelled).compared()


def _varied(document: dict[str, Any], factor: int, recompute: Recompute | None) -> PlanRequest:
    job = document["job"]
    measured = job.get("layer_profiles") is not None or job.get("measured") is not None
    if recompute is not None and (job.get("model") is None or measured):
        allowed = "needs a job with a model, and times that were not measured: they follow from it"
        raise InputError("recompute", recompute, allowed)
    job = {**job, "microbatches": job["microbatches"] * factor}
    if recompute is not None:
        job["recompute"] = recompute
    try:
        return parse(PlanRequest, {**document, "job": job})
    except InputError as error:
        if factor == 1 or error.field != "job.microbatches":
            raise
        raise InputError("batches", factor, f"gives {error.value} microbatches: {error.allowed}") from None


class _Variant:
    """One global batch and recomputation, as `request` has them."""

    def __init__(
        self,
        request: PlanRequest,
        factor: int,
        recompute: Recompute | None,
        cancelled: Callable[[], bool],
    ) -> None:
        self._request = request
        self._factor, self._recompute = factor, recompute
        self._cancelled = cancelled
        self._cluster = cluster_of(request)
        self._inside: dict[tuple[str, Layout, int, int], Option | Infeasible] = {}

    def compared(self) -> Comparison:
        planned = plan(self._request, budget_s=WHAT_IF_S, cancelled=self._cancelled)
        best = None if planned.best is None else planned.options[planned.best]
        if best is None:
            reason = planned.reason or "no option is feasible"
            pipeline = Alternative(feasible=False, reason=reason)
            sequences = self._sequences_of_own_pipelines()
        else:
            pipeline = self._pipeline(best)
            sequences = best.pipelines * self._request.job.microbatches * best.micro_batch
        data = self._data(sequences)
        return Comparison(
            batch_factor=self._factor,
            recompute=self._recompute,
            sequences=sequences,
            pipeline=pipeline,
            data=data,
            faster=_less(pipeline, data, "iteration_ms"),
            speedup=_ratio(pipeline.iteration_ms, data.iteration_ms),
            cheaper=_less(pipeline, data, "cost_per_iteration"),
            break_even_gbps=_break_even_gbps(pipeline, data),
        )

    # Pipelines over the WAN

    def _pipeline(self, best: Option) -> Alternative:
        links = [self._cluster.links[frozenset(pair)] for pair in itertools.pairwise(best.order)]
        slowest = min((link.bytes_per_s for link in links), default=None)
        return Alternative(
            feasible=True,
            order=best.order,
            pipelines=best.pipelines,
            gpus_used=best.gpus_used,
            stages=sum(part.stages for part in best.partitions),
            tp=best.tp,
            micro_batch=best.micro_batch,
            microbatches=self._request.job.microbatches,
            policy=best.policy,
            contention=best.contention,
            iteration_ms=best.iteration_ms,
            node_pairs=None if slowest is None else best.pipelines,
            boundary_gbps=None if slowest is None else best.pipelines * _gbps(slowest),
            wan_gb=best.egress_gb,
            egress_cost=self._egress_cost(best, links),
            cost_per_iteration=best.cost_per_iteration,
        )

    def _egress_cost(self, best: Option, links: list[WanLink]) -> float:
        """The part of the option's cost that is the traffic's, as `engine.plan.cost` counts it."""
        tied_gb = best.tied_egress_gb or 0.0
        in_total = tied_gb if self._request.method == "search" else 0.0  # what `egress_gb` has of it
        hops_gb = (best.egress_gb or 0.0) - in_total
        cost = sum(link.egress_price_per_gb for link in links) * hops_gb / max(1, len(links))
        if tied_gb:
            count = len(tied.links_between_ends(self._cluster, best.order))
            cost += tied_gb / count * tied.egress_price(self._cluster, best.order)
        return cost

    # Gradients over the WAN

    def _data(self, sequences: int) -> Alternative:
        """The best layout and number of data centres for the plan's objective."""
        alternatives: list[Alternative] = []
        reasons: list[str] = []
        for layout in self._request.job.layouts:
            for rooms in self._selections(layout):
                one = self._replicated(layout, rooms, sequences)
                if isinstance(one, Infeasible):
                    reasons.append(one.reason)
                else:
                    alternatives.append(one)
        if not alternatives:
            reason = reasons[0] if reasons else "fewer than two data centres have room for a whole pipeline"
            return Alternative(feasible=False, reason=reason)
        figure = "iteration_ms" if self._request.objective == "throughput" else "cost_per_iteration"
        return min(alternatives, key=lambda one: (not one.feasible, getattr(one, figure)))

    def _selections(self, layout: Layout) -> Iterator[dict[str, int]]:
        """{data centre: its pipelines}: the two with most, then the third, and so on."""
        most = [
            (dc.name, dc.gpus // (layout.partitions * layout.gpus_per_stage))
            for dc in self._cluster.datacenters
            if dc.name in self._request.allowed_names
        ]
        most = sorted((pair for pair in most if pair[1]), key=lambda pair: -pair[1])
        for count in range(2, min(len(most), MOST_RING) + 1):
            yield dict(most[:count])

    def _sequences_of_own_pipelines(self) -> int:
        """The global batch of the most pipelines that data parallelism has, if there is no plan."""
        job = self._request.job
        batches = [
            sum(rooms.values()) * job.microbatches * layout.micro_batch
            for layout in job.layouts
            for rooms in self._selections(layout)
        ]
        return max(batches, default=job.microbatches)

    def _replicated(self, layout: Layout, rooms: dict[str, int], sequences: int) -> Alternative | Infeasible:
        microbatches = math.ceil(sequences / (sum(rooms.values()) * layout.micro_batch))
        options: dict[str, Option] = {}
        for name, pipelines in rooms.items():
            option = self._option(name, layout, pipelines, microbatches)
            if isinstance(option, Infeasible):
                return Infeasible(reason=f"{name}: {option.reason}")
            options[name] = option
        stages = {name: self._stage_parameters(name, layout, option) for name, option in options.items()}
        if not all(map(sum, stages.values())):
            return Infeasible(
                reason="job.parameters_per_stage is not given: it says how much crosses the WAN"
            )
        largest = max(max(each) for each in stages.values()) * self._gradient_bytes
        ring = best_ring(self._cluster, rooms, largest)
        if ring is None:
            return Infeasible(reason=f"no ring of links joins {', '.join(rooms)}")
        whole = max(sum(each) for each in stages.values()) * self._gradient_bytes
        return self._priced(layout, options, ring, whole, microbatches)

    def _priced(
        self, layout: Layout, options: dict[str, Option], ring: Ring, whole_bytes: float, microbatches: int
    ) -> Alternative:
        iteration_ms = max(option.iteration_ms or 0.0 for option in options.values()) + ring.seconds * 1e3
        edge_gb = 2 * (len(options) - 1) / len(options) * whole_bytes / 1e9
        egress = edge_gb * sum(link.egress_price_per_gb for link in ring.links)
        cost = egress + iteration_ms / 3.6e6 * self._dollars_per_hour(options)
        pipelines = {name: option.pipelines for name, option in options.items()}
        slowest_dc = max(options, key=lambda name: options[name].iteration_ms or 0.0)
        slowest = options[slowest_dc]
        total = sum(pipelines.values())
        as_option = replace(
            slowest, pipelines=total, iteration_ms=iteration_ms, cost_per_iteration=cost, feasible=True
        )
        limited = choose.within_limits(self._request, replace(as_option, reason=None))
        return Alternative(
            feasible=limited.feasible,
            reason=limited.reason,
            order=ring.order,
            pipelines=total,
            pipelines_per_dc=pipelines,
            gpus_used={name: option.gpus_used[name] for name, option in options.items()},
            stages=layout.partitions,
            tp=layout.tp,
            micro_batch=layout.micro_batch,
            microbatches=microbatches,
            slowest_dc=slowest_dc,
            layers_per_stage=slowest.layers_per_stage,
            stage_recompute=slowest.recompute,
            policy=slowest.policy,
            contention=slowest.contention,
            iteration_ms=iteration_ms,
            wan_ms=ring.seconds * 1e3,
            wan_latency_ms=ring.latency_s * 1e3,
            node_pairs=ring.pairs * layout.partitions,
            boundary_gbps=ring.pairs * layout.partitions * _gbps(ring.bytes_per_s),
            wan_gb=edge_gb * len(ring.links),
            egress_cost=egress,
            cost_per_iteration=cost,
        )

    def _dollars_per_hour(self, options: Mapping[str, Option]) -> float:
        whole = self._request.bill == "whole"
        dcs = {name: self._cluster.datacenter(name) for name in options}
        return sum(
            (dcs[name].gpus if whole else option.gpus_used[name]) * dcs[name].price_per_gpu_hour
            for name, option in options.items()
        )

    def _option(self, name: str, layout: Layout, pipelines: int, microbatches: int) -> Option | Infeasible:
        """The planner's answer for `pipelines` whole pipelines in one data centre."""
        key = name, layout, pipelines, microbatches
        if key not in self._inside:
            answer = plan(self._alone(name, layout, pipelines, microbatches), budget_s=WHAT_IF_S)
            fitting = [o for o in answer.options if o.pipelines == pipelines and o.iteration_ms is not None]
            self._inside[key] = (
                min(fitting, key=lambda option: option.iteration_ms or 0.0)
                if fitting
                else Infeasible(reason=answer.reason or "no schedule was found")
            )
        return self._inside[key]

    def _alone(self, name: str, layout: Layout, pipelines: int, microbatches: int) -> PlanRequest:
        """The document of a data centre with the GPUs of `pipelines` pipelines, and of nothing else."""
        document = {key: value for key, value in self._document.items() if key not in BETWEEN}
        dc = self._document["datacenters"][self._request.index_of[name]]
        job = {**self._document["job"], "microbatches": microbatches}
        sizes = {"partitions": layout.partitions, "tp": layout.tp, "micro_batch": layout.micro_batch}
        job |= {field: value for field, value in sizes.items() if field in job}
        if job.get("comm_to_compute") is not None:
            job["comm_to_compute"] = 0.0  # of the WAN
        gpus = pipelines * layout.partitions * layout.gpus_per_stage
        return parse(PlanRequest, {**document, "datacenters": [{**dc, "gpus": gpus}], "job": job})

    @cached_property
    def _document(self) -> dict[str, Any]:
        return self._request.model_dump(mode="json", exclude_unset=True)

    def _stage_parameters(self, name: str, layout: Layout, option: Option) -> list[int]:
        """Parameters of each stage as `option` has them."""
        gpus = (self._cluster.datacenter(name).gpu,) * layout.partitions
        spreads = self._jobs[layout].spreads(gpus)
        job = next((one for one in spreads if one.layout.layers == option.layers_per_stage), spreads[0])
        return [profile.parameters for profile in job.profiles(gpus)]

    @cached_property
    def _jobs(self) -> dict[Layout, Job]:
        return {each: job_of(self._request, self._cluster, each) for each in self._request.job.layouts}

    @property
    def _gradient_bytes(self) -> int:
        return next(iter(self._jobs.values())).gradient_bytes


def _gbps(bytes_per_s: float) -> float:
    return bytes_per_s * 8 / 1e9


def _less(pipeline: Alternative, data: Alternative, name: str) -> Better | None:
    """Which of the two has less of a figure; None unless both are feasible. Of equals the plan's."""
    if not (pipeline.feasible and data.feasible):
        return None
    return "data" if getattr(data, name) < getattr(pipeline, name) else "pipeline"


def _break_even_gbps(pipeline: Alternative, data: Alternative) -> float | None:
    if pipeline.iteration_ms is None or data.iteration_ms is None:
        return None
    assert data.wan_ms is not None  # it has an iteration, so it has a ring
    assert data.wan_latency_ms is not None
    assert data.boundary_gbps is not None
    sending_ms = data.wan_ms - data.wan_latency_ms
    allowed_ms = pipeline.iteration_ms - (data.iteration_ms - sending_ms)
    return data.boundary_gbps * sending_ms / allowed_ms if allowed_ms > 0 else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b) / min(a, b)
