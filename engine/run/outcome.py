"""The end of a run: the first rank gathers what all ranks measured and sends the result."""

import contextlib
import math
import time
from dataclasses import asdict
from typing import Any

from engine.control.errors import PeerLost
from engine.job.launch import LaunchSpec
from engine.job.losses import Losses
from engine.job.result import counted, measured_part, medians_of_stages
from engine.job.stage_ring import stage_rings
from engine.nn.model import Stage, params_sha256
from engine.run.building import Ground
from engine.serve.in_rank import RankPrefill

LEAVE_S = 30.0  # for the other ranks to leave; on a busy machine they are late, a dead one never does


def share_measured(ground: Ground, stage: Stage, prefill: RankPrefill | None) -> None:
    """Lay down what this rank measured where the first one finds it."""
    mine = {
        **ground.recorder.stats(),
        "egress": ground.mesh.egress(),
        "summed": ground.mesh.summed(),
        "digests": stage.digests(ground.tp),
    }
    if ground.device.apart:
        mine["peak_gpu_bytes"] = ground.device.peak_bytes()
    if prefill:
        mine["prefill"] = asdict(prefill.prefill_worker.waits)
    ground.mesh.share("stats", mine)


def result_of(ground: Ground, losses: Losses, own: dict[str, Any]) -> dict[str, Any]:
    """The result, of what all ranks laid down; `own` holds what only the first rank knows."""
    stats = ground.mesh.shared("stats")
    of_first_pipeline = [rank for rank in stats if rank["pipeline"] == 0]
    digests = {int(number): sha for rank in of_first_pipeline for number, sha in rank["digests"].items()}
    return {
        "steps": len(losses.losses),
        "losses": list(losses.losses),
        "bits_per_byte": [None if math.isnan(bits) else bits for bits in losses.bits],
        "grad_norms": list(losses.norms),
        "params_sha256": params_sha256(digests),
        **measured_part(ground.job, stats),
        "hops": ground.mesh.hops(),
        **_summed_as(ground.spec),
        **own,
        **({"adaptations": ground.adapting.adaptations} if ground.adapting else {}),
        "median_s_of_stage": medians_of_stages(ground.job, stats),
        "counted": counted(stats),
    }


def _summed_as(spec: LaunchSpec) -> dict[str, Any]:
    """How the replicas of each stage summed, on the nodes where they were."""
    return {"all_reduce": [ring.kind for ring in stage_rings(spec)]} if spec.job.cell.pipelines > 1 else {}


def leave_last(ground: Ground) -> None:
    """Return when this rank may go. The store lives in the first rank; the others need its last answers."""
    store = ground.mesh.store
    if not ground.is_first:
        with contextlib.suppress(PeerLost):  # counted, the first rank may be gone before it has answered
            store.add("left", 1)
        return
    deadline = time.monotonic() + LEAVE_S
    while store.add("left", 0) < len(ground.spec.ranks) - 1 and time.monotonic() < deadline:
        time.sleep(0.01)
