"""Everything that connects one rank to the others: rendezvous, gloo in its DC, transport to neighbours."""

import functools
import json
import os
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from engine.runtime.exchange import (
    ACTIVATION,
    GRADIENT,
    STARTED,
    WAIT_S,
    Incoming,
    LanIncoming,
    LanOutgoing,
    Outgoing,
    PeerLost,
    SharedIncoming,
    SharedOutgoing,
    WanIncoming,
    WanOutgoing,
    lost_is_peer_lost,
)
from engine.runtime.executor import Neighbour
from engine.runtime.launch import LaunchSpec, RankAssignment
from engine.runtime.recorder import Crossing
from engine.runtime.transport import Endpoint, LinkShape, Peer, SharedReceiver, SharedSender
from engine.schedule.ir import Schedule

RENDEZVOUS_S = 120.0


class Mesh:
    """The connections of rank `me`; `listen_fd` is the store's socket where this rank hosts it."""

    def __init__(
        self, spec: LaunchSpec, me: RankAssignment, schedule: Schedule, *, port: int, listen_fd: int | None
    ) -> None:
        self.spec, self.me, self.job, self._schedule = spec, me, spec.job, schedule
        self.store = _store(spec, port, listen_fd)
        self._by_place = {(a.pipeline, a.stage): a for a in spec.ranks}
        local = sorted(a.rank for a in spec.ranks if a.dc == me.dc)
        replicas = [self._at(pipeline, me.stage).rank for pipeline in range(self.job.pipelines)]
        self._members = {rank: member for member, rank in enumerate(local)}
        self._dc_group = self._gloo(f"dc/{me.dc}", local) if self._has_lan_neighbour() else None
        self.replicas = self._gloo(f"stage/{me.stage}", replicas) if len(replicas) > 1 else None
        self.endpoint = self._connected_endpoint()

    def above(self) -> int | None:
        """Rank of the previous stage of this pipeline."""
        return self._at(self.me.pipeline, self.me.stage - 1).rank if self.me.stage else None

    def below(self) -> int | None:
        """Rank of the next stage of this pipeline."""
        return (
            self._at(self.me.pipeline, self.me.stage + 1).rank
            if self.me.stage < self.job.stages - 1
            else None
        )

    def upstream(self) -> Neighbour | None:
        """The way to the previous stage."""
        above = self.above()
        if above is None:
            return None
        gated = self._schedule.recompute_gate == "jit" and self.job.recomputes
        return Neighbour(
            incoming=self._incoming(self.me.stage - 1, above, ACTIVATION),
            outgoing=self._outgoing(self.me.stage - 1, above, GRADIENT),
            crossing=self._crossing(self.me.stage - 1, "gradient"),
            started=functools.partial(self._tell_started, above) if gated else None,
        )

    def downstream(self) -> Neighbour | None:
        """The way to the next stage."""
        below = self.below()
        if below is None:
            return None
        gated = self._schedule.recompute_gate == "jit" and self.job.recomputes
        gate = _Gate(self.endpoint, below)
        return Neighbour(
            incoming=self._incoming(self.me.stage, below, GRADIENT),
            outgoing=self._outgoing(self.me.stage, below, ACTIVATION),
            crossing=self._crossing(self.me.stage, "activation"),
            post_started=gate.post if gated else None, wait_started=gate.wait if gated else None,
        )  # fmt: skip

    def barrier(self, name: str) -> None:
        """Return once all ranks of the run have come here."""
        count = self.store.add(f"{name}/count", 1)
        if count == len(self.spec.ranks):
            self.store.set(f"{name}/all", "1")
        self._store_wait(f"{name}/all", WAIT_S)

    def share(self, key: str, value: Any) -> None:
        """Publish a JSON value of this rank."""
        self.store.set(f"{key}/{self.me.rank}", json.dumps(value))

    def shared(self, key: str) -> list[Any]:
        """The values that all ranks published, by rank."""
        return [
            json.loads(self.store.get(f"{key}/{a.rank}"))
            for a in sorted(self.spec.ranks, key=lambda a: a.rank)
        ]

    def close(self) -> None:
        """Close the transport; gloo's sockets go with the process."""
        if self.endpoint is not None:
            self.endpoint.close()

    def _at(self, pipeline: int, stage: int) -> RankAssignment:
        return self._by_place[pipeline, stage]

    def _store_wait(self, key: str, seconds: float) -> None:
        try:
            self.store.wait([key], timedelta(seconds=seconds))
        except RuntimeError as error:
            raise PeerLost(f"rendezvous: {str(error).splitlines()[0]}") from None

    def _neighbour_stages(self) -> list[int]:
        return [s for s in (self.me.stage - 1, self.me.stage + 1) if 0 <= s < self.job.stages]

    def _has_lan_neighbour(self) -> bool:
        # All ranks of a DC must answer alike: whether any two neighbouring stages are in it.
        dcs, dc = self.job.dcs, self.me.dc
        return any(dcs[s] == dcs[s + 1] == dc for s in range(self.job.stages - 1))

    def _gloo(self, name: str, ranks: list[int]) -> Any:
        # torch keeps a record of the latest 2,000 collectives, 2 kB each; ours are in the spans already.
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self.me.host)]
        options._timeout = timedelta(seconds=WAIT_S)
        options._threads = 1
        return ProcessGroupGloo(PrefixStore(name, self.store), ranks.index(self.me.rank), len(ranks), options)

    def _connected_endpoint(self) -> Endpoint | None:
        others = self._peer_assignments()
        if not others:
            return None
        endpoint = Endpoint(
            rank=self.me.rank, listen_host=self.me.host, secret=self.spec.secret, run=self.spec.run,
            generation=self.spec.generation, listen_ports=self.spec.ports,
        )  # fmt: skip
        self.share("address", list(endpoint.address))
        endpoint.connect([self._peer(other) for other in others], timeout_s=RENDEZVOUS_S)
        return endpoint

    def _peer_assignments(self) -> list[RankAssignment]:
        others = [self._at(self.me.pipeline, stage) for stage in self._neighbour_stages()]
        if any(self._shared(min(stage, self.me.stage)) for stage in self._neighbour_stages()):
            cell = [self._at(pipeline, self.me.stage) for pipeline in range(self.job.pipelines)]
            others += [peer for peer in cell if peer.rank != self.me.rank]
        return others

    def _peer(self, other: RankAssignment) -> Peer:
        host, port = json.loads(self.store.get(f"address/{other.rank}"))
        if other.dc == self.me.dc:
            return Peer(rank=other.rank, address=(host, port), link=f"LAN of {self.me.dc_name}")
        shape = self._shape(min(other.stage, self.me.stage)) if self._emulates(other) else None
        count = self.job.hops[min(other.stage, self.me.stage)].connections
        link = f"{self.me.dc_name} → {other.dc_name}"
        return Peer(rank=other.rank, address=(host, port), shape=shape, connections=count, link=link)

    def _emulates(self, other: RankAssignment) -> bool:
        # Between two processes of one machine there is no WAN but an emulated one.
        return self.job.device == "emulated" or other.host == self.me.host

    def _shape(self, hop: int) -> LinkShape:
        network, slower = self.job.hops[hop], self.spec.disturbance.of_hop(hop)
        return LinkShape(
            one_way_delay_s=network.latency_ms / 1e3, cap_bytes_per_s=network.cap_gbps * 1e9 / 8 / slower,
            window_bytes=network.window_bytes / slower, connections=network.connections,
        )  # fmt: skip

    def _shared(self, hop: int) -> bool:
        return self._schedule.shares(hop)

    def _incoming(self, hop: int, peer: int, payload: int) -> Incoming:
        if hop not in self.job.hops:
            assert self._dc_group is not None
            return LanIncoming(self._dc_group, self._members[peer], peer, payload)
        assert self.endpoint is not None
        if self._shared(hop):
            return SharedIncoming(SharedReceiver(self.endpoint, **self._sharing(hop, payload, sends=False)))
        return WanIncoming(self.endpoint, peer, payload)

    def _outgoing(self, hop: int, peer: int, payload: int) -> Outgoing:
        if hop not in self.job.hops:
            assert self._dc_group is not None
            return LanOutgoing(self._dc_group, self._members[peer], peer, payload)
        assert self.endpoint is not None
        way: dict[str, Any] = {
            "padded_to": self.job.wan_bytes,
            "delay_s": self.job.hops[hop].latency_ms / 1e3,
        }
        if self._shared(hop):
            return SharedOutgoing(
                SharedSender(self.endpoint, **self._sharing(hop, payload, sends=True)), **way
            )
        return WanOutgoing(self.endpoint, peer, payload, **way)

    def _sharing(self, hop: int, payload: int, *, sends: bool) -> dict[str, Any]:
        ends = (hop, hop + 1) if payload == ACTIVATION else (hop + 1, hop)
        sides = [tuple(self._at(p, stage).rank for p in range(self.job.pipelines)) for stage in ends]
        near, far = sides if sends else reversed(sides)
        order = tuple((t.pipeline, (t.microbatch,)) for t in self._schedule.transfers(*ends))
        link = 2 * hop + (payload == GRADIENT)
        return {"link": link, "pipeline": self.me.pipeline, "near": near, "far": far, "order": order}

    def _crossing(self, hop: int, payload: Any) -> Crossing:
        ends = (hop, hop + 1) if payload == "activation" else (hop + 1, hop)
        wan = hop in self.job.hops
        return Crossing(
            track="wan" if wan else "lan", from_stage=ends[0], to_stage=ends[1], payload=payload,
            nbytes=self.job.wan_bytes if wan else self.job.tensor_bytes,
        )  # fmt: skip

    def _tell_started(self, above: int, microbatch: int) -> None:
        assert self.endpoint is not None
        self.endpoint.send(above, (STARTED, microbatch), b"1")


class _Gate:
    """Word from the next stage that the B of a microbatch has started there (recompute rule jit)."""

    def __init__(self, endpoint: Endpoint | None, below: int) -> None:
        self._endpoint, self._below = endpoint, below
        self._posted: dict[int, Any] = {}

    def post(self, microbatch: int) -> None:
        assert self._endpoint is not None
        self._posted[microbatch] = self._endpoint.post_receive(self._below, (STARTED, microbatch), 1)

    def wait(self, microbatch: int) -> None:
        receive = self._posted.pop(microbatch)
        lost_is_peer_lost(lambda: receive.wait(timeout_s=WAIT_S))


def _store(spec: LaunchSpec, port: int, listen_fd: int | None) -> PrefixStore:
    limit = timedelta(seconds=RENDEZVOUS_S)
    try:
        store = TCPStore(
            spec.rendezvous_host, port, is_master=listen_fd is not None, wait_for_workers=False,
            timeout=limit, master_listen_fd=listen_fd,
        )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise PeerLost(f"no rendezvous at {spec.rendezvous_host}:{port}: {reason}") from None
    return PrefixStore(f"{spec.run}/{spec.generation}", store)
