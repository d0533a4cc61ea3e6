"""Sums over replicas by messages over the transport: along a ring, over domains, by shards.

torch.distributed's groups stay inside a data centre. Every replica ends with the same bits: each part of a
buffer is summed by one replica at a time, and then handed on.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from engine.cluster.all_reduce import AllReduce
from engine.control.errors import PeerLost
from engine.control.silence import WAIT_S
from engine.train.exchange import SUM, Summing, raw
from engine.transport import Endpoint, TransportError


class Sums(ABC):
    """This rank's part of the sums of replicas.

    Parameters
    ----------
    ranks : of all replicas, in the order of the ring, the same on each.
    first : number of the first sum, the same on each, past those of replicas that were here before.

    Attributes
    ----------
    sent_bytes : of its messages so far, headers not counted, by the rank that they went to.
    """

    def __init__(self, endpoint: Endpoint, ranks: Sequence[int], first: int = 0) -> None:
        self._endpoint, self._ranks = endpoint, tuple(ranks)
        self._me = self._ranks.index(endpoint.rank)
        self.sent_bytes: Counter[int] = Counter()
        self._count = first
        self._thread = ThreadPoolExecutor(1, "sums")

    def allreduce(self, tensors: list[Tensor]) -> Summing:
        """Begin to sum a flat tensor in place; sums are taken one after the other."""
        (tensor,) = tensors
        number, self._count = self._count, self._count + 1
        return Summing(self._thread.submit(self._sum, number, tensor))

    @abstractmethod
    def _sum(self, number: int, tensor: Tensor) -> None:
        """Sum a flat tensor in place; `number` tells this sum from others."""

    def _exchange(self, tag: tuple[int, ...], sends: dict[int, Tensor], receives: dict[int, Tensor]) -> None:
        """Send tensors to ranks and receive others, each by its rank, all under way at once."""
        endpoint = self._endpoint
        try:
            posted = [
                endpoint.post_receive(rank, tag, into=raw(into))
                for rank, into in receives.items()
                if into.numel()
            ]
            sent = [endpoint.send(rank, tag, raw(part)) for rank, part in sends.items() if part.numel()]
            for handle in (*posted, *sent):
                handle.wait(timeout_s=WAIT_S)
        except (TransportError, TimeoutError) as error:
            raise PeerLost(str(error)) from None
        for rank, part in sends.items():
            self.sent_bytes[rank] += part.nbytes

    def _reduce_scatter(self, ring: Sequence[int], tensor: Tensor, number: int, step: int) -> Tensor:
        """Sum a tensor along a ring of ranks; returns the part whose sum this rank then has."""
        for hop in range(len(ring) - 1):
            takes = self._hop(ring, tensor, (SUM, number, step + hop), hop, adds=True)
        return takes

    def _all_gather(self, ring: Sequence[int], tensor: Tensor, number: int, step: int) -> None:
        """Hand on the parts whose sums `_reduce_scatter` left, until each rank has all."""
        for hop in range(len(ring) - 1, 2 * (len(ring) - 1)):
            self._hop(ring, tensor, (SUM, number, step + hop), hop, adds=False)

    def _hop(
        self, ring: Sequence[int], tensor: Tensor, tag: tuple[int, ...], hop: int, *, adds: bool
    ) -> Tensor:
        n, me = len(ring), ring.index(self._endpoint.rank)
        parts = tensor.tensor_split(n)
        gives, takes = parts[(me - hop) % n], parts[(me - hop - 1) % n]
        into = torch.empty_like(takes) if adds else takes
        self._exchange(tag, {ring[(me + 1) % n]: gives}, {ring[me - 1]: into})
        if adds:
            takes.add_(into)
        return takes


class Ring(Sums):
    """A ring of all replicas."""

    def _sum(self, number: int, tensor: Tensor) -> None:
        self._reduce_scatter(self._ranks, tensor, number, 0)
        self._all_gather(self._ranks, tensor, number, 0)


class Hierarchical(Sums):
    """Reduce-scatter inside each domain, a ring over the domains for each part, all-gather inside.

    Rail-only, §III-B and §IV-B: a part stays on its rail, the ring of the replicas with one number in their
    domains.

    Parameters
    ----------
    domain : replicas of one domain, consecutive in `ranks`.
    """

    def __init__(self, endpoint: Endpoint, ranks: Sequence[int], domain: int) -> None:
        super().__init__(endpoint, ranks)
        number, inside = divmod(self._me, domain)
        self._domain = self._ranks[number * domain : (number + 1) * domain]
        self._rail = self._ranks[inside::domain]

    def _sum(self, number: int, tensor: Tensor) -> None:
        on_rail = 2 * (len(self._domain) - 1)  # steps of the rails are numbered after those of the domains
        part = self._reduce_scatter(self._domain, tensor, number, 0)
        self._reduce_scatter(self._rail, part, number, on_rail)
        self._all_gather(self._rail, part, number, on_rail)
        self._all_gather(self._domain, tensor, number, 0)


class Sharded(Sums):
    """Each replica is the parameter server of one part: all send it theirs, and get the sum (DT-FM, Eq. 2).

    A part is summed in the order of the ranks, so the bits do not depend on which message came first.
    """

    def _sum(self, number: int, tensor: Tensor) -> None:
        parts = dict(zip(self._ranks, tensor.tensor_split(len(self._ranks)), strict=True))
        own = parts.pop(self._endpoint.rank)
        theirs = {rank: torch.empty_like(own) for rank in parts}
        self._exchange((SUM, number, 0), parts, theirs)
        in_order = [own.clone() if rank not in theirs else theirs[rank] for rank in self._ranks]
        own.copy_(in_order[0])
        for part in in_order[1:]:
            own.add_(part)
        self._exchange((SUM, number, 1), dict.fromkeys(parts, own), parts)


def sums_of(kind: AllReduce, endpoint: Endpoint, ranks: Sequence[int], domain: int) -> Sums:
    """What sums over these replicas in the way of `kind`; `domain` of them are in one domain."""
    if kind == "hierarchical":
        return Hierarchical(endpoint, ranks, domain)
    return (Sharded if kind == "sharded" else Ring)(endpoint, ranks)
