"""Which GPU each rank of a run gets: idle ones on nodes that answer, in the data centres of its job."""

import socket
from collections import Counter
from collections.abc import Iterator, Sequence

from django.db import transaction
from django.utils import timezone

from engine.inputs import parse
from engine.job.domains import domains_in, pack
from engine.job.job import TrainJob
from engine.job.locations import Document, pool_of_rank
from engine.job.shape import Shape, shape_of
from webapp.inventory.models import Node
from webapp.inventory.selectors import pools
from webapp.jobs.gpu_inventory import Gpu, GpuInventory, Shortage
from webapp.jobs.models import Desired, MarkLevel, RankState, Run, Status
from webapp.jobs.reserve import keeps_reserve
from webapp.jobs.services import add_mark, fail_run, lock, set_status, wait_for


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
    ranks = list(_assign(run, gpu_inventory))
    RankState.objects.bulk_create([*ranks, *_reserve(run, gpu_inventory, ranks)])
    run.rendezvous_port = _port(run)
    run.save(update_fields=["rendezvous_port"])
    set_status(run, Status.STARTING, "")
    return True


@transaction.atomic
def extend_reserve(run: Run) -> None:
    """Give a running run that holds GPUs in reserve those that became idle: on nodes without a rank of it.

    Not while other runs are queued: they come first.
    """
    if not keeps_reserve(run.job.document) or Run.objects.in_queue().exists():
        return
    shape, ranks = shape_of(run.job.document), list(run.ranks.all())
    if len(ranks) >= len(shape.dc_of_rank):
        return
    run = lock(run.pk)
    if run.status != Status.RUNNING or run.desired_state != Desired.RUNNING:
        return
    named = pools(run.job.team, list(shape.dcs))
    Node.objects.select_for_update().filter(pool__in=named.values()).count()  # one allocation at a time
    gpu_inventory = GpuInventory([(run.job.team_id, run.job.document)])
    new = list(_reserve(run, gpu_inventory, ranks, apart=True))
    if new:
        RankState.objects.bulk_create(new)
        named_gpus = ", ".join(f"GPU {rank.gpu} of {rank.node.name}" for rank in new)
        add_mark(run, MarkLevel.INFO, f"Took into the reserve: {named_gpus}."[:600])


def _reserve(
    run: Run, gpu_inventory: GpuInventory, ranks: Sequence[RankState], *, apart: bool = False
) -> Iterator[RankState]:
    """Idle GPUs for the run's reserve, as far as there are some, beyond its `ranks`.

    apart : on other nodes than those of its ranks. A node is told once which ranks are its own.
    """
    shape, document = shape_of(run.job.document), run.job.document
    held, has = {(rank.node_id, rank.gpu) for rank in ranks}, {rank.rank for rank in ranks}
    nodes = {rank.node_id for rank in ranks} if apart else set()
    supply = {
        name: iter([(n, gpu) for n, gpu in gpus if (n.pk, gpu) not in held and n.pk not in nodes])
        for name, gpus in gpu_inventory.idle(run.job.team_id, document).items()
    }
    for rank in range(shape.ranks, len(shape.dc_of_rank)):
        if rank in has:
            continue
        node, gpu = next(supply.get(shape.dcs[shape.dc_of_rank[rank]], iter(())), (None, 0))
        if node is not None:
            yield _rank_state(run, rank, shape, node, gpu)


def _rank_state(run: Run, rank: int, shape: Shape, node: Node, gpu: int) -> RankState:
    pipeline, stage, _ = shape.place_of(rank)
    return RankState(
        run=run,
        rank=rank,
        pipeline=pipeline,
        stage=stage,
        dc=node.dc,
        node=node,
        gpu=gpu,
        state_since=timezone.now(),
    )


def _say(run: Run, shortage: Shortage) -> None:
    if shortage.for_good:
        fail_run(run, f"{shortage.text}.")
        return
    ahead = Run.objects.ahead_of(run).count()
    wait_for(run, shortage.said(ahead), needs_action=shortage.needs_action)


def _assign(run: Run, gpu_inventory: GpuInventory) -> Iterator[RankState]:
    """The GPUs where the job is placed; else those that `_gpus_by_domain` gives it."""
    document, team = run.job.document, run.job.team_id
    shape = shape_of(document)
    if run.job.gpu_of_rank:
        gpus = dict(enumerate(gpu_inventory.placed_gpus(team, document, run.job.gpu_of_rank)))
    else:
        idle = gpu_inventory.idle(team, document)
        gpus = _gpus_by_domain(
            document, shape, {name: _spread(of) for name, of in idle.items()} if shape.swaps else idle
        )
    for rank, (node, gpu) in gpus.items():
        yield _rank_state(run, rank, shape, node, gpu)


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


def _gpus_by_domain(document: Document, shape: Shape, idle: dict[str, list[Gpu]]) -> dict[int, Gpu]:
    """A GPU of its pool for each rank, stage by stage, so that what all-reduces lies close together.

    Ranks that compute a stage together take GPUs one after another: those of `idle` are side by side. In a
    data centre with HB domains the replicas of a domain get one node, as far as nodes have room.
    """
    names = pool_of_rank(document)
    by_stage = sorted(range(len(names)), key=lambda rank: (rank % shape.stages, rank % shape.ranks))
    gpus_of_stage = len(names) // shape.ranks
    gpus: dict[int, Gpu] = {}
    for dc, site in enumerate(document["datacenters"]):
        ranks = [rank for rank in by_stage if names[rank] == site["name"]]
        if not ranks or not site.get("hb_domain") or shape.swaps:
            gpus |= dict(zip(ranks, idle.get(site["name"], ()), strict=False))
            continue
        free: dict[Node, list[Gpu]] = {}
        for gpu in idle[site["name"]]:
            free.setdefault(gpu[0], []).append(gpu)
        domains = domains_in(parse(TrainJob, document), dc)
        node_of = pack(domains, {node: len(of_node) // gpus_of_stage for node, of_node in free.items()})
        gpus |= {rank: free[node_of[shape.place_of(rank)[:2]]].pop(0) for rank in ranks}
    return gpus


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
