"""Which backend carries tensors between ranks: messages over hops, and sums over replicas."""

from collections.abc import Collection
from typing import Any, Literal

from engine.job.devices import CUDA
from engine.job.job import TrainJob
from engine.schedule.traversal import WITHIN_STAGE, Traversal

Backend = Literal["nccl", "gloo", "transport"]


def backend_of(job: TrainJob, dcs: Collection[int], *, nccl: bool = True) -> Backend:
    """The backend between ranks in data centres `dcs`, by index.

    Between data centres it is our transport. Inside one it is NCCL, on GPUs, if torch has it (`nccl`), the
    job does not forbid it, and each rank has a GPU of its own: NCCL refuses two ranks on one GPU. Else it is
    gloo, through host memory.
    """
    if len(set(dcs)) > 1:
        return "transport"
    device = job.device
    own_gpu = device.kind == CUDA and device.ranks_per_gpu == 1
    return "nccl" if own_gpu and nccl and device.nccl is not False else "gloo"


def hops_of(job: TrainJob, traversal: Traversal, *, nccl: bool = True) -> list[dict[str, Any]]:
    """The hops of all pipelines with the backend of each, as the result has them (docs/runtime.md, `hops`).

    Pipelines whose stages are in the same data centres share a row.
    """
    names = [dc.name for dc in job.datacenters]
    rows: dict[tuple[int, int, int], dict[str, Any]] = {}
    for hop in sorted({int(hop) for hop in traversal.hop_of if hop != WITHIN_STAGE}):
        ends = hop, (hop + 1) % traversal.stages
        for pipeline, dcs in enumerate(job.dcs_of_pipeline):
            first, second = (dcs[stage] for stage in ends)
            row = rows.setdefault(
                (hop, first, second),
                {
                    "stages": list(ends),
                    "datacenters": [names[first], names[second]],
                    "pipelines": [],
                    "backend": backend_of(job, {first, second}, nccl=nccl),
                },
            )
            row["pipelines"].append(pipeline)
    return list(rows.values())
