"""Which replicas form the domains of a job's all-reduce, and the nodes that hold them.

Rail-only, §III-B: the GPUs of one HB domain, here a node, have a fast network between them, and only rails
lead out of it. So a hierarchical sum gains only if the replicas of a domain are on one node.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from engine.job.all_reduce import domain_of
from engine.job.fields import JobFields

Position = tuple[int, int]  # pipeline and stage
T = TypeVar("T", bound=Hashable)
N = TypeVar("N", bound=Hashable)


def domains_in(job: JobFields, dc: int) -> list[list[Position]]:
    """The replicas of each domain in a data centre, of all stages; alone where a stage has no grid."""
    domains: list[list[Position]] = []
    for stage in range(job.cell.stages):
        here = [(pipeline, stage) for pipeline, at in job.ring_of(stage) if at == dc]
        x = domain_of(job, stage)  # divides the replicas in each data centre
        domains += [here[i : i + x] for i in range(0, len(here), x)]
    return domains


def pack(domains: Sequence[Sequence[T]], room: Mapping[N, int]) -> dict[T, N]:
    """The node of each member: as many domains as possible whole on one, of equal ones the most there are.

    Each goes to the node with the least room that holds it. What then fits nowhere whole is split, with the
    largest parts first.

    room : GPUs of each node that are free; together at least as many as there are members.
    """
    left, at = dict(room), dict[T, N]()
    unfit: list[Sequence[T]] = []
    for domain in sorted(domains, key=len, reverse=True):
        fits = [node for node in left if left[node] >= len(domain)]
        if not fits:
            unfit.append(domain)
            continue
        node = min(fits, key=left.__getitem__)
        left[node] -= len(domain)
        at |= dict.fromkeys(domain, node)
    for domain in unfit:
        rest = list(domain)
        while rest:
            node = max(left, key=left.__getitem__)
            part, rest = rest[: left[node]], rest[left[node] :]
            left[node] -= len(part)
            at |= dict.fromkeys(part, node)
    return at
