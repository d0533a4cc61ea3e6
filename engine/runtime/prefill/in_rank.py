"""What a rank of a training run has of prefill, put together: stage, cache server, seat, line to the desk."""

from dataclasses import dataclass
from typing import Any

from engine.errors import InputError
from engine.runtime.launch import LaunchSpec, RankAssignment
from engine.runtime.prefill.desk_wire import DESK_RANK
from engine.runtime.prefill.kv_server import KvServer
from engine.runtime.prefill.seat import Seat, SpanTo
from engine.runtime.prefill.seat_line import SeatLine
from engine.runtime.prefill.settings import PrefillSettings
from engine.runtime.prefill.stage import PrefillStage, StageSettings
from engine.runtime.transport.handshake import Identity

BLOCK_TOKENS = 32  # of a cache: prompts of demos are short


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrefill:
    """The parts, of which the executor needs `seat` alone."""

    seat: Seat
    server: KvServer
    line: SeatLine

    def close(self) -> None:
        """End its threads and free what they hold."""
        self.line.close()
        self.seat.close()
        self.server.close()


def prefill_of(
    spec: LaunchSpec, me: RankAssignment, store: Any, *, ops: int, span: SpanTo
) -> RankPrefill | None:
    """What rank `me` has; None in a job without prefill. Raises InputError where the model does not do."""
    settings = spec.job.prefill
    if settings is None:
        return None
    stage = PrefillStage.load(
        settings.checkpoint, stage_settings(settings, emulated=spec.job.device == "emulated")
    )
    identity = Identity(rank=me.rank, run=spec.run, generation=spec.generation, secret=spec.secret.encode())
    server = _server(stage, identity, me, spec.ports)
    seat = Seat(stage, server, ops=ops, span=span)
    line = SeatLine(seat, identity, store, dc=me.dc, desk=DESK_RANK + me.dc)
    return RankPrefill(seat=seat, server=server, line=line)


def stage_settings(settings: PrefillSettings, *, emulated: bool) -> StageSettings:
    """Of a rank, which is a whole pipeline."""
    return StageSettings(
        stage=0, stages=1, dtype=settings.dtype, weight_budget_bytes=settings.weight_budget_bytes,
        kv_budget_bytes=settings.kv_budget_bytes, block_tokens=BLOCK_TOKENS,
        latency=settings.latency.model if emulated else None,
    )  # fmt: skip


def _server(
    stage: PrefillStage, me: Identity, where: RankAssignment, ports: tuple[int, int] | None
) -> KvServer:
    for port in free_ports(ports, me.rank):
        try:
            return KvServer(stage.pool, me, host=where.host, port=port)
        except OSError as error:
            refused = error
    raise InputError("ports", ports, f"none is free at {where.host} for KV caches ({refused.strerror})")


def free_ports(ports: tuple[int, int] | None, start: int) -> list[int]:
    """Ports to try in turn: a node's range from a place that differs by rank; 0 where any will do."""
    if ports is None:
        return [0]
    count = ports[1] - ports[0] + 1
    return [ports[0] + (start + step) % count for step in range(count)]
