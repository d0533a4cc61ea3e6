"""How the replicas of a pipeline stage sum their gradients: the bytes on each link, and the seconds.

ring: each part goes round all replicas, summed and then handed on (Atlas §3.1, footnote 1).
hierarchical: reduce-scatter inside each domain, a ring over the domains for each part (a rail), all-gather
    inside (Rail-only, §III-B and §IV-B). A domain has a fast network: a node, or a data centre on a WAN.
sharded: each replica is the parameter server of one part, to which all others send theirs and from which they
    get the sum (DT-FM §3, Eq. 2). All its messages are under way at once; Eq. 2 adds them up, one by one.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

AllReduce = Literal["ring", "hierarchical", "sharded"]
AllReduceChoice = Literal["ring", "hierarchical", "sharded", "auto"]  # auto: the fastest, as predicted
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The n replicas of a stage, in the order of the ring, and the network between every two.

    latency_s, bytes_per_s : (n, n), one way; 0 bytes/s where no link is.
    domain : consecutive replicas that are in one domain; it divides n.
    node : (n,) the node of each, by any number; None: each has a node of its own.
    port_bytes_per_s : (n,) what the node of each sends to other nodes in all, and receives at the same time;
        None: each pair of nodes has its whole rate, whatever else goes on.
    """

    latency_s: Floats
    bytes_per_s: Floats
    domain: int
    node: Ints | None = None
    port_bytes_per_s: Floats | None = None

    def __post_init__(self) -> None:
        if self.domain < 1 or len(self) % self.domain:
            raise ValueError(f"domain {self.domain}: must divide the {len(self)} replicas")

    def rates(self, sends: NDArray[np.bool_]) -> Floats:
        """Bytes/s of each message while all that `sends` says are under way, shape (n, n).

        A port is shared evenly by the messages of its node that go to other nodes.
        """
        if self.port_bytes_per_s is None:
            return self.bytes_per_s
        out, into = self.flows(sends.astype(float))
        with np.errstate(divide="ignore"):
            share = np.minimum((self.port_bytes_per_s / out)[:, None], self.port_bytes_per_s / into)
        return np.where(self._is_away, np.minimum(self.bytes_per_s, share), self.bytes_per_s)

    def flows(self, amount: Floats) -> tuple[Floats, Floats]:
        """What of `amount` (n, n) leaves the node of each replica, and what comes to it, from other nodes."""
        together = ~self._is_away
        away = np.where(together, 0.0, amount)
        out, into = away.sum(axis=1), away.sum(axis=0)
        return (together * out).sum(axis=1), (together * into).sum(axis=1)

    @property
    def _is_away(self) -> NDArray[np.bool_]:
        node = np.arange(len(self)) if self.node is None else self.node
        away: NDArray[np.bool_] = node[:, None] != node
        return away

    def __len__(self) -> int:
        return len(self.latency_s)

    @property
    def is_grid(self) -> bool:
        """Whether there are several domains, of several replicas each."""
        return 1 < self.domain < len(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a data centre whose HB domains have `gpus_per_node` GPUs; the last may have fewer.

    replicas : of all stages that it hosts.  gpus_per_replica : of each.
    """

    gpus: int
    gpus_per_node: int
    replicas: int
    gpus_per_replica: int = 1

    def hold(self, x: int) -> bool:
        """Whether the domains of x replicas of all stages each find room on one node."""
        nodes, rest = divmod(self.gpus, self.gpus_per_node)
        of_domain = x * self.gpus_per_replica
        room = nodes * (self.gpus_per_node // of_domain) + rest // of_domain
        return self.replicas <= room * x


@cache
def domain_size(replicas: int, most: int, nodes: tuple[Nodes, ...] = ()) -> int:
    """x, the replicas of each domain of a grid: the most that divide all `replicas`, at most `most`.

    nodes : of each data centre; every domain of every stage has to find room on one.
    """
    sizes = (x for x in range(min(replicas, most), 0, -1) if replicas % x == 0)
    return next((x for x in sizes if all(each.hold(x) for each in nodes)), 1)


def sent_shares(kind: AllReduce, n: int, x: int = 1) -> Floats:
    """What each replica sends to each other one, as a share of the buffer; shape (n, n), rows send.

    ring: 2(n−1)/n to the next one. hierarchical on x·y = n: 2(x−1)/x inside the domain, 2(y−1)/(xy) on the
    rail. sharded: 2/n to each.
    """
    shares = np.zeros((n, n))
    if kind == "sharded":
        shares[:] = 2 / n
        np.fill_diagonal(shares, 0.0)
        return shares
    x = x if kind == "hierarchical" else 1
    y = n // x
    for i in range(n):
        first = i - i % x
        shares[i, first + (i + 1) % x] += 2 * (x - 1) / x
        shares[i, (i + x) % n] += 2 * (y - 1) / n
    return shares


def all_reduce_s(kind: AllReduce, nbytes: float, replicas: Replicas) -> float:
    """Seconds in which the replicas sum a buffer of so many bytes; infinite if a link is missing.

    With x replicas a domain, y domains, no latency, and one rate inside and one between domains, a ring takes
    2(n−1)/n · D / C_S and the hierarchical sum what `collectives.hierarchical_s` says.
    """
    n = len(replicas)
    if kind == "sharded":
        return 2 * _to_all_s(nbytes / n, replicas)
    x = replicas.domain if kind == "hierarchical" else 1
    y = n // x
    domains, rails = [range(i, i + x) for i in range(0, n, x)], [range(i, n, x) for i in range(x)]
    inside_s = _rings_s(nbytes / x, replicas, domains, 2 * (x - 1))
    return inside_s + _rings_s(nbytes / n, replicas, rails, 2 * (y - 1))


def ring_s(latency_s: Floats, transfer_s: Floats, steps: int | None = None) -> float:
    """Seconds that steps along a ring of n replicas take; 2(n − 1) for a sum (engine/train/ring.py).

    In each step every replica hands a part on and gets one.

    Parameters
    ----------
    latency_s, transfer_s : (n,) one way, and of one part, from each replica to the next one.
    """
    ready = np.zeros(len(latency_s))
    for _ in range(2 * (len(ready) - 1) if steps is None else steps):
        sent = ready + transfer_s
        ready = np.maximum(sent, np.roll(sent + latency_s, 1))
    return float(ready.max())


def _rings_s(nbytes: float, replicas: Replicas, rings: list[range], steps: int) -> float:
    """Seconds of steps along rings of replicas, all at once, each with parts of so many bytes."""
    if not steps:
        return 0.0
    edges = [(np.asarray(ring), np.roll(ring, -1)) for ring in rings]
    sends = np.zeros((len(replicas),) * 2, dtype=np.bool_)
    for here, after in edges:
        sends[here, after] = True
    with np.errstate(divide="ignore"):
        part_s = nbytes / replicas.rates(sends)
    return max(ring_s(replicas.latency_s[here, after], part_s[here, after], steps) for here, after in edges)


def _to_all_s(nbytes: float, replicas: Replicas) -> float:
    """Seconds until each replica has sent so many bytes to each other one: each pair over its own link.

    Pairs of one domain share the network inside of the sender, so their parts go one after another. No node
    is done before all that it sends, and all that it gets, has passed its port.
    """
    n = len(replicas)
    others = ~np.eye(n, dtype=bool)
    domain = np.arange(n) // replicas.domain
    inside = others & (domain[:, None] == domain)
    with np.errstate(divide="ignore"):
        part_s = np.where(others, nbytes / replicas.bytes_per_s, 0.0)
    latency_s = np.where(others, replicas.latency_s, 0.0)
    ports_s = np.where(inside, part_s, 0.0).sum(axis=1) + np.where(inside, latency_s, 0.0).max(axis=1)
    each_s = np.maximum(ports_s, (part_s + latency_s).max(axis=1))
    if replicas.port_bytes_per_s is not None:
        out, into = replicas.flows(others * nbytes)
        each_s = np.maximum(each_s, np.maximum(out, into) / replicas.port_bytes_per_s + latency_s.max(axis=1))
    return float(each_s.max())
