"""Data centres, the WAN links between them, and the cluster of both. SI units."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.cluster import tcp
from engine.cluster.fabric import ANY_TO_ANY, FabricKind
from engine.cluster.gpus import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCenter:
    """GPUs of one type at one location.

    intra_bytes_per_s, intra_latency_s : of a node inside the data centre, per direction, and one way; on
        rails of a GPU.
    fabric, hb_domain : the network, and the GPUs that each HB domain joins; None without rails.
    """

    name: str
    gpus: int
    gpu: Gpu
    price_per_gpu_hour: float
    intra_bytes_per_s: float
    intra_latency_s: float = 0.0
    fabric: FabricKind = ANY_TO_ANY
    hb_domain: int | None = None
    latitude: float | None = None
    longitude: float | None = None

    def __post_init__(self) -> None:
        if self.gpus < 0:
            raise ValueError(f"{self.name}: {self.gpus} GPUs: must be 0 or more")
        if self.intra_bytes_per_s <= 0:
            raise ValueError(
                f"{self.name}: bandwidth {self.intra_bytes_per_s} bytes/s: must be greater than 0"
            )
        if (self.fabric == ANY_TO_ANY) != (self.hb_domain is None):
            raise ValueError(
                f"{self.name}: HB domain {self.hb_domain} on {self.fabric}: rails have one, others none"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WanLink:
    """The WAN between two data centres, as one pair of nodes sees it. Both directions are alike.

    latency_s : one way.
    cap_bytes_per_s : most that one node pair gets, per direction, over any number of connections.
    connections : TCP connections per node pair; None for as many as fill the cap.
    """

    ends: frozenset[str]
    latency_s: float
    cap_bytes_per_s: float
    connections: int | None = None
    egress_price_per_gb: float = 0.0

    def __post_init__(self) -> None:
        if len(self.ends) != 2:
            raise ValueError(f"link between {sorted(self.ends)}: must join two different data centres")

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth of one node pair per direction, in bytes/s."""
        return tcp.bandwidth(self.latency_s, self.cap_bytes_per_s, self.connections)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Data centres in the order in which they were listed, and links by the pair of names that they join."""

    datacenters: tuple[DataCenter, ...]
    links: Mapping[frozenset[str], WanLink]

    def datacenter(self, name: str) -> DataCenter:
        """The data centre called `name`. Raises KeyError if there is none."""
        for dc in self.datacenters:
            if dc.name == name:
                return dc
        raise KeyError(name)

    def link(self, a: str, b: str) -> WanLink | None:
        """The link between two data centres, or None if they have none."""
        return self.links.get(frozenset((a, b)))
