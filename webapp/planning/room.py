"""Whether GPUs have room for the model that a launch would train, said while its plan is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.memory import stage_memory
from webapp.common.queries import whole
from webapp.inventory.models import DataCenter, Device, Node
from webapp.planning.planned_model import model_to_train

LEAST_MS = 5.0  # of an emulated op


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the fullest stage needs on a GPU, and the least that one has: on `node`."""

    needed_bytes: int
    least_bytes: int
    node: str

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.least_bytes


def room_of(
    user: Any, form: QueryDict, model: str | dict[str, Any], layout: Mapping[str, int]
) -> Room | None:
    """The room for a planned model in schedule 1F1B, as a launch counts it; None where too little is known.

    Parameters
    ----------
    form : of a new plan, as it was sent: data centres, device and microbatches are read, as far as they go.
    layout : `stages`, `micro_batch`, `tp`, `cp` and `ep` of the plan.
    """
    device, microbatches = form.get("device", ""), whole(form.get("microbatches"))
    if device not in Device.values or not microbatches or layout["cp"] > 1 or layout["ep"] > 1:
        return None
    try:
        recompute = form.get("recompute") != "none"
        memory = stage_memory(_job(model, device, microbatches, layout, recompute=recompute))
    except InputError:
        return None
    chosen = [pk for text in form.getlist("datacenters") if (pk := whole(text)) is not None]
    dcs = DataCenter.objects.visible_to(user).filter(pk__in=chosen)
    nodes = Node.objects.filter(dc__in=dcs, device=device).select_related("pool").defer("seen_ranks")
    sizes = [(size, node.name) for node in nodes if (size := _least_of(node)) is not None]
    if not sizes:
        return None
    least, name = min(sizes)
    return Room(needed_bytes=max(stage.total_bytes for stage in memory), least_bytes=least, node=name)


def _job(
    model: str | dict[str, Any],
    device: str,
    microbatches: int,
    layout: Mapping[str, int],
    *,
    recompute: bool,
) -> TrainJob:
    """The planned model on one pipeline."""
    stages, tp = layout["stages"], layout["tp"]
    times = {"forward": LEAST_MS, "backward": LEAST_MS, "recompute": LEAST_MS if recompute else 0}
    emulated = {"times_ms": times} if device == Device.EMULATED else {}
    return parse(
        TrainJob,
        {
            "datacenters": [{"name": "a", "gpus": stages * tp}],
            "cell": {
                "stages": stages,
                "tp": tp,
                "microbatches": microbatches,
                "micro_batch": layout["micro_batch"],
                "recompute": recompute,
            },
            "model": model_to_train(model, stages),
            "device": {"kind": device, "dtype": "bf16", **emulated},
            "optimizer": {"steps": 1},
            "strategy": {"kind": "pipeline", "policy": "1f1b"},
        },
    )


def _least_of(node: Node) -> int | None:
    """The memory of the smallest GPU of a node, as its agent has seen it; where its GPUs have none of their
    own, a share of the machine's. Of a GPU that nobody has seen, that of its type.
    """
    hardware = node.seen_hardware or {}
    try:
        of_type = int(node.pool.gpu.memory_bytes)
    except InputError:
        return None
    if node.device == Device.CUDA:
        seen = [gpu["memory_bytes"] for gpu in hardware.get("gpus", []) if gpu.get("memory_bytes")]
        return min(seen, default=of_type)
    machine = hardware.get("memory_bytes")
    return min(of_type, machine // node.gpus) if machine else of_type
