"""Which GPU each rank of a run gets: idle ones on nodes that answer, in the data centres of its job."""

import socket
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from webapp.accounts.models import Team
from webapp.inventory.models import GpuPool, Node
from webapp.inventory.selectors import pools
from webapp.jobs.models import RANK_OVER, RankState, Run, Status
from webapp.jobs.services import fail_run, lock, set_status, wait_for

Gpu = tuple[Node, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a job cannot start now.

    for_good : waiting will not help.
    needs_action : it goes on only when somebody does something: GPUs are too few, silent or not enrolled.
    """

    text: str
    for_good: bool = False
    needs_action: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """GPUs of one pool for one job: how many it needs, and what there is of its device."""

    needed: int
    idle: int
    online: int  # idle or busy, on nodes that may be given work
    total: int  # of the device, on nodes that answer or not
    gone: bool = False
    resting: int = 0  # on nodes that answer, but drain or are of another version

    def shortage(self, name: str) -> Shortage | None:
        """Why the pool called `name` cannot give what is needed; None where it can."""
        if self.gone:
            return Shortage(text=f"{name} has no GPU pool any more", for_good=True)
        if self.idle >= self.needed:
            return None
        gpus = f"{self.needed} GPU" if self.needed == 1 else f"{self.needed} GPUs"
        text = f"Waits for {gpus} in {name}, {self.idle} {'is' if self.idle == 1 else 'are'} idle"
        if self.total < self.needed:
            return Shortage(text=f"{text}: there are {self.total} in all", needs_action=True)
        if self.online < self.needed:
            away = self.total - self.online - self.resting
            why = [f"{away} do not answer"] if away else []
            why += [f"{self.resting} on nodes that drain or run another version"] if self.resting else []
            return Shortage(text=f"{text}: {', '.join(why)}", needs_action=True)
        return Shortage(text=text)


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
    shortage = _shortage(_supply(document, named, idle))
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
    found = _shortage(supply_of(document, team))
    return found.text if found else ""


def supply_of(document: dict[str, Any], team: Team) -> dict[str, Supply]:
    """What the pools of a job can give it now, by name."""
    named = _pools(document, team)
    return _supply(document, named, _idle(named, document["device"]))


def _say(run: Run, shortage: Shortage) -> None:
    if shortage.for_good:
        fail_run(run, f"{shortage.text}.")
        return
    ahead = Run.objects.filter(status=Status.QUEUED, job__team=run.job.team, pk__lt=run.pk).count()
    text = f"{shortage.text}; {ahead} ahead in the queue" if ahead else shortage.text
    wait_for(run, text, needs_action=shortage.needs_action)


def _pools(document: dict[str, Any], team: Team) -> dict[str, GpuPool]:
    return pools(team, [dc["name"] for dc in document["datacenters"]])


def _idle(named: dict[str, GpuPool], device: str) -> dict[str, list[Gpu]]:
    """Idle GPUs of nodes that are enrolled and answer, by the name of their pool."""
    names = {pool.pk: name for name, pool in named.items()}
    nodes = Node.objects.placeable().filter(pool__in=names, device=device)
    held = set(
        RankState.objects.filter(node__in=nodes).exclude(state__in=RANK_OVER).values_list("node_id", "gpu")
    )
    idle: dict[str, list[Gpu]] = defaultdict(list)
    for node in nodes.select_related("dc").order_by("name"):
        idle[names[node.pool_id]] += [(node, gpu) for gpu in range(node.gpus) if (node.pk, gpu) not in held]
    return idle


def _shortage(supply: dict[str, Supply]) -> Shortage | None:
    """What is said first: what will not come, then what needs somebody, then what only takes time."""
    found = [shortage for name, pool in supply.items() if (shortage := pool.shortage(name))]
    return max(found, key=lambda each: (each.for_good, each.needs_action), default=None)


def _supply(
    document: dict[str, Any], named: dict[str, GpuPool], idle: dict[str, list[Gpu]]
) -> dict[str, Supply]:
    usable = Node.objects.filter(device=document["device"], pool__in=named.values()).exclude(acl_sha256="")
    total = _gpus_by_pool(usable)
    answering = _gpus_by_pool(usable.filter(pk__in=Node.objects.online()))
    online = _gpus_by_pool(usable.filter(pk__in=Node.objects.placeable()))
    return {
        name: Supply(
            needed=needed,
            idle=len(idle[name]),
            online=online[named[name].pk] if name in named else 0,
            resting=answering[named[name].pk] - online[named[name].pk] if name in named else 0,
            total=total[named[name].pk] if name in named else 0,
            gone=name not in named,
        )
        for name, needed in _needed(document).items()
    }


def _gpus_by_pool(nodes: Any) -> dict[int, int]:
    counted = nodes.order_by().values_list("pool").annotate(Sum("gpus"))
    return defaultdict(int, dict(counted))


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
