"""How the replicas of each stage of a job sum their gradients, and how long that takes (before a run)."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from engine.cluster.all_reduce import (
    AllReduce,
    Nodes,
    Replicas,
    all_reduce_s,
    domain_size,
    sent_shares,
)
from engine.job.fields import JobFields
from engine.job.network import Between
from engine.job.sections.device import BYTES_OF_PARAMETER

BUCKET_BYTES = 25_000_000  # of gradients that are summed at once
# Calibration on two shared cores, for a prediction before anything was measured: gloo's all-reduce of small
# buffers takes 0.5–1.6 ms between 2 ranks, its ring moves about 1 GB/s.
ALLREDUCE_FLOOR_S = 1.5e-3
ALLREDUCE_BYTES_PER_S = 1e9
# The same for a message of the transport and what is done with it: 0.3 to 0.8 ms, the fastest of twelve.
MESSAGE_S = 0.5e-3


def stage_parameters(job: JobFields, stage: int) -> int:
    """Parameters of the layers of one stage, each stage once on the way."""
    shape = job.model.shape
    count = len(job.layers_of_stage[stage]) * shape.layer_parameters
    if stage == 0:
        count += shape.embedding_parameters
    if stage == job.cell.stages - 1:
        count += shape.head_parameters
    return count


def all_reduces(job: JobFields) -> list[AllReduce]:
    """How each stage sums."""
    return [all_reduce_of(job, stage) for stage in range(job.cell.stages)]


def all_reduce_of(job: JobFields, stage: int) -> AllReduce:
    """How the replicas of a stage sum: as the job says, or with `auto` the fastest by prediction.

    With `auto` replicas in one data centre take the ring, which there is gloo's or NCCL's own. A stage whose
    replicas make no grid of domains sums along a ring in place of hierarchically.
    """
    return _chosen(job, stage, [dc for _, dc in job.ring_of(stage)])


def _chosen(job: JobFields, stage: int, dcs: Sequence[int]) -> AllReduce:
    """How replicas in these data centres, in the order of the ring, sum the gradients of a stage."""
    choice = job.cell.all_reduce
    replicas = replicas_in(job, dcs)
    if choice == "auto" and len(set(dcs)) > 1:
        nbytes = gradient_bytes(job, stage)
        kinds: list[AllReduce] = (
            ["ring", "hierarchical", "sharded"] if replicas.is_grid else ["ring", "sharded"]
        )
        return min(kinds, key=lambda kind: _summed_s(kind, nbytes, replicas, dcs))
    if choice == "sharded" or (choice == "hierarchical" and replicas.is_grid):
        return choice
    return "ring"


def domain_of(job: JobFields, stage: int) -> int:
    """Consecutive replicas of a stage, in the order of the ring, that are in one domain."""
    return replicas_in(job, [dc for _, dc in job.ring_of(stage)]).domain


def crossed(job: JobFields, stage: int, kind: AllReduce | None = None) -> list[tuple[int, int]]:
    """Pairs of data centres between which the replicas of a stage send gradients.

    kind : how they sum; None: as the job says.
    """
    dcs = [dc for _, dc in job.ring_of(stage)]
    if len(set(dcs)) == 1:
        return []
    shares = sent_shares(kind or all_reduce_of(job, stage), len(dcs), domain_of(job, stage))
    sent = zip(*np.nonzero(shares), strict=True)
    return list(dict.fromkeys((dcs[i], dcs[j]) for i, j in sent if dcs[i] != dcs[j]))


def unlinked(job: JobFields, stage: int) -> tuple[int, int] | None:
    """Two data centres that gradients of a stage cross without a link; None: there are links for all.

    With `auto` those of the ring count: what needs more links is then not chosen.
    """
    kind: AllReduce | None = "ring" if job.cell.all_reduce == "auto" else None
    return next((pair for pair in crossed(job, stage, kind) if job.between(*pair) is None), None)


def sum_of_stage_s(job: JobFields, stage: int, between: Between | None = None) -> float:
    """Seconds of the sums of a stage's replicas, and of a matrix that the first and last stage share.

    between : the networks of data centres, for instance as measured; None: those of the job.
    """
    total_s = sum_over_s(job, stage, [dc for _, dc in job.ring_of(stage)], between)
    if job.model.shape.has.tied and stage in (0, job.cell.stages - 1) and job.cell.stages > 1:
        shared = job.model.shape.tied_parameters * BYTES_OF_PARAMETER[job.device.dtype] / job.cell.tp
        ends = [job.dcs[0], job.dcs[-1]]
        total_s += _summed_s("ring", shared, replicas_in(job, ends, between), ends)
    return total_s


def sum_over_s(job: JobFields, stage: int, dcs: Sequence[int], between: Between | None = None) -> float:
    """Seconds in which replicas in these data centres, in the order of the ring, sum a stage's gradients."""
    replicas = replicas_in(job, dcs, between)
    return _summed_s(_chosen(job, stage, dcs), gradient_bytes(job, stage), replicas, dcs)


def replicas_in(job: JobFields, dcs: Sequence[int], between: Between | None = None) -> Replicas:
    """Replicas in these data centres, and the networks between them: as given, or the job's."""
    known = sorted(set(dcs))
    latency_s, rate = np.zeros((len(known),) * 2), np.full((len(known),) * 2, ALLREDUCE_BYTES_PER_S)
    for (i, a), (j, b) in permutations(enumerate(known), 2):
        link = (between or job.between)(a, b)
        latency_s[i, j] = link.latency_ms / 1e3 if link else 0.0
        rate[i, j] = link.rate_bytes_per_s if link else 0.0
    at, domain = np.searchsorted(known, dcs), _domain(job, Counter(dcs))
    ports = [job.datacenters[dc].port_gbps for dc in dcs]
    # Where a data centre has HB domains a node has all replicas of one; else each has a node of its own.
    node = [i - i % domain if job.datacenters[dc].hb_domain else i for i, dc in enumerate(dcs)]
    return Replicas(
        latency_s=latency_s[at[:, None], at] + MESSAGE_S,
        bytes_per_s=rate[at[:, None], at],
        domain=domain,
        node=np.array(node),
        port_bytes_per_s=np.array([np.inf if port is None else port * 1e9 / 8 for port in ports])
        if any(ports)
        else None,
    )


def _domain(job: JobFields, replicas: Counter[int]) -> int:
    """Replicas of each domain, of so many by data centre: of one size in all, and each on one node."""
    hosted = Counter(dc for dcs in job.dcs_of_pipeline for dc in dcs)
    nodes = tuple(
        Nodes(
            gpus=job.datacenters[dc].gpus,
            gpus_per_node=hb_domain,
            replicas=hosted[dc],
            gpus_per_replica=job.cell.tp,
        )
        for dc in replicas
        if (hb_domain := job.datacenters[dc].hb_domain)
    )
    return domain_size(math.gcd(*replicas.values()), most_in_domain(job, list(replicas)), nodes)


def most_in_domain(job: JobFields, dcs: list[int]) -> int:
    """Replicas of one stage for which a domain has room, in the data centre whose domains are smallest."""
    sizes = [job.datacenters[dc].hb_domain or job.cell.world_size for dc in dcs]
    return max(1, min(sizes) // job.cell.tp)


def gradient_bytes(job: JobFields, stage: int) -> float:
    """Bytes of the gradients of one stage, of each of its ranks."""
    return stage_parameters(job, stage) * BYTES_OF_PARAMETER[job.device.dtype] / job.cell.tp


def _summed_s(kind: AllReduce, nbytes: float, replicas: Replicas, dcs: Sequence[int]) -> float:
    """Seconds in which replicas sum so many bytes, bucket by bucket."""
    n = len(dcs)
    if n == 1:
        return 0.0
    if len(set(dcs)) == 1 and kind == "ring":  # gloo's, of which only the rate is known
        ports = np.inf if replicas.port_bytes_per_s is None else replicas.port_bytes_per_s.min()
        return ALLREDUCE_FLOOR_S + 2 * nbytes * (n - 1) / n / float(min(ports, ALLREDUCE_BYTES_PER_S))
    whole, rest = divmod(nbytes, BUCKET_BYTES)
    full_s = all_reduce_s(kind, BUCKET_BYTES, replicas) if whole else 0.0
    return ALLREDUCE_FLOOR_S + whole * full_s + all_reduce_s(kind, rest, replicas)
