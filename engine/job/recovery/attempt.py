"""Messages of hosts to each other and to their ranks: a start of all ranks, and how the last one ended."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.recovery.layout import Layout
from engine.job.recovery.plan import From

Failed = Literal["rank", "node", "link", "datacenter"]

_SILENT = re.compile(r"silent for ([\d.]+) s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """All ranks from one common start to their end.

    number : counted from 1. step : steps done at its start. source, where, peers : as in plan.RestartPoint.
    store_port : of this attempt's rendezvous store, on the first rank's machine.
    saved_step, validated_step : the last ones that are done, so that none is left out or done twice.
    retell : the totals of the last step before are not known yet: pipeline 0 reports them again.
    layout : where it is another than that of the launch.
    """

    number: int
    step: int
    source: From
    where: str | None = None
    peers: dict[int, int] = field(default_factory=dict)
    store_port: int = 0
    saved_step: int = 0
    validated_step: int = 0
    retell: bool = False
    layout: Layout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRank:
    """A rank that ended; `cause`: not for having lost another one. `final`: it would end so again."""

    rank: int
    why: str
    cause: bool
    final: bool = False


@dataclass(slots=True, kw_only=True)
class OpenFailure:
    """A failure while it is dealt with: what is lost may turn out to be more than was noticed first.

    noticed : Unix time.
    """

    noticed: float
    dead: dict[int, EndedRank] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)  # lost with their memory, and how that was noticed

    def add(self, dead: Iterable[EndedRank]) -> None:
        """Note ranks that ended; what is known of one already stays."""
        for rank in dead:
            self.dead.setdefault(rank.rank, rank)

    @property
    def silent_s(self) -> float:
        """Since the last sign of life, where silence is how it was noticed."""
        whys = [*(rank.why for rank in self.dead.values()), *self.nodes.values()]
        return max((float(seconds) for why in whys for seconds in _SILENT.findall(why)), default=0.0)

    def described(self, spec: LaunchSpec) -> tuple[Failed, str]:
        """The failure, and its description."""
        causes = [rank for rank in self.dead.values() if rank.cause]
        lost = {rank.rank for rank in causes} | {a.rank for a in spec.ranks if a.node in self.nodes}
        centres = _whole(spec.ranks, lost)
        named = {a.rank: f"rank {a.rank} ({a.dc_name} p{a.pipeline}s{a.stage})" for a in spec.ranks}
        if centres and (len(lost) > 1 or self.nodes):
            return "datacenter", f"all ranks of {' and '.join(centres)}"
        if self.nodes:
            return "node", "; ".join(f"node {node}: {why}" for node, why in self.nodes.items())
        if causes:
            return "rank", "; ".join(f"{named[rank.rank]}: {rank.why}" for rank in causes)
        # The ranks at the link know which one; the others lost these, inside their centre, by LAN or gloo.
        whys = [rank.why for rank in self.dead.values()]
        nearest = min(
            whys, key=lambda why: ("gloo" in why, "over LAN" in why), default="no rank gave a reason"
        )
        return "link", nearest


def _whole(ranks: Sequence[RankAssignment], lost_ranks: set[int]) -> list[str]:
    """The data centres, of several, of which nothing is left."""
    names = sorted({a.dc_name for a in ranks})
    lost = [name for name in names if all(a.rank in lost_ranks for a in ranks if a.dc_name == name)]
    return lost if len(names) > 1 else []
