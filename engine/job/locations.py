"""The data centre, and so the GPU pool, of each rank of a job, from its document."""

from collections import Counter
from typing import Any

Document = dict[str, Any]  # of `meridian train`


def dcs_of_pipelines(document: Document) -> tuple[tuple[int, ...], ...]:
    """Index into `datacenters` of each stage, by pipeline: pipelines differ under `devices` alone."""
    if document.get("devices"):
        owner = [dc for dc, site in enumerate(document["datacenters"]) for _ in range(site["gpus"])]
        return tuple(tuple(owner[device] for device in way) for way in document["devices"]["pipelines"])
    dcs = tuple(document.get("dc_of_stage") or [0] * document["stages"])
    return (dcs,) * document.get("pipelines", 1)


def pool_of_rank(document: Document) -> list[str]:
    """The pool of each rank, by name; rank = pipeline × stages + stage."""
    names = [dc["name"] for dc in document["datacenters"]]
    return [names[dc] for dcs in dcs_of_pipelines(document) for dc in dcs]


def gpus_needed(document: Document) -> dict[str, int]:
    """GPUs per pool, by name, in the order in which the stages need them."""
    return dict(Counter(pool_of_rank(document)))
