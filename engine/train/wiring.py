"""How the chunks of one GPU are joined to the others: ports and links, from the schedule's traversal.

A *link* is one direction of one hop: 2 · hop + direction (engine.schedule.traversal). Hop s joins stages s
and s + 1; the last one joins the last stage to the first.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch

from engine.control.silence import WAIT_S
from engine.job.job import TrainJob
from engine.job.launch import RankAssignment
from engine.nn.device import CpuDevice, Device
from engine.schedule.ir import OpKind, Schedule
from engine.schedule.traversal import WITHIN_STAGE
from engine.train.direct import DirectIncoming, DirectLink, DirectOutgoing, order_of
from engine.train.exchange import (
    STARTED,
    Incoming,
    InTurn,
    Key,
    LanIncoming,
    LanOutgoing,
    Outgoing,
    SharedIncoming,
    SharedOutgoing,
    Silent,
    WanIncoming,
    WanOutgoing,
    lost_is_peer_lost,
)
from engine.train.executor import Port, Position
from engine.train.recorder import HopDirection
from engine.train.staging import staging
from engine.transport import Endpoint, SharedReceiver, SharedSender

Payload = Literal["activation", "gradient"]


class Fabric(Protocol):
    """The connections of this rank: NCCL or gloo inside its data centre, the transport beyond.

    Attributes
    ----------
    direct : the links that stay on the GPUs, by number; the other ones of the data centre are `dc_group`'s.
    """

    endpoint: Endpoint | None
    dc_group: Any | None
    direct: dict[int, DirectLink]

    def at(self, pipeline: int, stage: int) -> RankAssignment: ...
    def member(self, rank: int) -> int: ...


def ends_of(link: int, stages: int) -> tuple[int, int]:
    """Stages from which and to which a link leads."""
    hop, direction = divmod(link, 2)
    ends = hop, (hop + 1) % stages
    return ends[::-1] if direction else ends


def neighbours(schedule: Schedule, stage: int) -> dict[int, int]:
    """The stages that `stage` has hops to, each with the first such hop."""
    neighbour_hops: dict[int, int] = {}
    for hop in hops_at(schedule, stage):
        ends = ends_of(2 * hop, schedule.stages)
        neighbour_hops.setdefault(ends[0] if ends[1] == stage else ends[1], hop)
    return neighbour_hops


def hops_at(schedule: Schedule, stage: int) -> list[int]:
    """The hops that a stage is an end of, in order."""
    hops = {int(hop) for hop in schedule.traversal.hop_of if hop != WITHIN_STAGE}
    return sorted(hop for hop in hops if stage in ends_of(2 * hop, schedule.stages))


class Wiring:
    """The ports of the chunks of rank `me`, and the ends of links that they share; it sends from `device`.

    Attributes
    ----------
    positions : of the chunks, in order.
    links : every end of a link here, once.
    """

    def __init__(
        self,
        job: TrainJob,
        schedule: Schedule,
        me: RankAssignment,
        fabric: Fabric,
        device: Device | None = None,
    ) -> None:
        device = device or CpuDevice()
        self._device, self._staged = device, staging(device)
        self._new_buffer = functools.partial(device.host_buffer, dtype=torch.uint8)
        self._job, self._schedule, self._me, self._fabric = job, schedule, me, fabric
        self._cell = job.cell.cell_of(me.pipeline)
        self._in_cell = self._cell.index(me.pipeline)  # as the schedule numbers it
        self._incoming: dict[int, Incoming] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._gated = me.leads and schedule.recompute_gate == "jit" and schedule.has(OpKind.R)
        positions = schedule.traversal.position_of[me.stage].tolist()
        self.positions = tuple(
            Position(
                before=self._side(position - 1, here=position), after=self._side(position, here=position)
            )
            for position in positions
        )
        self.links: tuple[Incoming | Outgoing, ...] = (*self._incoming.values(), *self._outgoing.values())

    def _side(self, edge: int, *, here: int) -> Port | int | None:
        """What is on the other side of an edge of the position `here`."""
        traversal = self._schedule.traversal
        if not 0 <= edge < len(traversal.positions) - 1:
            return None
        after = edge == here
        there = here + 1 if after else here - 1
        stage, chunk = traversal.positions[there]
        hop = int(traversal.hop_of[edge])
        if hop == WITHIN_STAGE:
            return chunk
        forward = 2 * hop + int(traversal.direction_of[edge])
        sends, receives = (forward, forward ^ 1) if after else (forward ^ 1, forward)
        other = self._fabric.at(self._me.pipeline, stage).rank
        own_chunk = traversal.positions[here][1]
        gate = _Gate(self._fabric.endpoint, other, chunk) if self._gated and after else None
        tell_started = (
            functools.partial(self._tell_started, other, own_chunk) if self._gated and not after else None
        )
        return Port(
            incoming=self._end_of(receives, self._incoming, self._new_incoming),
            outgoing=self._end_of(sends, self._outgoing, self._new_outgoing),
            takes=chunk,
            hop=self._hop_direction(sends, own_chunk, "activation" if after else "gradient"),
            tell_started=tell_started,
            post_started=gate.post if gate else None,
            wait_started=gate.wait if gate else None,
        )

    def _end_of(self, link: int, ends: dict[int, Any], new: Callable[[int], Any]) -> Any:
        if link not in ends:
            ends[link] = new(link)
        return ends[link]

    def _new_incoming(self, link: int) -> Incoming:
        if not self._me.leads:
            return Silent()
        stage = ends_of(link, self._job.cell.stages)[0]
        sender = self._rank_at(stage)
        if direct := self._fabric.direct.get(link):
            order = self._listed_order(link) or order_of(self._schedule, self._in_cell, link, stage)
            new_buffer = functools.partial(
                torch.empty, self._job.tensor_bytes, dtype=torch.uint8, device=self._device.name
            )
            return DirectIncoming(direct, sender, order, new_buffer)
        if self._job.network(link // 2, self._me.pipeline) is None:
            group, member = self._lan(sender)
            return LanIncoming(group, member, sender, self._lan_tag(link), self._new_buffer)
        assert self._fabric.endpoint is not None
        if self._shared(link):
            return SharedIncoming(SharedReceiver(self._fabric.endpoint, **self._sharing(link, sends=False)))
        return WanIncoming(self._fabric.endpoint, sender, link)

    def _new_outgoing(self, link: int) -> Outgoing:
        if not self._me.leads:
            return Silent()
        if direct := self._fabric.direct.get(link):
            receiver = self._rank_at(ends_of(link, self._job.cell.stages)[1])
            return self._in_turn(link, DirectOutgoing(direct, receiver))
        return self._staged(self._sending(link))

    def _sending(self, link: int) -> Outgoing:
        receiver = self._rank_at(ends_of(link, self._job.cell.stages)[1])
        network = self._job.network(link // 2, self._me.pipeline)
        if network is None:
            group, member = self._lan(receiver)
            return self._in_turn(link, LanOutgoing(group, member, receiver, self._lan_tag(link)))
        assert self._fabric.endpoint is not None
        endpoint, padded_to = self._fabric.endpoint, self._job.wan_bytes

        def delay_s() -> float:
            measured_s = endpoint.one_way_s(receiver)
            return network.latency_ms / 1e3 if measured_s is None else measured_s

        if self._shared(link):
            sender = SharedSender(endpoint, padded_to=padded_to, **self._sharing(link, sends=True))
            return SharedOutgoing(sender, delay_s=delay_s)
        outgoing = WanOutgoing(endpoint, receiver, link, padded_to=padded_to, delay_s=delay_s)
        return self._in_turn(link, outgoing)

    def _rank_at(self, stage: int) -> int:
        return self._fabric.at(self._me.pipeline, stage).rank

    def _lan(self, rank: int) -> tuple[Any, int]:
        assert self._fabric.dc_group is not None
        return self._fabric.dc_group, self._fabric.member(rank)

    def _lan_tag(self, link: int) -> Callable[[Key], int]:
        # Two ranks have at most two hops between them: an inner one, and a loop's from last to first.
        chunks, microbatches = self._schedule.chunks, self._schedule.microbatches
        number = 2 * (link // 2 == self._job.cell.stages - 1) + link % 2
        return lambda key: (number * chunks + key[0]) * microbatches + key[1]

    def _shared(self, link: int) -> bool:
        return self._schedule.sharing == "temporal" and self._job.cell.cell_pipelines > 1

    def _listed(self, link: int) -> tuple[int, int]:
        """The link's name in the schedule's link order."""
        hop, direction = divmod(link, 2)
        return (hop + 1, hop) if direction else (hop, hop + 1)

    def _listed_order(self, link: int) -> list[Key]:
        """What this pipeline sends over a link, as the schedule lists it; empty if it does not."""
        transfers = self._schedule.transfers(*self._listed(link))
        return [(t.chunk, t.microbatch) for t in transfers if t.pipeline == self._in_cell]

    def _in_turn(self, link: int, outgoing: Outgoing) -> Outgoing:
        own = self._listed_order(link)
        return InTurn(outgoing, own) if own else outgoing

    def _sharing(self, link: int, *, sends: bool) -> dict[str, Any]:
        sides = [
            tuple(self._fabric.at(p, stage).rank for p in self._cell)
            for stage in ends_of(link, self._job.cell.stages)
        ]
        near, far = sides if sends else reversed(sides)
        transfers = self._schedule.transfers(*self._listed(link))
        order = tuple((t.pipeline, (t.chunk, t.microbatch)) for t in transfers)
        return {"link": link, "pipeline": self._in_cell, "near": near, "far": far, "order": order}

    def _hop_direction(self, link: int, chunk: int, payload: Payload) -> HopDirection:
        from_stage, to_stage = ends_of(link, self._job.cell.stages)
        wan = self._job.network(link // 2, self._me.pipeline) is not None
        return HopDirection(
            track="wan" if wan else "lan",
            from_stage=from_stage,
            to_stage=to_stage,
            payload=payload,
            chunk=chunk,
            nbytes=self._job.wan_bytes if wan else self._job.tensor_bytes,
        )

    def _tell_started(self, rank: int, chunk: int, microbatch: int) -> None:
        assert self._fabric.endpoint is not None
        self._fabric.endpoint.send(rank, (STARTED, chunk, microbatch), b"1")


class _Gate:
    """Word from the next position that the B of a microbatch has started there (recompute rule jit)."""

    def __init__(self, endpoint: Endpoint | None, rank: int, chunk: int) -> None:
        self._endpoint, self._rank, self._chunk = endpoint, rank, chunk
        self._posted: dict[int, Any] = {}

    def post(self, microbatch: int) -> None:
        assert self._endpoint is not None
        tag = (STARTED, self._chunk, microbatch)
        self._posted[microbatch] = self._endpoint.post_receive(self._rank, tag, 1)

    def wait(self, microbatch: int) -> float:
        receive = self._posted.pop(microbatch)
        lost_is_peer_lost(lambda: receive.wait(timeout_s=WAIT_S))
        return float(receive.arrived)
