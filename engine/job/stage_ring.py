"""The replicas of a stage on the nodes of a run: their order, and how many form a domain."""

import math
from collections import Counter
from dataclasses import dataclass

from engine.cluster.all_reduce import AllReduce, domain_size
from engine.job.all_reduce import all_reduce_of, most_in_domain
from engine.job.launch import LaunchSpec, RankAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRing:
    """How the replicas of a stage sum: `ranks` in the order of the ring, of which `domain` form a domain."""

    kind: AllReduce
    ranks: tuple[RankAssignment, ...]
    domain: int


def stage_ring(spec: LaunchSpec, stage: int, shard: int = 0) -> StageRing:
    """The replicas of a stage as the nodes hold them.

    Data centre by data centre. A hierarchical sum also goes node by node in a data centre with HB domains.
    There a domain is on one node, and as large as all nodes allow. Where they allow no grid, it is a ring.
    """
    job = spec.job
    has_nodes = [dc.hb_domain is not None for dc in job.datacenters]

    def home(a: RankAssignment) -> tuple[int, str]:
        return a.dc, a.node if has_nodes[a.dc] else ""

    replicas = [a for a in spec.ranks if (a.stage, a.shard) == (stage, shard)]
    dcs = sorted({a.dc for a in replicas})
    domain = domain_size(math.gcd(*Counter(map(home, replicas)).values()), most_in_domain(job, dcs))
    kind = all_reduce_of(job, stage)
    if kind == "hierarchical" and not 1 < domain < len(replicas):
        kind = "ring"
    at = home if kind == "hierarchical" else _dc
    return StageRing(
        kind=kind, ranks=tuple(sorted(replicas, key=lambda a: (at(a), a.pipeline))), domain=domain
    )


def _dc(a: RankAssignment) -> tuple[int, str]:
    return a.dc, ""


def stage_rings(spec: LaunchSpec) -> list[StageRing]:
    """Of every stage, in order."""
    return [stage_ring(spec, stage) for stage in range(spec.job.cell.stages)]
