"""The connections of one rank: rendezvous, NCCL or gloo in its DC, transport to adjacent ranks."""

import json
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.distributed import PrefixStore, ProcessGroupGloo

from engine.cluster.all_reduce import AllReduce, sent_shares
from engine.control.rendezvous import RENDEZVOUS_S
from engine.control.silence import WAIT_S
from engine.job.backends import Backend, backend_of, hops_of
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.stage_ring import stage_ring
from engine.nn.device import Device
from engine.nn.lane import CudaLane
from engine.schedule.ir import Schedule
from engine.train.direct import RECEIVER, SENDER, DirectLink
from engine.train.exchange import raw
from engine.train.recovery.cuts import Cuts
from engine.train.ring import Sums, sums_of
from engine.train.staging import StagedSums, sums_for_one
from engine.train.store import RunStore, join_store, serve_store
from engine.train.wiring import ends_of, hops_at, neighbours
from engine.transport import Address, Endpoint, LinkShape, LinkTraffic, Peer, TlsFiles


class Mesh:
    """The connections of rank `me`.

    Parameters
    ----------
    device : where this rank's gradients are.
    listen_fd : the store's socket where this rank hosts it.
    also : ranks to connect to beyond those that the schedule needs.
    cuts : drills, in which the network between two data centres is cut.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        me: RankAssignment,
        schedule: Schedule,
        device: Device,
        *,
        port: int,
        listen_fd: int | None,
        also: Sequence[int] = (),
        cuts: Cuts | None = None,
    ) -> None:
        self._device = device
        self.spec, self.me, self.job, self._schedule = spec, me, spec.job, schedule
        self._also, self._cuts = also, cuts
        self._neighbours = neighbours(schedule, me.stage)
        if listen_fd is not None:
            serve_store(spec, me.rank, socket.socket(fileno=listen_fd))
        self.store = open_store(spec, port, me.rank)
        self._by_place = {(a.pipeline, a.stage): a for a in spec.ranks if a.leads}
        local = sorted(a.rank for a in spec.ranks if a.dc == me.dc and a.leads)
        self._ring = stage_ring(spec, me.stage, me.shard)
        ring = list(self._ring.ranks)
        self._members = {rank: member for member, rank in enumerate(local)}
        joins = me.leads and self._backend({me.dc}) == "gloo" and self._has_lan_neighbour()
        self.dc_group = self._gloo(f"dc/{me.dc}", local) if joins else None
        self.endpoint = self._connected_endpoint()
        self.direct = self._direct_links() if me.leads else {}
        self._over_transport: list[Sums] = []
        self.replicas = self._sums(ring, f"stage/{me.stage}/{me.shard}", self._ring.kind)
        # Of those, the ones in this data centre, which may share the optimizer's state.
        near = [replica for replica in ring if replica.dc == me.dc]
        self.near = tuple(replica.rank for replica in sorted(near, key=lambda a: a.pipeline))
        self.near_replicas = self._near(ring)
        # Where the ends of the model share a matrix, and this rank has one of them: sums over the two.
        self.ends = self._sums(self._ends(), f"ends/{me.pipeline}")

    def above(self) -> int | None:
        """Rank of the previous stage of this pipeline."""
        return self.at(self.me.pipeline, self.me.stage - 1).rank if self.me.stage else None

    def below(self) -> int | None:
        """Rank of the next stage of this pipeline."""
        return (
            self.at(self.me.pipeline, self.me.stage + 1).rank
            if self.me.stage < self.job.cell.stages - 1
            else None
        )

    def at(self, pipeline: int, stage: int) -> RankAssignment:
        """The rank of a stage of a pipeline; the lead if several ranks share it."""
        return self._by_place[pipeline, stage]

    def member(self, rank: int) -> int:
        """The number of a rank of this data centre in its group."""
        return self._members[rank]

    def barrier(self, name: str) -> None:
        """Return once all ranks of the run have come here."""
        count = self.store.add(f"{name}/count", 1)
        if count == len(self.spec.ranks):
            self.store.set(f"{name}/all", "1")
        self.store.wait([f"{name}/all"], timedelta(seconds=WAIT_S))

    def share(self, key: str, value: Any) -> None:
        """Publish a JSON value of this rank."""
        self.store.set(f"{key}/{self.me.rank}", json.dumps(value))

    def shared(self, key: str) -> list[Any]:
        """The values that all ranks published, by rank."""
        return [
            json.loads(self.store.get(f"{key}/{a.rank}"))
            for a in sorted(self.spec.ranks, key=lambda a: a.rank)
        ]

    def peers(self) -> list[str]:
        """The ranks that this one sends messages to, in words."""
        return [f"rank {t.peer} ({t.link})" for t in sorted(self._traffic(), key=lambda t: t.peer)]

    def egress(self) -> list[dict[str, Any]]:
        """Bytes that this rank has sent to other data centres, by receiver, with headers and repeats.

        With the connections and the latency of each, in milliseconds one way; None before it was measured.
        """
        away = self._in_other_dcs()
        return [{**away[t.peer], **t.as_egress()} for t in self._traffic() if t.peer in away]

    def summed(self) -> list[dict[str, int]]:
        """Bytes of gradients that this rank has sent, to be summed, to ranks in another data centre."""
        away = self._in_other_dcs()
        sent = (item for sums in self._over_transport for item in sums.sent_bytes.items())
        return [{**away[rank], "bytes": nbytes} for rank, nbytes in sent if rank in away]

    def hops(self) -> list[dict[str, Any]]:
        """The hops of all pipelines, each with what carries its messages."""
        nccl = torch.distributed.is_nccl_available()
        return hops_of(self.job, self._schedule.traversal, nccl=nccl)

    def _traffic(self) -> list[LinkTraffic]:
        return [] if self.endpoint is None else self.endpoint.traffic()

    def _in_other_dcs(self) -> dict[int, dict[str, int]]:
        """Pipeline and stage of each rank in another data centre."""
        others = [a for a in self.spec.ranks if a.dc != self.me.dc]
        return {a.rank: {"to_pipeline": a.pipeline, "to_stage": a.stage} for a in others}

    def disturb(self) -> None:
        """Make the emulated links slower that the launch spec says, for what this rank sends."""
        for other in self._peer_assignments() if self.endpoint is not None else ():
            hop = self._neighbours.get(other.stage, min(other.stage, self.me.stage))
            factor, delay = self.spec.disturbance.of_link(self.me.dc, other.dc)
            factor *= self.spec.disturbance.of_hop(hop)
            if other.dc != self.me.dc and (factor, delay) != (1.0, 1.0):
                assert self.endpoint is not None
                self.endpoint.slow(other.rank, factor, delay=delay)

    def close(self) -> None:
        """Close the transport; gloo's sockets go with the process."""
        if self.endpoint is not None:
            self.endpoint.close()

    def _has_lan_neighbour(self) -> bool:
        # All ranks of a DC must answer alike: whether any two neighbouring stages are in it.
        return any(
            dcs[stage] == dcs[other] == self.me.dc
            for dcs in self.job.dcs_of_pipeline
            for stage in range(self.job.cell.stages)
            for other in neighbours(self._schedule, stage)
        )

    def _ends(self) -> list[RankAssignment]:
        """The ranks of this pipeline whose ends of the model share a matrix; none where this is neither."""
        positions = self._schedule.traversal.positions
        stages = sorted({positions[0][0], positions[-1][0]})
        if not self.job.model.shape.has.tied or self.me.stage not in stages:
            return []
        return [self.at(self.me.pipeline, stage) for stage in stages]

    def _sums(self, ring: list[RankAssignment], name: str, kind: AllReduce = "ring") -> Any:
        """What sums over the ranks of a ring; None where there are no others."""
        if len(ring) < 2:
            return None
        ranks = [replica.rank for replica in ring]
        backend = self._backend({replica.dc for replica in ring})
        if kind != "ring":
            backend = "transport"  # gloo and NCCL know no domains
        if backend == "nccl":
            number = torch.zeros(1, device=self._device.name)
            return self._nccl(name, ranks, lambda group: group.allreduce([number]))
        if backend == "gloo":
            group = self._gloo(name, ranks)
        else:
            assert self.endpoint is not None
            group = sums_of(kind, self.endpoint, ranks, self._ring.domain)
            self._over_transport.append(group)
        return StagedSums(group, self._device) if self._device.apart else group

    def _backend(self, dcs: set[int]) -> Backend:
        return backend_of(self.job, dcs, nccl=torch.distributed.is_nccl_available())

    def _direct_links(self) -> dict[int, DirectLink]:
        """Those of this rank's links that stay on GPUs, by number.

        All ranks connect theirs in the order of the numbers, so none waits for another in a circle.
        """
        pipeline, stages = self.me.pipeline, self.job.cell.stages
        hops = hops_at(self._schedule, self.me.stage)
        links = [2 * hop + direction for hop in hops for direction in (0, 1)]
        ends = {link: [self.at(pipeline, stage) for stage in ends_of(link, stages)] for link in links}
        return {
            link: DirectLink(group=self._pair(link, sides), lane=CudaLane(self._device.name))
            for link, sides in ends.items()
            if self._backend({side.dc for side in sides}) == "nccl"
        }

    def _pair(self, link: int, sides: list[RankAssignment]) -> Any:
        """The NCCL group of the two ends of a link."""
        byte = torch.zeros(1, dtype=torch.uint8, device=self._device.name)

        def first(group: Any) -> Any:
            if sides[SENDER].rank == self.me.rank:
                return group.send([byte], RECEIVER, 0)
            return group.recv([byte], SENDER, 0)

        return self._nccl(f"hop/{self.me.pipeline}/{link}", [side.rank for side in sides], first, urgent=True)

    def _nccl(self, name: str, ranks: list[int], first: Callable[[Any], Any], *, urgent: bool = False) -> Any:
        """An NCCL group that has connected by its `first` operation: not in the middle of an iteration."""
        group = nccl_group(PrefixStore(name, self.store), self.me, ranks, urgent=urgent)
        first(group).wait()
        self._device.settle()
        return group

    def _near(self, ring: list[RankAssignment]) -> Any:
        """What joins the replicas of a data centre that share the optimizer's state; None without ZeRO-1."""
        if not self.job.cell.zero:
            return None
        if len(self.near) == len(ring) and sums_for_one(self.replicas):
            return self.replicas
        by_rank = {replica.rank: replica for replica in ring}
        near = [by_rank[rank] for rank in self.near]
        return self._sums(near, f"near/{self.me.stage}/{self.me.dc}")

    def _replicas_near(self) -> list[RankAssignment]:
        """Replicas that this rank exchanges gradients with over the transport; none of a ring in one DC."""
        ring, kind = self._ring.ranks, self._ring.kind
        if kind == "ring" and len({a.dc for a in ring}) == 1:
            return []
        shares = sent_shares(kind, len(ring), self._ring.domain)
        here = [a.pipeline for a in ring].index(self.me.pipeline)
        near = (ring[other].pipeline for other in (shares[here] + shares[:, here]).nonzero()[0])
        return [self.at(pipeline, self.me.stage) for pipeline in sorted(near)]

    def _gloo(self, name: str, ranks: list[int]) -> Any:
        return gloo_group(PrefixStore(name, self.store), self.me, ranks)

    def _connected_endpoint(self) -> Endpoint | None:
        others = self._peer_assignments()
        if not others or not self.me.leads:
            return None
        endpoint = Endpoint(
            rank=self.me.rank,
            listen_host=self.me.host,
            secret=self.spec.secret,
            run=f"{self.spec.run}, attempt {self.spec.attempt}",
            generation=self.spec.generation,
            listen_ports=self.spec.ports,
            cut=self._cut,
            tls=TlsFiles.of(self.job),
            new_buffer=self._new_buffer if self._device.apart else None,
        )
        self.share("address", list(endpoint.address))
        endpoint.connect([self._peer(other) for other in others], timeout_s=RENDEZVOUS_S)
        return endpoint

    def _new_buffer(self, nbytes: int) -> memoryview:
        """Memory for a message from which the device loads fast."""
        return raw(self._device.host_buffer(nbytes, torch.uint8))

    def _peer_assignments(self) -> list[RankAssignment]:
        me, job = self.me, self.job
        stages = {*self._neighbours, *(s for s in (me.stage - 1, me.stage + 1) if 0 <= s < job.cell.stages)}
        others = [self.at(me.pipeline, stage) for stage in sorted(stages)]
        crosses = any(job.network(hop, me.pipeline) is not None for hop in self._neighbours.values())
        if crosses and self._schedule.sharing == "temporal":
            others += [self.at(p, me.stage) for p in job.cell.cell_of(me.pipeline) if p != me.pipeline]
        others += self._replicas_near()
        also = {*self._also, *(end.rank for end in self._ends() if end.rank != me.rank)}
        others += [a for a in self.spec.ranks if a.rank in also]
        return list({other.rank: other for other in others}.values())

    def _cut(self, rank: int) -> bool:
        """Whether the network to a rank is cut now."""
        other = next(a for a in self.spec.ranks if a.rank == rank)
        return self._cuts is not None and self._cuts.now(self.me.dc_name, other.dc_name)

    def _peer(self, other: RankAssignment) -> Peer:
        host, port = json.loads(self.store.get(f"address/{other.rank}"))
        return peer_of(self.job, self.me, other, (host, port))


def nccl_group(store: Any, me: RankAssignment, ranks: list[int], *, urgent: bool) -> Any:
    """An NCCL group of `ranks`, which meet at `store`; all of them call this. It has never run.

    urgent : its kernels come before those of other streams.
    """
    from torch.distributed import ProcessGroupNCCL  # torch for CPUs has none

    options = ProcessGroupNCCL.Options(is_high_priority_stream=urgent)
    options._timeout = timedelta(seconds=WAIT_S)
    return ProcessGroupNCCL(store, ranks.index(me.rank), len(ranks), options)


def gloo_group(store: Any, me: RankAssignment, ranks: list[int]) -> Any:
    """A gloo group of `ranks`, which meet at `store`; all of them call this."""
    # torch keeps a record of the latest 2,000 collectives, 2 kB each; ours are in the spans already.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=me.host)]
    options._timeout = timedelta(seconds=WAIT_S)
    options._threads = 1
    return ProcessGroupGloo(store, ranks.index(me.rank), len(ranks), options)


def peer_of(job: TrainJob, me: RankAssignment, other: RankAssignment, address: Address) -> Peer:
    """Another rank of a run as the endpoint of `me` knows it: in the same data centre, or over the WAN."""
    if other.dc == me.dc:
        return Peer(rank=other.rank, address=address, link=f"LAN of {me.dc_name}")
    network = job.between(me.dc, other.dc)
    assert network is not None, "every two data centres whose ranks talk have a link"
    # Between two processes of one machine there is no WAN but an emulated one.
    emulated = job.device.kind == "emulated" or other.host == me.host
    shape = LinkShape(
        one_way_delay_s=network.latency_ms / 1e3,
        cap_bytes_per_s=network.cap_bytes_per_s,
        window_bytes=network.window_bytes,
        connections=network.connections,
    )
    return Peer(
        rank=other.rank,
        address=address,
        link=f"{me.dc_name} → {other.dc_name}",
        shape=shape if emulated else None,
        connections="auto" if network.auto else network.connections,
        cap_bytes_per_s=network.cap_bytes_per_s,
    )


def open_store(spec: LaunchSpec, port: int, me: int) -> RunStore:
    """The rendezvous store of a run, for the process that is `me` in it. Raises PeerLost."""
    return join_store(spec, me, (spec.rendezvous_host, port), peer=spec.first_rank)
