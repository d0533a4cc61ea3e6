"""Which GPU each rank of a run gets: idle ones on nodes that answer, in the data centres of its job."""

import socket
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from webapp.accounts.models import Team
from webapp.inventory.models import GpuPool, Node
from webapp.inventory.selectors import pools
from webapp.jobs.models import RANK_OVER, RankState, Run, Status
from webapp.jobs.services import fail_run, lock, set_status, wait_for

Gpu = tuple[Node, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a job cannot start now; `for_good` where waiting will not help."""

    text: str
    for_good: bool = False


@transaction.atomic
def allocate(run: Run) -> bool:
    """Give every rank of a queued run a GPU and move it to starting; else say what it waits for."""
    run = lock(run.pk)
    if run.status != Status.QUEUED:
        return False
    document = run.job.document
    named = _pools(document, run.job.team)
    Node.objects.select_for_update().filter(pool__in=named.values()).count()  # one allocation at a time
    idle = _idle(named, document["device"])
    shortage = _shortage(document, named, idle)
    if shortage:
        _say(run, shortage)
        return False
    RankState.objects.bulk_create(_assign(run, document, idle))
    run.rendezvous_port = _port(run)
    run.save(update_fields=["rendezvous_port"])
    set_status(run, Status.STARTING, "")
    return True


def shortage_of(document: dict[str, Any], team: Team) -> str:
    """What a run of `document` would wait for if it were launched now; empty where nothing."""
    named = _pools(document, team)
    found = _shortage(document, named, _idle(named, document["device"]))
    return found.text if found else ""


def _say(run: Run, shortage: Shortage) -> None:
    if shortage.for_good:
        fail_run(run, shortage.text)
    else:
        wait_for(run, shortage.text)


def _pools(document: dict[str, Any], team: Team) -> dict[str, GpuPool]:
    return pools(team, [dc["name"] for dc in document["datacenters"]])


def _idle(named: dict[str, GpuPool], device: str) -> dict[str, list[Gpu]]:
    """Idle GPUs of nodes that are enrolled and answer, by the name of their pool."""
    names = {pool.pk: name for name, pool in named.items()}
    nodes = Node.objects.online().filter(pool__in=names, device=device).exclude(acl_sha256="")
    held = set(
        RankState.objects.filter(node__in=nodes).exclude(state__in=RANK_OVER).values_list("node_id", "gpu")
    )
    idle: dict[str, list[Gpu]] = defaultdict(list)
    for node in nodes.select_related("dc").order_by("name"):
        idle[names[node.pool_id]] += [(node, gpu) for gpu in range(node.gpus) if (node.pk, gpu) not in held]
    return idle


def _shortage(
    document: dict[str, Any], named: dict[str, GpuPool], idle: dict[str, list[Gpu]]
) -> Shortage | None:
    for name, needed in _needed(document).items():
        if name not in named:
            return Shortage(text=f"{name} has no GPU pool any more.", for_good=True)
        have = len(idle[name])
        if have < needed:
            gpus = f"{needed} GPU" if needed == 1 else f"{needed} GPUs"
            return Shortage(text=f"Waits for {gpus} in {name}, {have} {'is' if have == 1 else 'are'} idle")
    return None


def _needed(document: dict[str, Any]) -> dict[str, int]:
    """GPUs per pool, by name."""
    needed: dict[str, int] = defaultdict(int)
    for dc in dc_names(document):
        needed[dc] += document["pipelines"]
    return needed


def dc_names(document: dict[str, Any]) -> list[str]:
    """The pool of each stage, by name."""
    dc_of_stage = document.get("dc_of_stage") or [0] * document["stages"]
    return [document["datacenters"][dc]["name"] for dc in dc_of_stage]


def _assign(run: Run, document: dict[str, Any], idle: dict[str, list[Gpu]]) -> Iterator[RankState]:
    """Stage by stage, so that what all-reduces together lies close together."""
    supply = {name: iter(gpus) for name, gpus in idle.items()}
    for stage, name in enumerate(dc_names(document)):
        for pipeline in range(document["pipelines"]):
            node, gpu = next(supply[name])
            yield RankState(
                run=run, rank=pipeline * document["stages"] + stage, pipeline=pipeline, stage=stage,
                dc=node.dc, node=node, gpu=gpu, state_since=timezone.now(),
            )  # fmt: skip


def _port(run: Run) -> int:
    """A port for the rendezvous store on the node of rank 0 that no other run uses there."""
    ports = settings.RENDEZVOUS_PORTS
    host = RankState.objects.get(run=run, rank=0).node.host
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
