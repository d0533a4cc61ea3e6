"""The cost of an iteration: GPU hours, and the traffic that leaves data centres."""

import itertools
from dataclasses import replace

from engine.cluster.cluster import Cluster
from engine.plan.job import Job
from engine.plan.request import PlanRequest
from engine.plan.result import Option


def priced(request: PlanRequest, cluster: Cluster, job: Job, option: Option) -> Option:
    """`option`, which has its times, with egress and costs."""
    assert option.iteration_ms is not None
    per_hop_gb = egress_gb_per_hop(job, option)
    hops = len(option.partitions) - 1
    prices = [cluster.links[ends].egress_price_per_gb for ends in _hops(option)]
    hours = option.iteration_ms / 3.6e6
    cost = hours * _dollars_per_hour(request, cluster, option) + (per_hop_gb or 0.0) * sum(prices)
    tokens = job.tokens_per_microbatch
    return replace(
        option,
        egress_gb=None if per_hop_gb is None else per_hop_gb * hops,
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


def _hops(option: Option) -> list[frozenset[str]]:
    names = [part.dc for part in option.partitions]
    return [frozenset(pair) for pair in itertools.pairwise(names)]


def _dollars_per_hour(request: PlanRequest, cluster: Cluster, option: Option) -> float:
    """Price of the GPUs used, or, if whole data centres are billed, of all GPUs of the data centres used."""
    total = 0.0
    for name, used in option.gpus_used.items():
        dc = cluster.datacenter(name)
        total += (dc.gpus if request.bill == "whole" else used) * dc.price_per_gpu_hour
    return total
