"""The devices of a placement and the network between them, by place: from the inventory, from the catalogue,
or as a document has them; and back to the matrices that `meridian place` reads."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.cluster.gpus import catalogue
from engine.cluster.regions import regions
from engine.errors import InputError
from engine.job.network import hop_network
from engine.plan.placement import scenarios
from engine.plan.placement.request import PlacementRequest
from webapp.inventory.catalogue import position
from webapp.inventory.models import DataCenter, Node, WanLink

Floats = NDArray[np.float64]

# DT-FM §4: devices of one region are 5 ms and 2 Gbps apart.
INSIDE_MS, INSIDE_GBPS = 5.0, 2.0
# A run sends over links only: places without one are neighbours only where nothing else is possible.
SLOWER_UNLINKED = 1e6
AWS = {
    "Oregon": "aws:us-west-2",
    "Virginia": "aws:us-east-1",
    "Ohio": "aws:us-east-2",
    "California": "aws:us-west-1",
    "Tokyo": "aws:ap-northeast-1",
    "Seoul": "aws:ap-northeast-2",
    "Singapore": "aws:ap-southeast-1",
    "Sydney": "aws:ap-southeast-2",
    "London": "aws:eu-west-2",
    "Frankfurt": "aws:eu-central-1",
    "Ireland": "aws:eu-west-1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A region, data centre or machine. Without coordinates it is not on the map."""

    name: str
    latitude: float | None = None
    longitude: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Devices at places.

    places : where devices stand.
    place_of, machine_of, labels : of each device; the machine's index, or None where devices stand alone.
    machine_gbps : between two devices of one machine, whose latency counts as 0.
    latency_ms, bandwidth_gbps : between places, square; on the diagonal between devices of one place, None
        where there is one device only.
    note : how the figures were made, where that needs saying.
    unlinked : two places each that no link joins. Their figures in `latency_ms` and `bandwidth_gbps` are of
        the shortest way over others; `matrices` counts them `SLOWER_UNLINKED` times slower.
    gpu_of_device : [name of the node, GPU] of each device of the inventory; None where a device is a node
        with several. Empty where devices are of no inventory.
    """

    places: list[Place]
    place_of: list[int]
    machine_of: list[int | None]
    machine_gbps: list[float]
    labels: list[str]
    latency_ms: list[list[float | None]]
    bandwidth_gbps: list[list[float | None]]
    note: str = ""
    unlinked: list[tuple[int, int]] = field(default_factory=list)
    gpu_of_device: list[tuple[str, int] | None] = field(default_factory=list)

    @property
    def devices(self) -> int:
        return len(self.place_of)

    def as_dict(self) -> dict[str, Any]:
        """As JSON; `network_from` reads it again."""
        return asdict(self)

    def matrices(self) -> tuple[Floats, Floats]:
        """Latency (ms) and bandwidth (Gbps) of every two devices as the search counts them, (N, N)."""
        at = np.array(self.place_of)
        between_ms, between_gbps = (
            np.array(table, dtype=np.float64) for table in (self.latency_ms, self.bandwidth_gbps)
        )
        for a, b in self.unlinked:
            between_gbps[[a, b], [b, a]] /= SLOWER_UNLINKED
        latency, bandwidth = (table[at[:, None], at[None, :]] for table in (between_ms, between_gbps))
        machine = np.array([-1 - i if m is None else m for i, m in enumerate(self.machine_of)])
        same = machine[:, None] == machine[None, :]
        inside = np.array([math.nan if m is None else self.machine_gbps[m] for m in self.machine_of])
        latency = np.where(same, 0.0, latency)
        bandwidth = np.where(same, np.broadcast_to(inside[:, None], same.shape), bandwidth)
        for matrix in (latency, bandwidth):
            np.fill_diagonal(matrix, 0.0)
        return latency, bandwidth

    def without(self, surplus: int) -> "Network":
        """With `surplus` devices fewer: each the last one of the place that then has the most."""
        remaining = list(range(self.devices))
        for _ in range(surplus):
            here = [self.place_of[device] for device in remaining]
            fullest = max(range(len(self.places)), key=here.count)
            remaining.pop(len(here) - 1 - here[::-1].index(fullest))
        return replace(
            self,
            place_of=[self.place_of[i] for i in remaining],
            machine_of=[self.machine_of[i] for i in remaining],
            labels=[self.labels[i] for i in remaining],
            gpu_of_device=[self.gpu_of_device[i] for i in remaining if self.gpu_of_device],
        )


def network_from(document: dict[str, Any]) -> Network:
    """The inverse of `Network.as_dict`."""
    return Network(**{**document, "places": [Place(**place) for place in document["places"]]})


def of_regions(names: Sequence[str], each: int) -> Network:
    """`each` devices in every named region of DT-FM's ten; figures between regions as they measured them."""
    pairs = scenarios.aws_regions()
    table = [[pairs.get((a, b), (INSIDE_MS, INSIDE_GBPS)) for b in names] for a in names]
    return Network(
        places=[_aws_place(name) for name in names],
        place_of=[i for i in range(len(names)) for _ in range(each)],
        machine_of=[None] * (each * len(names)),
        machine_gbps=[],
        labels=[f"{name} {k + 1}" for name in names for k in range(each)],
        latency_ms=[[pair[0] for pair in row] for row in table],
        bandwidth_gbps=[[pair[1] for pair in row] for row in table],
        note=f"Between devices of one region {INSIDE_MS:g} ms and {INSIDE_GBPS:g} Gbps (DT-FM §4).",
    )


def _aws_place(name: str) -> Place:
    region = regions().get(AWS.get(name, ""))
    if region is None:
        return Place(name=name)
    return Place(name=name, latitude=region.latitude, longitude=region.longitude)


def of_case(name: str) -> Network:
    """The devices of one of DT-FM's five cases."""
    case = scenarios.case(name)
    names = list(dict.fromkeys(case.locations))
    places = [_aws_place(place) for place in names]
    at = [names.index(place) for place in case.locations]
    return _of_matrices(places, at, case.latency_ms, case.bandwidth_gbps)


def of_document(request: PlacementRequest) -> Network:
    """The devices of a document, each a place of its own."""
    places = [Place(name=str(i)) for i in range(request.devices)]
    latency, bandwidth = request.given_latency_ms, request.given_bandwidth_gbps
    return _of_matrices(places, list(range(request.devices)), latency, bandwidth)


def _of_matrices(places: list[Place], at: list[int], latency: Floats, bandwidth: Floats) -> Network:
    members = [[device for device, place in enumerate(at) if place == index] for index in range(len(places))]

    def between(matrix: Floats) -> list[list[float | None]]:
        return [
            [_one(matrix, members[a], members[b], same=a == b) for b in range(len(places))]
            for a in range(len(places))
        ]

    labels = [""] * len(at)
    for index, devices in enumerate(members):
        for number, device in enumerate(devices, start=1):
            labels[device] = places[index].name if len(devices) == 1 else f"{places[index].name} {number}"
    return Network(
        places=places,
        place_of=at,
        machine_of=[None] * len(at),
        machine_gbps=[],
        labels=labels,
        latency_ms=between(latency),
        bandwidth_gbps=between(bandwidth),
    )


def _one(matrix: Floats, a: list[int], b: list[int], *, same: bool) -> float | None:
    """The figure of one pair of devices; all pairs of two places have the same."""
    if same and len(a) < 2:
        return None
    return float(matrix[a[0], b[1] if same else b[0]])


def of_inventory(dcs: Sequence[DataCenter], device: str, most: Mapping[int, int] | None = None) -> Network:
    """GPUs (`device` "gpu") or nodes ("node") of data centres, with the figures of their WAN links.

    Of two data centres without a link of their own the figures are those of the way over linked ones between
    them: latencies add up, the narrowest link is the bandwidth. A run cannot send over it (`unlinked`).

    Parameters
    ----------
    most : devices that are taken of each pool, by its id; of pools that it does not name none. None: all.

    Raises
    ------
    InputError
        There are no nodes, or data centres that no links connect.
    """
    nodes = list(Node.objects.filter(dc__in=dcs).select_related("pool").order_by("dc__name", "name"))
    index = {dc.pk: i for i, dc in enumerate(dcs)}
    latency, bandwidth, unlinked = _between(dcs)
    empty = [dc.name for dc in dcs if not any(node.dc_id == dc.pk for node in nodes)]
    if empty:
        raise InputError("datacenters", ", ".join(empty), "has no nodes: leave it out, or add nodes")
    gpus = catalogue()
    by_gpu = device == "gpu"
    units = [(i, node, k) for i, node in enumerate(nodes) for k in range(node.gpus if by_gpu else 1)]
    if most is not None:
        units = _first(units, most)
    return Network(
        places=[_place(dc) for dc in dcs],
        place_of=[index[node.dc_id] for _, node, _ in units],
        machine_of=[i if by_gpu else None for i, _, _ in units],
        machine_gbps=[gpus[node.pool.gpu_type].link_bytes_per_s * 8 / 1e9 for node in nodes]
        if by_gpu
        else [],
        labels=[f"{node.name} GPU {k}" if by_gpu else node.name for _, node, k in units],
        latency_ms=latency,
        bandwidth_gbps=bandwidth,
        note=_note([f"{dcs[a].name} – {dcs[b].name}" for a, b in unlinked]),
        unlinked=unlinked,
        gpu_of_device=[(node.name, k) if by_gpu or node.gpus == 1 else None for _, node, k in units],
    )


def _note(unlinked: list[str]) -> str:
    if not unlinked:
        return ""
    return (
        f"No link connects {', '.join(unlinked)}. Their figures here are those of the shortest path over "
        f"other links. A run cannot send over it, so the search counts it {SLOWER_UNLINKED:,.0f} times "
        "slower and uses it only if there is no other choice."
    )


def _first(units: list[tuple[int, Node, int]], most: Mapping[int, int]) -> list[tuple[int, Node, int]]:
    """The first `most` of every pool."""
    uses: Counter[int] = Counter()
    devices = []
    for unit in units:
        pool = unit[1].pool_id
        if uses[pool] < most.get(pool, 0):
            uses[pool] += 1
            devices.append(unit)
    return devices


def _place(dc: DataCenter) -> Place:
    latitude, longitude = position(dc) or (None, None)
    return Place(name=dc.name, latitude=latitude, longitude=longitude)


def _between(
    dcs: Sequence[DataCenter],
) -> tuple[list[list[Any]], list[list[Any]], list[tuple[int, int]]]:
    """Latency (ms), bandwidth (Gbps) of every two data centres, and the pairs that have no link."""
    import networkx as nx  # type: ignore[import-untyped]  # half a second: only where asked for

    graph: Any = nx.Graph()
    graph.add_nodes_from(dc.pk for dc in dcs)
    for link in WanLink.objects.filter(a__in=dcs, b__in=dcs):
        wire = hop_network(
            latency_ms=link.latency_ms, cap_gbps=link.bandwidth_gbps, connections=link.connections
        )
        graph.add_edge(link.a_id, link.b_id, ms=link.latency_ms, gbps=wire.rate_bytes_per_s * 8 / 1e9)
    size = len(dcs)
    latency: list[list[Any]] = [[0.0] * size for _ in dcs]
    bandwidth: list[list[Any]] = [[dc.intra_gbps] * size for dc in dcs]
    unlinked = []
    for a in range(size):
        for b in range(a + 1, size):
            path = [dcs[a].pk, dcs[b].pk]
            if not nx.has_path(graph, *path):
                pair = f"{dcs[a].name} – {dcs[b].name}"
                raise InputError(
                    "datacenters", pair, "must be connected by WAN links, directly or over other data centres"
                )
            if not graph.has_edge(*path):
                unlinked.append((a, b))
                path = nx.shortest_path(graph, *path, weight="ms")
            hops = [graph.edges[pair] for pair in itertools.pairwise(path)]
            latency[a][b] = latency[b][a] = sum(hop["ms"] for hop in hops)
            bandwidth[a][b] = bandwidth[b][a] = min(hop["gbps"] for hop in hops)
    return latency, bandwidth, unlinked
