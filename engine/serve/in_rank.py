"""A rank's parts of prefill: stage, cache server, prefill worker, connection to the coordinator."""

import json
from dataclasses import dataclass
from typing import Any

from engine.control.coordinator_wire import COORDINATOR_RANK
from engine.control.handshake import Identity
from engine.control.identity import identity_of
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.prefill.adjacent_stages import AdjacentStages, adjacent_stages, gpus_of
from engine.job.prefill.settings import PrefillSettings
from engine.serve.coordinator_connection import CoordinatorConnection
from engine.serve.hidden_states import HiddenReceiver, HiddenSender, HiddenShape, address_key
from engine.serve.kv_push import KvPusher
from engine.serve.kv_server import KvServer
from engine.serve.prefill_worker import PrefillWorker, SpanTo
from engine.serve.stage import PrefillStage, StageSettings
from engine.transport.tls import TlsFiles

BLOCK_TOKENS = 32  # of a cache: prompts of demos are short


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrefill:
    """The parts. The executor needs `prefill_worker` alone."""

    prefill_worker: PrefillWorker
    server: KvServer
    line: CoordinatorConnection
    pusher: KvPusher
    before: HiddenReceiver | None = None
    behind: HiddenSender | None = None

    def close(self) -> None:
        """End its threads and free what they hold."""
        self.line.close()
        for connection in (self.before, self.behind):
            if connection is not None:
                connection.close()
        self.prefill_worker.close()
        self.pusher.close()
        self.server.close()


def prefill_of(
    spec: LaunchSpec, me: RankAssignment, store: Any, *, device: str, ops: int, span: SpanTo
) -> RankPrefill | None:
    """What rank `me`, whose tensors are on `device`, has; None in a job without prefill.

    Raises InputError where the model does not do.
    """
    settings = spec.job.prefill
    if settings is None:
        return None
    adjacent = adjacent_stages(spec, me)
    stage = PrefillStage.load(
        settings.checkpoint,
        stage_settings(settings, adjacent, device=device, emulated=spec.job.device.kind == "emulated"),
    )
    identity = identity_of(spec, me.rank)
    server = KvServer(stage.pool, identity, host=me.host, ports=spec.ports)
    behind = None
    if adjacent.behind is not None:
        behind = HiddenSender(identity, store, behind=adjacent.behind, most_bytes=stage.most_hidden_bytes)
    leads = me == gpus_of(spec, me.dc)[0]
    pusher = KvPusher(stage.pool, tls=TlsFiles.of(spec.job))
    prefill_worker = PrefillWorker(
        stage, server, ops=ops, leads=leads, span=span, next_stage=behind, pusher=pusher
    )
    before = None
    if adjacent.before is not None:
        before = _receiver(stage, identity, prefill_worker, me, spec.ports, before=adjacent.before)
        store.set(address_key(me.rank), json.dumps(before.address))
    line = CoordinatorConnection(
        prefill_worker, identity, store, dc=me.dc, coordinator=COORDINATOR_RANK + me.dc
    )
    return RankPrefill(
        prefill_worker=prefill_worker, server=server, line=line, pusher=pusher, before=before, behind=behind
    )


def stage_settings(
    settings: PrefillSettings, adjacent: AdjacentStages, *, emulated: bool, device: str = "cpu"
) -> StageSettings:
    """Of a rank with these `adjacent` stages, whose tensors are on `device`."""
    return StageSettings(
        stage=adjacent.stage,
        stages=adjacent.stages,
        dtype=settings.dtype,
        device=device,
        weight_budget_bytes=settings.weight_budget_bytes,
        kv_budget_bytes=settings.kv_budget_bytes,
        block_tokens=BLOCK_TOKENS,
        latency=settings.latency.model if emulated else None,
    )


def _receiver(
    stage: PrefillStage,
    identity: Identity,
    prefill_worker: PrefillWorker,
    me: RankAssignment,
    ports: tuple[int, int] | None,
    *,
    before: int,
) -> HiddenReceiver:
    config = stage.config
    shape = HiddenShape(size=config.hidden_size, dtype=stage.dtype, context=config.max_position_embeddings)
    return HiddenReceiver(identity, shape, prefill_worker, before=before, host=me.host, ports=ports)
