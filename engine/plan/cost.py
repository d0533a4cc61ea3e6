"""The cost of an iteration: GPU hours, and the traffic that leaves data centres."""

import itertools
from dataclasses import replace

from engine.cluster.cluster import Cluster
from engine.plan import tied
from engine.plan.job import Job
from engine.plan.request import PlanRequest
from engine.plan.result import Option


def priced(request: PlanRequest, cluster: Cluster, job: Job, option: Option) -> Option:
    """`option`, which has its times, with egress and costs."""
    assert option.iteration_ms is not None
    per_hop_gb = egress_gb_per_hop(job, option)
    hops = itertools.pairwise(option.order)
    prices = [cluster.links[frozenset(ends)].egress_price_per_gb for ends in hops]
    hours = option.iteration_ms / 3.6e6
    cost = hours * _dollars_per_hour(request, cluster, option) + (per_hop_gb or 0.0) * sum(prices)
    tied_gb = None
    if option.tied_ms is not None:
        per_link_gb = tied.egress_gb_per_link(job, option.pipelines)
        tied_gb = per_link_gb * len(tied.links_between_ends(cluster, option.order))
        cost += per_link_gb * tied.egress_price(cluster, option.order)
    tokens = job.tokens_per_microbatch
    return replace(
        option,
        egress_gb=_egress_gb(request, per_hop_gb, len(prices), tied_gb),
        tied_egress_gb=tied_gb,
        cost_per_iteration=cost,
        cost_per_million_tokens=(
            None if tokens is None else cost / (option.pipelines * job.microbatches * tokens) * 1e6
        ),
    )


def egress_gb_per_hop(job: Job, option: Option) -> float | None:
    """GB over one WAN hop in an iteration: an activation and a gradient per microbatch and pipeline.

    None if the job does not give their size.
    """
    if job.activation_bytes is None:
        return None if len(option.partitions) > 1 else 0.0
    return 2 * job.microbatches * job.activation_bytes * option.pipelines / 1e9


def _egress_gb(
    request: PlanRequest, per_hop_gb: float | None, hops: int, tied_gb: float | None
) -> float | None:
    """Algorithm 1 has the activations and their gradients, the search all that crosses."""
    if per_hop_gb is None:
        return None
    return per_hop_gb * hops + (tied_gb or 0.0 if request.method == "search" else 0.0)


def _dollars_per_hour(request: PlanRequest, cluster: Cluster, option: Option) -> float:
    """Price of the GPUs used, or, if whole data centres are billed, of all GPUs of the data centres used."""
    total = 0.0
    for name, used in option.gpus_used.items():
        dc = cluster.datacenter(name)
        total += (dc.gpus if request.bill == "whole" else used) * dc.price_per_gpu_hour
    return total
