"""The traffic matrix: every pair of GPUs that carries traffic, for a heat map.

GPUs are numbered domain by domain; in a domain box by box, in a box tensor-parallel peers first, then
data-parallel ones, then stages. If strategies leave GPUs idle, a domain may hold several boxes. Those of one
position come first in all domains, so groups stay on their rails as far as they fit.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.plan.network.traffic import KINDS, Flow, Job, data_peers, flows, hops, peers

MOST_ROWS = 5_000_000


def write_matrix(job: Job, path: Path, rows: int) -> None:
    """Write the CSV ``from,to,kind,bytes``, one row per ordered pair and kind; `rows` pairs are expected.

    Raises
    ------
    InputError
        More rows than a heat map can use, or the file cannot be written.
    """
    if rows > MOST_ROWS:
        allowed = f"the matrix has {rows:,} pairs; at most {MOST_ROWS:,}"
        raise InputError("--matrix", str(path), allowed)
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            _write(job, file)
    except OSError as error:
        raise InputError("--matrix", str(path), f"cannot be written ({error.strerror})") from None


def _write(job: Job, file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("from", "to", "kind", "bytes"))
    for (sender, receiver, kind), size in sorted(matrix(job).items()):
        writer.writerow((sender, receiver, kind, f"{size:.17g}"))


def matrix(job: Job) -> dict[tuple[int, int, str], float]:
    """(from GPU, to GPU, kind) → bytes in one iteration; only pairs that carry something."""
    sums: dict[tuple[int, int, str], float] = defaultdict(float)
    for sender, receiver, kind, size in _edges(job):
        if size > 0:
            sums[sender, receiver, kind] += size
    return dict(sums)


def _edges(job: Job) -> Iterator[tuple[int, int, str, float]]:
    tp, dp = int(job.strategies.tp), int(job.strategies.dp)
    for stage in range(job.stages):
        sums = sums_by_group(flows(job, stage))
        for d in range(dp):
            for t in range(tp):
                yield from _sent(job, sums, stage, d, t)
    for (stage, to), _, size in hops(job):
        for d in range(dp):
            for t in range(tp):
                yield gpu_number(job, stage, d, t), gpu_number(job, to, d, t), "pp", size


def sums_by_group(all_flows: Iterator[Flow]) -> dict[str, tuple[float, float]]:
    """Bytes inside and outside by the group of each ring; gradients of experts by themselves."""
    sums: dict[str, tuple[float, float]] = {}
    for flow in all_flows:
        name = "experts_dp" if flow.kind == "dp" and "dp" in sums else flow.kind
        inside, outside = sums.get(name, (0.0, 0.0))
        sums[name] = (inside + flow.inside, outside + flow.outside)
    return sums


def _sent(
    job: Job, sums: dict[str, tuple[float, float]], stage: int, d: int, t: int
) -> Iterator[tuple[int, int, str, float]]:
    """Traffic of one GPU in collectives, by receiver."""
    me = gpu_number(job, stage, d, t)
    for size, to in zip(sums["tp"], peers(job.placement.tp, t, all_to_all=False), strict=True):
        for other in to:
            yield me, gpu_number(job, stage, d, other), "tp", size / len(to)
    for name, both in data_peers(job, d).items():
        kind = name if name in KINDS else "dp"
        for size, to in zip(sums[name], both, strict=True):
            for other in to:
                yield me, gpu_number(job, stage, other, t), kind, size / len(to)


def gpu_number(job: Job, stage: int, d: int, t: int) -> int:
    """The number of the GPU at tensor-parallel index `t` of replica `d` of `stage`."""
    return int(_number(job, stage, d, t))


def gpu_numbers(job: Job, stage: int) -> NDArray[np.int64]:
    """The numbers of all GPUs of `stage`, (replica, tensor-parallel index)."""
    replicas, members = np.arange(int(job.strategies.dp)), np.arange(int(job.strategies.tp))
    numbers: NDArray[np.int64] = _number(job, stage, replicas[:, None], members[None, :])
    return numbers


def _number(job: Job, stage: int, d: Any, t: Any) -> Any:
    placement = job.placement
    x_t, x_d, x_p = int(placement.tp.x), int(placement.dp.x), int(placement.stages_inside)
    (t_out, t_in), (d_out, d_in), (p_out, p_in) = divmod(t, x_t), divmod(d, x_d), divmod(stage, x_p)
    p_in = p_in if p_out % 2 == 0 else x_p - 1 - p_in
    local = t_in + x_t * (d_in + x_d * p_in)
    box = t_out + int(placement.tp.y) * (d_out + int(placement.dp.y) * p_out)
    position, domain = divmod(box, job.gpus // job.hb_domain)
    return domain * job.hb_domain + position * int(placement.box) + local
