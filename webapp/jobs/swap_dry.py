"""The dry run of workers that swap: their plan, the memory of GPUs and hosts, and nodes that may be lost."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations

from engine.job.job import TrainJob
from engine.job.swap.planned import SwapPlan
from engine.job.swap.tracker import TRACKER_MACHINES
from webapp.inventory.models import GpuPool, Node
from webapp.jobs.check import GIB, Check, known_sizes
from webapp.jobs.check import size as _size


def swap_checks(job: TrainJob, plan: SwapPlan, named: Mapping[str, GpuPool]) -> Iterator[Check]:
    """What concerns workers that swap alone.

    named : the pools of the job's data centres, by name.
    """
    yield _of_plan(plan)
    yield _of_gpus(plan, named)
    yield from _of_hosts(job, plan, named)
    yield _of_machines(job, named)


def crossed_links(job: TrainJob) -> list[tuple[int, int]]:
    """Pairs of data centres between which workers may send gradients: whoever is left forms the ring."""
    return list(combinations(sorted({dc for (dc,) in job.dcs_of_pipeline}), 2))


def words(job: TrainJob) -> str:
    """The shape of the job in a sentence."""
    cell = job.cell
    return (
        f"{cell.pipelines} workers, strategy swap, {cell.microbatches} mini-batches per step, "
        f"{cell.accumulation} {'step' if cell.accumulation == 1 else 'steps'} per update."
    )


def _of_plan(plan: SwapPlan) -> Check:
    result, parts = plan.result, len(plan.subs)
    text = f"{parts} {'sub-model' if parts == 1 else 'sub-models'}, {result.loads_per_step} loads per step"
    if result.feasible:
        return Check(name="Swap plan", ok=True, text=f"{text}; computing covers loading.")
    return Check(name="Swap plan", ok=False, text=f"{text}; workers wait for loads: {result.reason}.")


def _of_gpus(plan: SwapPlan, named: Mapping[str, GpuPool]) -> Check:
    """The memory that the plan may fill, against the smallest GPU."""
    if not named:
        return Check(name="Memory", ok=False, text="The GPU type of the workers is not known.", blocks=True)
    pool = min(named.values(), key=lambda pool: pool.gpu.memory_bytes)
    needed, has = plan.result.capacity_bytes, pool.gpu.memory_bytes
    text = f"A worker uses up to {_size(needed)} of {has / GIB:,.0f} GiB ({pool.gpu_type})."
    return Check(name="Memory", ok=needed <= has, text=text, blocks=True)


def _of_hosts(job: TrainJob, plan: SwapPlan, named: Mapping[str, GpuPool]) -> Iterator[Check]:
    """Weights, gradients and the optimizer's state of each worker are in the memory of its machine, which the
    agents have seen."""
    of_worker = plan.result.host_bytes
    for dc, workers in sorted(Counter(dc for (dc,) in job.dcs_of_pipeline).items()):
        name = job.datacenters[dc].name
        nodes = Node.objects.filter(pool=named.get(name), device=job.device.kind).order_by()
        machines = known_sizes(list(nodes.values_list("seen_hardware__memory_bytes", flat=True)))
        if not machines:
            continue  # not known, or said by the check of its GPUs
        text = (
            f"{workers} {'worker needs' if workers == 1 else 'workers need'} {_size(workers * of_worker)} on"
            f" the host, one {_size(of_worker)}. The machines have {_size(sum(machines))}, the largest "
            f"{_size(max(machines))}."
        )
        fits = workers * of_worker <= sum(machines) and of_worker <= max(machines)
        yield Check(name=f"Host memory in {name}", ok=fits, text=text, blocks=True)


def _of_machines(job: TrainJob, named: Mapping[str, GpuPool]) -> Check:
    nodes = Node.objects.filter(pool__in=named.values(), device=job.device.kind).count()
    machines = min(nodes, job.cell.pipelines)
    if machines >= TRACKER_MACHINES:
        text = "The run survives the loss of any one node, if its workers get GPUs of three or more."
    else:
        text = f"With fewer than {TRACKER_MACHINES} nodes, the loss of the first worker's node ends the run."
    return Check(name="Loss of a node", ok=True, text=text)
