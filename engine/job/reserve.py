"""GPUs that a run holds in reserve for a layout with more or other ones (failures.adapt.most_gpus)."""

from collections.abc import Iterator

from engine.job.job import TrainJob


def most_gpus(job: TrainJob) -> int | None:
    """Most GPUs that a run of the job holds, those in reserve included; None where it holds no reserve."""
    adapt = job.failures.adapt
    return adapt.most_gpus if adapt is not None else None


def dcs_of_reserve(job: TrainJob) -> tuple[int, ...]:
    """Index into `datacenters` of each GPU that a run holds in reserve at its launch.

    Whole pipelines like the present ones come first, then what else the data centres list.
    """
    most = most_gpus(job)
    if most is None:
        return ()
    free = [dc.gpus - job.dcs.count(i) * job.cell.pipelines for i, dc in enumerate(job.datacenters)]
    return tuple(dc for dc, _ in zip(_in_order(job, free), range(most - job.cell.world_size), strict=False))


def _in_order(job: TrainJob, free: list[int]) -> Iterator[int]:
    """The data centre of each free GPU. free : GPUs by data centre."""
    while all(free[dc] >= job.dcs.count(dc) for dc in job.dcs):
        for dc in job.dcs:
            free[dc] -= 1
            yield dc
    for dc in sorted(range(len(free)), key=lambda dc: dc not in job.dcs):
        yield from [dc] * free[dc]
