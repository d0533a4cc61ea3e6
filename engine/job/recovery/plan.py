"""The step from which a run continues, given the state that each rank holds: a pure function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from engine.job.launch import LaunchSpec, RankAssignment

Held = Mapping[int, tuple[int, ...]]  # by rank: the steps after which its machine has its state
From = Literal["memory", "peer", "checkpoint", "start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The last checkpoint of the run: after how many steps, and where."""

    step: int
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPoint:
    """From where a run continues.

    step : steps done. source : memory, peer (another machine's, for some ranks), checkpoint, or start: there
    is nothing yet. peers : by rank that lacks its state, the replica of its stage that sends it.
    """

    step: int
    source: From
    where: str | None = None
    peers: dict[int, int] = field(default_factory=dict)


def restart_point(spec: LaunchSpec, held: Held, saved: Saved | None) -> RestartPoint:
    """The newest step that every stage can have: its own memory, a replica's, a checkpoint, the start.

    As no rank is ever two steps ahead of another and two steps are kept, the newest step that all hold is
    within one of the furthest, unless a machine is lost with its memory. With ZeRO-1 no replica has the state
    of another.
    """
    steps = sorted({step for steps in held.values() for step in steps}, reverse=True)
    for step in steps:
        peers = _peers(spec, held, step)
        if peers is not None and (saved is None or step >= saved.step):
            return RestartPoint(step=step, source="peer" if peers else "memory", peers=peers)
    if saved is not None:
        return RestartPoint(step=saved.step, source="checkpoint", where=saved.where)
    return RestartPoint(step=0, source="start")


def _peers(spec: LaunchSpec, held: Held, step: int) -> dict[int, int] | None:
    """Who sends whom the state after `step` steps; None where a rank cannot have it."""
    holders = [a for a in spec.ranks if step in held.get(a.rank, ())]
    peers: dict[int, int] = {}
    for lacking in (a for a in spec.ranks if step not in held.get(a.rank, ())):
        same = () if spec.job.cell.zero else (a for a in holders if a.stage == lacking.stage)
        near = [a for a in same if _joined(spec, a, lacking)]
        if not near:
            return None
        # Those nearby first, then in turn, so that one does not send to all.
        near.sort(key=lambda a: (a.dc != lacking.dc, list(peers.values()).count(a.rank), a.rank))
        peers[lacking.rank] = near[0].rank
    return peers


def _joined(spec: LaunchSpec, a: RankAssignment, b: RankAssignment) -> bool:
    return a.dc == b.dc or spec.job.link_between(a.dc, b.dc) is not None
