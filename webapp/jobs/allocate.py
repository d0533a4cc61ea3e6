"""Which GPU each rank of a run gets: idle ones on nodes that answer, in the data centres of its job."""

import socket
from collections import Counter
from collections.abc import Iterator, Sequence

from django.db import transaction
from django.utils import timezone

from engine.job.locations import pool_of_rank
from engine.job.shape import shape_of
from webapp.inventory.models import Node
from webapp.inventory.selectors import pools
from webapp.jobs.gpu_inventory import Gpu, GpuInventory, Shortage
from webapp.jobs.models import RankState, Run, Status
from webapp.jobs.services import fail_run, lock, set_status, wait_for


@transaction.atomic
def allocate(run: Run) -> bool:
    """Give every rank of a queued run a GPU and move it to starting; else say what it waits for."""
    run = lock(run.pk)
    if run.status != Status.QUEUED:
        return False
    document, team, gpu_of_rank = run.job.document, run.job.team_id, run.job.gpu_of_rank
    named = pools(run.job.team, [dc["name"] for dc in document["datacenters"]])
    Node.objects.select_for_update().filter(pool__in=named.values()).count()  # one allocation at a time
    gpu_inventory = GpuInventory([(team, document)])
    shortage = gpu_inventory.shortage(team, document, gpu_of_rank)
    if shortage:
        _say(run, shortage)
        return False
    RankState.objects.bulk_create(_assign(run, gpu_inventory))
    run.rendezvous_port = _port(run)
    run.save(update_fields=["rendezvous_port"])
    set_status(run, Status.STARTING, "")
    return True


def _say(run: Run, shortage: Shortage) -> None:
    if shortage.for_good:
        fail_run(run, f"{shortage.text}.")
        return
    ahead = Run.objects.ahead_of(run).count()
    wait_for(run, shortage.said(ahead), needs_action=shortage.needs_action)


def _assign(run: Run, gpu_inventory: GpuInventory) -> Iterator[RankState]:
    """The GPUs where the job is placed; else stage by stage, so that what all-reduces lies close together.

    Ranks that compute a stage together take GPUs one after another: those of `idle` are side by side.
    """
    document, team = run.job.document, run.job.team_id
    shape, names = shape_of(document), pool_of_rank(document)
    placed = (
        iter(gpu_inventory.placed_gpus(team, document, run.job.gpu_of_rank)) if run.job.gpu_of_rank else None
    )
    idle = gpu_inventory.idle(team, document).items()
    supply = {name: iter(_spread(gpus) if run.job.swaps else gpus) for name, gpus in idle}
    by_stage = sorted(range(len(names)), key=lambda rank: (rank % shape.stages, rank % shape.ranks))
    for rank in range(len(names)) if placed else by_stage:
        node, gpu = next(placed or supply[names[rank]])
        pipeline, stage, _ = shape.place_of(rank)
        yield RankState(
            run=run,
            rank=rank,
            pipeline=pipeline,
            stage=stage,
            dc=node.dc,
            node=node,
            gpu=gpu,
            state_since=timezone.now(),
        )


def _spread(gpus: Sequence[Gpu]) -> list[Gpu]:
    """GPUs of one node after those of the others: workers that swap share nothing but a node's memory, and
    survive the loss of a machine where three or more have some.
    """
    taken: Counter[int] = Counter()
    turns = []
    for node, gpu in gpus:
        turns.append((taken[node.pk], node, gpu))
        taken[node.pk] += 1
    return [(node, gpu) for _, node, gpu in sorted(turns, key=lambda turn: turn[0])]


def _port(run: Run) -> int:
    """A port for the rendezvous store on the node of rank 0 that no other run uses there."""
    node = RankState.objects.select_related("node").get(run=run, rank=0).node
    ports, host = node.rendezvous_ports, node.host
    used = set(
        Run.objects.open()
        .filter(ranks__rank=0, ranks__node__host=host)
        .values_list("rendezvous_port", flat=True)
    )
    for step in range(len(ports)):
        port = ports[(run.pk + step) % len(ports)]
        if port not in used and _seems_free(host, port):
            return port
    raise RuntimeError(f"no free port from {ports.start} to {ports.stop - 1} on {host}")


def _seems_free(host: str, port: int) -> bool:
    """Whether nobody listens on `port`; can be told for this machine only, elsewhere assumed."""
    if host not in {"127.0.0.1", "localhost"}:
        return True
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
