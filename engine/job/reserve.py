"""GPUs that a run holds in reserve for a layout with more or other ones (failures.adapt.most_gpus)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from engine.job.changed import value_at
from engine.job.job import TrainJob
from engine.job.locations import dcs_of_pipelines


def most_gpus(job: TrainJob) -> int | None:
    """Most GPUs that a run of the job holds, those in reserve included; None where it holds no reserve."""
    adapt = job.failures.adapt
    return adapt.most_gpus if adapt is not None else None


def dcs_of_reserve(job: TrainJob) -> tuple[int, ...]:
    """Index into `datacenters` of each GPU that a run may hold in reserve, in the order of their ranks.

    Whole pipelines like those of the launch come first, then what else the data centres list.
    """
    most = most_gpus(job)
    if most is None:
        return ()
    gpus = [dc.gpus for dc in job.datacenters]
    return _reserve(gpus, job.dcs, job.cell.pipelines, most)


def dcs_of_reserve_in(document: dict[str, Any]) -> tuple[int, ...] | None:
    """The same from the document of a job; None where its runs hold no reserve."""
    most = (value_at(document, "failures.adapt") or {}).get("most_gpus")
    if most is None:
        return None
    pipelines = dcs_of_pipelines(document)
    return _reserve([dc["gpus"] for dc in document["datacenters"]], pipelines[0], len(pipelines), most)


def _reserve(gpus: Sequence[int], dcs: Sequence[int], pipelines: int, most: int) -> tuple[int, ...]:
    used = Counter(dcs)
    free = [count - used[dc] * pipelines for dc, count in enumerate(gpus)]
    return tuple(_in_order(free, dcs))[: max(0, most - len(dcs) * pipelines)]


def _in_order(free: list[int], dcs: Sequence[int]) -> Iterator[int]:
    """The data centre of each free GPU. free : GPUs by data centre. dcs : of the stages of a pipeline."""
    needs = Counter(dcs)
    while all(free[dc] >= count for dc, count in needs.items()):
        for dc in dcs:
            free[dc] -= 1
            yield dc
    for dc in sorted(range(len(free)), key=lambda dc: dc not in needs):
        yield from [dc] * free[dc]
