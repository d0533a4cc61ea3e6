"""The GPUs that jobs ask for: how many there are in each pool, and which of them are idle.

A `GpuInventory` is read in four queries, whatever the number of jobs that it is read for. So the reconciler
looks through the whole queue with one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.job.locations import Document, device_of, gpus_needed, tp_of
from webapp.inventory.models import GpuPool, Node, NodeState
from webapp.inventory.selectors import several
from webapp.inventory.selectors.pools import pools_of_teams
from webapp.jobs.models import RANK_OVER, RankState

Gpu = tuple[Node, int]
GpuOfRank = Sequence[Sequence[Any]]  # [name of the node, GPU] of each rank of a job that is placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a job cannot start now.

    for_good : waiting will not help.
    needs_action : it goes on only when somebody does something: GPUs are too few, silent or not enrolled.
    """

    text: str
    for_good: bool = False
    needs_action: bool = False

    def said(self, ahead: int) -> str:
        """With how many runs of the team stand before it in the queue."""
        return f"{self.text}; {ahead} ahead in the queue" if ahead else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """GPUs of one pool for one job: how many it needs, and what there is of its device.

    together : GPUs that compute a stage, on one node (tensor parallelism): those of a node count that this
        divides.
    """

    needed: int
    idle: int
    online: int  # idle or busy, on nodes that may be given work
    total: int  # of the device, on nodes that answer or not
    gone: bool = False
    resting: int = 0  # on nodes that answer, but drain or are of another version
    unjoined: Sequence[str] = ()  # nodes of the device that have not joined
    others: int = 0  # GPUs of the pool of another device
    together: int = 1

    def shortage(self, name: str) -> Shortage | None:
        """Why the pool called `name` cannot give what is needed; None where it can."""
        if self.gone:
            return Shortage(text=f"{name} no longer has a GPU pool", for_good=True)
        if self.idle >= self.needed:
            return None
        gpus = f"{self.needed} GPU" if self.needed == 1 else f"{self.needed} GPUs"
        beside = f", {self.together} on one node for each stage" if self.together > 1 else ""
        text = f"Waits for {gpus} in {name}{beside}, {self.idle} {'is' if self.idle == 1 else 'are'} idle"
        if self.total < self.needed:
            why = [f"there are {self.total} in total"]
            why += [f"{several(self.unjoined)} must join first"] if self.unjoined else []
            why += [f"{self.others} of another device do not count"] if self.others else []
            return Shortage(text=f"{text}: {', '.join(why)}", needs_action=True)
        if self.online < self.needed:
            away = self.total - self.online - self.resting
            why = [f"{away} do not answer"] if away else []
            why += [f"{self.resting} on nodes that drain or run another version"] if self.resting else []
            return Shortage(text=f"{text}: {', '.join(why)}", needs_action=True)
        return Shortage(text=text)


class GpuInventory:
    """Pools, nodes and idle GPUs that the jobs of some documents may use, as they were when it was made.

    Parameters
    ----------
    jobs : (id of the team, document) of each.
    """

    def __init__(self, jobs: Iterable[tuple[int, Document]]) -> None:
        names = ((team, dc["name"]) for team, document in jobs for dc in document["datacenters"])
        self._pools = pools_of_teams(names)
        self._nodes: dict[tuple[int, str], list[Node]] = defaultdict(list)  # by pool and device
        self._unjoined: dict[tuple[int, str], list[str]] = defaultdict(list)
        nodes = Node.objects.filter(pool__in={pool.pk for pool in self._pools.values()})
        # Nodes of a pool share their data centre: it is read once, not with each of a thousand.
        light = nodes.prefetch_related("dc").defer("seen_ranks", "seen_hardware")
        for node in light.order_by("name"):
            if node.is_enrolled:
                self._nodes[node.pool_id, node.device].append(node)
            else:
                self._unjoined[node.pool_id, node.device].append(node.name)
        busy = RankState.objects.filter(node__in=nodes.order_by().values("pk")).exclude(state__in=RANK_OVER)
        self._held = set(busy.order_by().values_list("node_id", "gpu"))

    def pools(self, team: int, document: Document) -> dict[str, GpuPool]:
        """The pools that the document names, by name; what is gone is left out."""
        names = [dc["name"] for dc in document["datacenters"]]
        return {name: self._pools[team, name] for name in names if (team, name) in self._pools}

    def idle(self, team: int, document: Document) -> dict[str, list[Gpu]]:
        """Idle GPUs of the job's device on nodes that may be given work, by the name of their pool.

        Those that compute a stage together follow each other, on one node; others of the node are left out.
        """
        device, together = device_of(document), tp_of(document)
        return {name: self._idle(pool, device, together) for name, pool in self.pools(team, document).items()}

    def supply(self, team: int, document: Document) -> dict[str, Supply]:
        """What each pool of the job can give it, by name."""
        named = self.pools(team, document)
        return {
            name: self._supply(named.get(name), device_of(document), needed, tp_of(document))
            for name, needed in gpus_needed(document).items()
        }

    def shortage(self, team: int, document: Document, gpu_of_rank: GpuOfRank = ()) -> Shortage | None:
        """What is said first: what will not come, then what needs somebody, then what only takes time.

        gpu_of_rank : of a job that is placed: those GPUs it waits for, and no others.
        """
        supply = self.supply(team, document).items()
        shortages = [shortage for name, pool in supply if (shortage := pool.shortage(name))]
        if gpu_of_rank and (lack := self.shortage_of(team, document, gpu_of_rank)):
            shortages.append(lack)
        return max(shortages, key=lambda each: (each.for_good, each.needs_action), default=None)

    def placed_gpus(self, team: int, document: Document, gpu_of_rank: GpuOfRank) -> list[Gpu]:
        """The GPU of each rank of a placed job that lacks nothing."""
        nodes = self._named(team, document)
        return [(nodes[name], gpu) for name, gpu in gpu_of_rank]

    def _named(self, team: int, document: Document) -> dict[str, Node]:
        pools = self.pools(team, document).values()
        return {node.name: node for pool in pools for node in self._nodes[pool.pk, device_of(document)]}

    def shortage_of(self, team: int, document: Document, gpu_of_rank: GpuOfRank) -> Shortage | None:
        """Why these very GPUs cannot be had now."""
        nodes = self._named(team, document)
        missing = [name for name, gpu in gpu_of_rank if name not in nodes or gpu >= nodes[name].gpus]
        if missing:
            text = f"offers no such {document['device']} GPU in the pools of the placement"
            return Shortage(text=f"Waits for {several(missing)}: the inventory {text}", needs_action=True)
        away = [name for name, _ in gpu_of_rank if not nodes[name].is_placeable]
        if away:
            waits = f"Waits for {several(away)}, where it is placed"
            return Shortage(text=f"{waits}: silent, draining or of another version", needs_action=True)
        busy = [f"{name} GPU {gpu}" for name, gpu in gpu_of_rank if (nodes[name].pk, gpu) in self._held]
        return Shortage(text=f"Waits for {several(busy)}, where it is placed: busy") if busy else None

    def _idle(self, pool: GpuPool, device: str, together: int) -> list[Gpu]:
        gpus: list[Gpu] = []
        for node in self._nodes[pool.pk, device]:
            if node.is_placeable:
                free = [gpu for gpu in range(node.gpus) if (node.pk, gpu) not in self._held]
                gpus += [(node, gpu) for gpu in _side_by_side(free, together)]
        return gpus

    def _supply(self, pool: GpuPool | None, device: str, needed: int, together: int) -> Supply:
        if pool is None:
            return Supply(needed=needed, idle=0, online=0, total=0, gone=True)
        nodes = self._nodes[pool.pk, device]
        online = sum(_whole(node.gpus, together) for node in nodes if node.is_placeable)
        answering = sum(_whole(node.gpus, together) for node in nodes if node.state == NodeState.ONLINE)
        return Supply(
            needed=needed,
            idle=len(self._idle(pool, device, together)),
            online=online,
            resting=answering - online,
            total=sum(_whole(node.gpus, together) for node in nodes),
            unjoined=self._unjoined[pool.pk, device],
            others=sum(
                node.gpus
                for (pk, other), rest in self._nodes.items()
                if pk == pool.pk and other != device
                for node in rest
            ),
            together=together,
        )


def _whole(gpus: int, together: int) -> int:
    """How many of the GPUs of a node can be used where each stage takes so many of them."""
    return gpus // together * together


def _side_by_side(free: list[int], together: int) -> list[int]:
    """GPUs of a node in groups of so many, as far as they go: first those that are joined most closely, which
    machines number one after another from a multiple of the group's size; then what is left."""
    in_group = Counter(gpu // together for gpu in free)
    ordered = sorted(free, key=lambda gpu: (in_group[gpu // together] < together, gpu))
    return ordered[: _whole(len(free), together)]
