"""The shape of a run as it is drawn: lanes, data centres and links, from the job's document."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from engine.job.locations import dcs_of_pipelines
from engine.job.reserve import dcs_of_reserve_in
from engine.job.sections.strategy import SWAP
from engine.schedule.text import sharing_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Lanes by rank, data centres by index, WAN links by direction.

    A lane is a stage of a pipeline. Where several ranks compute it (tensor parallelism), it is that of their
    lead: the leads are the first ranks, and they alone have spans.

    dcs_of_pipeline : index into `dcs` of each stage, by pipeline.
    reserve : index into `dcs` of each GPU that a run may hold in reserve; their ranks follow the others.
    pairs : node pairs that one transfer uses together: a cell's pipelines where links are shared in time.
    swaps : each lane is a worker that trains the whole model (strategy swap).
    """

    stages: int
    pipelines: int
    dcs: tuple[str, ...]
    dcs_of_pipeline: tuple[tuple[int, ...], ...]
    links: tuple[dict[str, Any], ...]
    pairs: int
    swaps: bool = False
    reserve: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """How many lanes there are without the reserve."""
        return self.stages * self.pipelines

    @property
    def dc_of_rank(self) -> tuple[int, ...]:
        """By rank, those in reserve included."""
        return (*(dc for dcs in self.dcs_of_pipeline for dc in dcs), *self.reserve)

    def in_reserve(self, rank: int) -> bool:
        """Whether a rank has no place at launch. A run with a reserve has no tensor parallelism."""
        return bool(self.reserve) and rank >= self.ranks

    def place_of(self, rank: int) -> tuple[int, int, int]:
        """Pipeline and stage of any rank, and its number among those that compute the stage."""
        shard, lane = (0, rank) if self.in_reserve(rank) else divmod(rank, self.ranks)
        pipeline, stage = divmod(lane, self.stages)
        return pipeline, stage, shard


def shape_of(document: dict[str, Any]) -> Shape:
    """The shape of the job in `document` (of `meridian train`, in sections)."""
    names = [dc["name"] for dc in document["datacenters"]]
    cell, strategy = document["cell"], document["strategy"]
    dcs_of_pipeline = dcs_of_pipelines(document)
    # Pipelines that run through different data centres share no links.
    own = "temporal" if strategy.get("policy") == "atlas" and len(set(dcs_of_pipeline)) == 1 else "spatial"
    if strategy.get("schedule"):
        own = sharing_of(strategy["schedule"])
    sharing = strategy.get("sharing") or own
    directions = dict.fromkeys(_wan_directions(dcs_of_pipeline))
    known = {frozenset(link["between"]): link for link in document.get("links", [])}
    links = []
    for a, b in directions:
        link = known.get(frozenset((names[a], names[b])), {})
        links.append(
            {"from": a, "to": b, "cap_gbps": link.get("bandwidth_gbps"), "latency_ms": link.get("latency_ms")}
        )
    return Shape(
        stages=cell["stages"],
        pipelines=cell.get("pipelines", 1),
        dcs=tuple(names),
        dcs_of_pipeline=dcs_of_pipeline,
        links=tuple(links),
        pairs=cell.get("pipelines", 1) // cell.get("cells", 1) if sharing == "temporal" else 1,
        swaps=strategy.get("kind") == SWAP,
        reserve=dcs_of_reserve_in(document) or (),
    )


def _wan_directions(dcs_of_pipeline: tuple[tuple[int, ...], ...]) -> Iterator[tuple[int, int]]:
    """The directions in which adjacent stages send between data centres, in pipeline order."""
    for dcs in dict.fromkeys(dcs_of_pipeline):
        for a, b in pairwise(dcs):
            if a != b:
                yield from ((a, b), (b, a))


class PlacedRank(Protocol):
    """A rank that has its GPU; `node` has a name."""

    rank: int
    gpu: int
    node: Any


def lanes(shape: Shape, ranks: Iterable[PlacedRank]) -> list[dict[str, Any]]:
    """One lane per rank, in their order, up to the last one in reserve that has a GPU; `gpu` and `node` are
    null where there is none yet.

    A lane of a worker that swaps says so: `worker`. The pipeline of a rank in reserve is that which it would
    first belong to.
    """
    placed = {rank.rank: rank for rank in ranks}
    count = max([shape.ranks, *(rank + 1 for rank in placed)])
    rows = []
    for rank, dc in enumerate(shape.dc_of_rank[:count]):
        pipeline, stage = divmod(rank, shape.stages)
        at = placed.get(rank)
        rows.append(
            {
                "rank": rank,
                "pipeline": pipeline,
                "stage": stage,
                "dc": dc,
                "gpu": at.gpu if at else None,
                "node": at.node.name if at else None,
                **({"worker": True} if shape.swaps else {}),
            }
        )
    return rows
