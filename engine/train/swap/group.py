"""Sums over the present workers: torch.distributed (gloo) inside one data centre, else our transport.

A group is made for an epoch, which the tracker counts up whenever workers come or go or a sum fails: nothing
of an older group can be taken for this one's.
"""

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor
from torch.distributed import PrefixStore

from engine.control.rendezvous import RENDEZVOUS_S
from engine.job.all_reduce import BUCKET_BYTES
from engine.job.launch import LaunchSpec, RankAssignment
from engine.train.exchange import finish
from engine.train.mesh import gloo_group, peer_of
from engine.train.ring import Ring
from engine.train.store import RunStore, join_store, serve_store
from engine.train.swap.messages import Address, Member
from engine.transport import Endpoint, Peer, TlsFiles

SUMS_PER_EPOCH = 1 << 32  # numbers kept apart for the sums of one epoch
SWAP_STORE = "swap store"


class Groups:
    """The data with which worker `me` forms groups with others; `address` is where they connect."""

    def __init__(self, spec: LaunchSpec, me: RankAssignment) -> None:
        self._spec, self._me, self._job = spec, me, spec.job
        self._by_rank = {assignment.rank: assignment for assignment in spec.ranks}
        self._store = serve_store(spec, me.rank, socket.create_server((me.host, 0), backlog=128), SWAP_STORE)
        self._meets: RunStore | None = None  # where the group of this epoch met; torch does not hold it
        self._endpoint = (
            self._new_endpoint() if len({dc for (dc,) in self._job.dcs_of_pipeline}) > 1 else None
        )
        self._connected: set[int] = set()
        self._key: tuple[int, tuple[int, ...]] | None = None
        self._group: Any | None = None

    @property
    def address(self) -> Address:
        """For the tracker, which tells the others."""
        return Address(
            store=self._store.port, endpoint=self._endpoint.address if self._endpoint is not None else None
        )

    def sum(self, epoch: int, members: Sequence[Member], flat: Tensor) -> None:
        """Sum a flat tensor in place over the members of an epoch, all of which call this.

        Raises
        ------
        PeerLost, TransportError, RuntimeError
            A member is gone, or not to be reached.
        """
        group = self._of(epoch, members)
        if group is None:
            return
        pieces = flat.split(BUCKET_BYTES // flat.element_size())
        for work in [group.allreduce([piece]) for piece in pieces]:
            finish(work, "a worker")

    def drop(self) -> None:
        """Give the group up: its sum failed, or another member's did."""
        group, self._group, self._key = self._group, None, None
        if group is not None and hasattr(group, "abort"):
            with suppress(RuntimeError):
                group.abort()

    def sent(self) -> dict[str, list[dict[str, int]]]:
        """What this worker has sent to workers in other data centres, as `engine.job.wan` reads it."""
        traffic = self._endpoint.traffic() if self._endpoint else []
        away = [
            ({"to_pipeline": self._by_rank[t.peer].pipeline, "to_stage": 0}, t)
            for t in traffic
            if self._by_rank[t.peer].dc != self._me.dc
        ]
        return {
            "egress": [{**to, **t.as_egress()} for to, t in away],
            "summed": [{**to, "bytes": t.bytes_sent} for to, t in away],
        }

    def close(self) -> None:
        """Close the transport; gloo's sockets and the store go with the process."""
        if self._endpoint is not None:
            self._endpoint.close()

    def _of(self, epoch: int, members: Sequence[Member]) -> Any | None:
        ranks = tuple(member.rank for member in members)
        if self._key != (epoch, ranks):
            self._group = self._formed(epoch, members)
            self._key = epoch, ranks
        return self._group

    def _formed(self, epoch: int, members: Sequence[Member]) -> Any | None:
        ranks = [member.rank for member in members]
        if len(ranks) == 1:
            return None
        if len({self._by_rank[rank].dc for rank in ranks}) == 1:
            return gloo_group(PrefixStore(f"epoch/{epoch}", self._met_at(members[0])), self._me, ranks)
        assert self._endpoint is not None
        ring = sorted(ranks, key=lambda rank: (self._by_rank[rank].dc, rank))
        here = ring.index(self._me.rank)
        self._connect([m for m in members if m.rank in (ring[here - 1], ring[(here + 1) % len(ring)])])
        return Ring(self._endpoint, ring, first=epoch * SUMS_PER_EPOCH)

    def _met_at(self, member: Member) -> RunStore:
        if self._meets is not None:
            self._meets.close()
        address = self._by_rank[member.rank].host, member.store
        self._meets = join_store(self._spec, self._me.rank, address, peer=member.rank, name=SWAP_STORE)
        return self._meets

    def _connect(self, members: Sequence[Member]) -> None:
        assert self._endpoint is not None
        new = [member for member in members if member.rank not in self._connected]
        self._connected.update(member.rank for member in new)
        self._endpoint.connect([self._peer(member) for member in new], timeout_s=RENDEZVOUS_S)

    def _peer(self, member: Member) -> Peer:
        other = self._by_rank[member.rank]
        assert member.endpoint is not None, "in several data centres each worker has one"
        return peer_of(self._job, self._me, other, member.endpoint)

    def _new_endpoint(self) -> Endpoint:
        return Endpoint(
            rank=self._me.rank,
            listen_host=self._me.host,
            secret=self._spec.secret,
            run=self._spec.run,
            generation=self._spec.generation,
            listen_ports=self._spec.ports,
            tls=TlsFiles.of(self._job),
        )
