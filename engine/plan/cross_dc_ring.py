"""Rings of data centres over which data parallelism sums its gradients."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from engine.cluster.cluster import Cluster, WanLink

MOST_RING = 8  # data centres whose rings are all tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A ring of data centres, with the links from each to the next.

    seconds : of 2·(n − 1) steps, each as long as the slowest link takes for its part; latency_s : of that
        link, in all steps.
    pairs : node pairs of one stage over that link; bytes_per_s : of one of them.
    """

    order: tuple[str, ...]
    links: tuple[WanLink, ...]
    seconds: float
    latency_s: float
    pairs: int
    bytes_per_s: float


def best_ring(cluster: Cluster, pipelines: Mapping[str, int], stage_bytes: float) -> Ring | None:
    """The ring of these data centres that sums a stage's gradients first; None if links are missing.

    In a step every data centre sends 1/n of the sum to the next one, over as many node pairs of the stage as
    the smaller of the two has pipelines.

    Parameters
    ----------
    pipelines : of each data centre. At most MOST_RING of them.
    stage_bytes : gradients of the largest stage.
    """
    first, *rest = pipelines
    rings = [
        _ring(cluster, pipelines, stage_bytes, (first, *others)) for others in itertools.permutations(rest)
    ]
    return min((ring for ring in rings if ring is not None), key=lambda ring: ring.seconds, default=None)


def _ring(
    cluster: Cluster, pipelines: Mapping[str, int], stage_bytes: float, order: tuple[str, ...]
) -> Ring | None:
    hops = list(itertools.pairwise([*order, order[0]]))
    steps: list[tuple[float, int, WanLink]] = []
    for a, b in hops:
        link = cluster.link(a, b)
        if link is None:
            return None
        pairs = min(pipelines[a], pipelines[b])
        step_s = stage_bytes / (len(order) * pairs * link.bytes_per_s) + link.latency_s
        steps.append((step_s, pairs, link))
    step_s, pairs, slowest = max(steps, key=lambda step: step[0])
    return Ring(
        order=order,
        links=tuple(link for _, _, link in steps),
        seconds=2 * (len(order) - 1) * step_s,
        latency_s=2 * (len(order) - 1) * slowest.latency_s,
        pairs=pairs,
        bytes_per_s=slowest.bytes_per_s,
    )
