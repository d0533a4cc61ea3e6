"""The traffic matrix in groups of GPUs: bytes from group to group in one iteration, for a heat map.

The same sums as the matrix of every pair (`matrix.py`), over whole stages at once, for any number of GPUs.
GPUs are numbered as there, domain by domain.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.plan.network.matrix import gpu_numbers, sums_by_group
from engine.plan.network.traffic import Job, data_peers, flows, hops, peers

Links = tuple[NDArray[np.int64], NDArray[np.int64], int]  # from, to, and how many peers each member sends to


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """Bytes from each group (row) to each group (column).

    gpus_each : GPUs of every group but the last, which has the rest.
    """

    gpus_each: int
    bytes: NDArray[np.float64]


def heat(job: Job, most_groups: int) -> Heat:
    """Traffic between at most `most_groups` groups; of whole HB domains, if there are several."""
    domains = job.gpus // job.hb_domain
    each = -(-job.gpus // most_groups) if domains == 1 else job.hb_domain * -(-domains // most_groups)
    groups = -(-job.gpus // each)
    sums = np.zeros(groups * groups)

    def add(sender: NDArray[np.int64], receiver: NDArray[np.int64], size: float) -> None:
        if size > 0:
            codes = (sender * groups + receiver).ravel()
            sums[:] += size * np.bincount(codes, minlength=groups * groups)

    at = [gpu_numbers(job, stage) // each for stage in range(job.stages)]  # group of (replica, member)
    tensor = _tensor_links(job)
    data = _data_links(job)
    for stage, here in enumerate(at):
        sent = sums_by_group(flows(job, stage))
        for size, (source, to, count) in zip(sent["tp"], tensor, strict=True):
            add(here[:, source], here[:, to], size / max(1, count))
        for name, both in data.items():
            for size, (source, to, count) in zip(sent[name], both, strict=True):
                add(here[source], here[to], size / max(1, count))
    for (stage, to_stage), _, size in hops(job):
        add(at[stage], at[to_stage], size)
    return Heat(gpus_each=each, bytes=sums.reshape(groups, groups))


def _tensor_links(job: Job) -> list[Links]:
    """Links inside the domain and over the rail, between members of one tensor-parallel group."""
    by_member = [peers(job.placement.tp, t, all_to_all=False) for t in range(int(job.strategies.tp))]
    return [_links([both[level] for both in by_member]) for level in (0, 1)]


def _data_links(job: Job) -> dict[str, list[Links]]:
    """The same by kind between members of one data-parallel group."""
    by_member = [data_peers(job, member) for member in range(int(job.strategies.dp))]
    return {
        kind: [_links([to[kind][level] for to in by_member]) for level in (0, 1)] for kind in by_member[0]
    }


def _links(to: list[list[int]]) -> Links:
    source = np.repeat(np.arange(len(to)), [len(others) for others in to])
    return source, np.array([other for others in to for other in others], dtype=np.int64), len(to[0])
