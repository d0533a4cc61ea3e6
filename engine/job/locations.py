"""The data centre, and so the GPU pool, of each rank of a job, from its document."""

from collections import Counter
from typing import Any

from engine.job.changed import value_at
from engine.job.sections.device import DeviceSection

Document = dict[str, Any]  # of `meridian train`, in sections


def dcs_of_pipelines(document: Document) -> tuple[tuple[int, ...], ...]:
    """Index into `datacenters` of each stage, by pipeline: pipelines differ under `devices` alone."""
    cell = document["cell"]
    if cell.get("devices"):
        owner = [dc for dc, site in enumerate(document["datacenters"]) for _ in range(site["gpus"])]
        return tuple(tuple(owner[device] for device in pipeline) for pipeline in cell["devices"]["pipelines"])
    dcs = tuple(cell.get("dc_of_stage") or [0] * cell["stages"])
    return (dcs,) * cell.get("pipelines", 1)


def tp_of(document: Document) -> int:
    """How many ranks compute each stage together (tensor parallelism), on GPUs of one node."""
    return int(value_at(document, "cell.tp") or 1)


def pool_of_rank(document: Document) -> list[str]:
    """The pool of each rank, by name; rank = (shard × pipelines + pipeline) × stages + stage."""
    names = [dc["name"] for dc in document["datacenters"]]
    return [names[dc] for dcs in dcs_of_pipelines(document) for dc in dcs] * tp_of(document)


def gpus_needed(document: Document) -> dict[str, int]:
    """GPUs per pool, by name, in the order in which the stages need them."""
    return dict(Counter(pool_of_rank(document)))


def device_of(document: Document) -> str:
    """The kind of device of the job: cpu, emulated or cuda."""
    return str(value_at(document, "device.kind", DeviceSection().kind))
