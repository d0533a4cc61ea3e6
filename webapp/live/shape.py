"""The shape of a run as its page draws it: lanes, data centres and links, from the job's document."""

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from webapp.jobs.models import RankState, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Lanes by rank, data centres by index, WAN links by direction.

    pairs : node pairs that one transfer uses together: all pipelines where links are shared in time.
    """

    stages: int
    pipelines: int
    dcs: tuple[str, ...]
    dc_of_stage: tuple[int, ...]
    links: tuple[dict[str, Any], ...]
    pairs: int

    @property
    def ranks(self) -> int:
        return self.stages * self.pipelines

    @property
    def dc_of_rank(self) -> tuple[int, ...]:
        return self.dc_of_stage * self.pipelines


def shape_of(document: dict[str, Any]) -> Shape:
    """The shape of the job in `document` (of `meridian train`)."""
    names = [dc["name"] for dc in document["datacenters"]]
    dc_of_stage = tuple(document.get("dc_of_stage") or [0] * document["stages"])
    sharing = document.get("sharing") or ("temporal" if document["policy"] == "atlas" else "spatial")
    crossings = dict.fromkeys(
        direction for a, b in itertools.pairwise(dc_of_stage) if a != b for direction in ((a, b), (b, a))
    )
    known = {frozenset(link["between"]): link for link in document.get("links", [])}
    links = []
    for a, b in crossings:
        link = known.get(frozenset((names[a], names[b])), {})
        links.append(
            {"from": a, "to": b, "cap_gbps": link.get("bandwidth_gbps"), "latency_ms": link.get("latency_ms")}
        )
    return Shape(
        stages=document["stages"],
        pipelines=document.get("pipelines", 1),
        dcs=tuple(names),
        dc_of_stage=dc_of_stage,
        links=tuple(links),
        pairs=document.get("pipelines", 1) if sharing == "temporal" else 1,
    )


@lru_cache(maxsize=256)
def shape_of_run(run_id: int) -> Shape:
    """The shape of a run; its job never changes, so it is read once a process."""
    return shape_of(Run.objects.select_related("job").only("job__document").get(pk=run_id).job.document)


def lanes(shape: Shape, ranks: list[RankState]) -> list[dict[str, Any]]:
    """One lane per rank; `gpu` and `node` are null before the run has its GPUs."""
    placed = {rank.rank: rank for rank in ranks}
    made = []
    for rank in range(shape.ranks):
        pipeline, stage = divmod(rank, shape.stages)
        at = placed.get(rank)
        made.append(
            {
                "rank": rank,
                "pipeline": pipeline,
                "stage": stage,
                "dc": shape.dc_of_stage[stage],
                "gpu": at.gpu if at else None,
                "node": at.node.name if at else None,
            }
        )
    return made
