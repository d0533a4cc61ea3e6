"""The gradients of a tied embedding, which the first and the last stage of a pipeline sum.

Both stages have a copy of the matrix. After the sum over replicas the two copies of each pipeline sum their
gradients, each tensor-parallel rank its own part, as Megatron-LM does among the ranks of its embedding group.
A ring of two has two steps: each end sends all S bytes, in two halves, so it takes S/BW + 2 · latency.
"""

import itertools
from collections.abc import Sequence

from engine.cluster.cluster import Cluster, WanLink
from engine.plan.job import Job


def exchange_s(cluster: Cluster, job: Job, route: Sequence[str]) -> float:
    """Seconds of the exchange between the ends of `route`, the data centres of a pipeline in order."""
    links = links_between_ends(cluster, route)
    if not links:
        dc = cluster.datacenter(route[0])
        return job.tied_bytes / dc.intra_bytes_per_s + 2 * dc.intra_latency_s
    latency_s = sum(link.latency_s for link in links)
    return job.tied_bytes / min(link.bytes_per_s for link in links) + 2 * latency_s


def egress_gb_per_link(job: Job, pipelines: int) -> float:
    """GB over one link of the path in an iteration, both directions together."""
    return 2 * job.tied_bytes * pipelines / 1e9


def egress_price(cluster: Cluster, route: Sequence[str]) -> float:
    """Dollars per GB from one end of `route` to the other."""
    return sum(link.egress_price_per_gb for link in links_between_ends(cluster, route))


def links_between_ends(cluster: Cluster, route: Sequence[str]) -> list[WanLink]:
    """The link between the two ends, else those along the pipeline; none inside a data centre."""
    if len(route) == 1:
        return []
    direct = cluster.link(route[0], route[-1])
    if direct is not None:
        return [direct]
    return [cluster.links[frozenset(pair)] for pair in itertools.pairwise(route)]
