"""The answer of `meridian place`."""

from dataclasses import dataclass
from typing import Any, Literal

# bounds: bounds ruled out so many of the last swaps that evaluations were left over
StoppedBy = Literal["evaluations", "bounds", "proven", "seconds", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A structured start or a baseline, and its cost with the same inner solve."""

    name: str
    cost_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The device of each stage of each pipeline.

    groups : P lists of D devices, in pipeline order; every group computes one stage.
    pipelines : D lists of P devices; the i-th of each is in group i, and groups[i][k] is in pipeline k.
    dp_cost_s, pp_cost_s, cost_s : Eqs. 2, 4 and 1 of DT-FM.
    group_cost_s, hop_cost_s : Eq. 2 of every group, Eq. 3 of every hop between stages.
    exact_order : whether Held–Karp ordered the groups (P ≤ 16).
    optimal : whether every partition was scored.
    evaluations, limit : partitions scored, and the most allowed.
    history : (evaluations, cost) at which the best cost fell.
    """

    groups: tuple[tuple[int, ...], ...]
    pipelines: tuple[tuple[int, ...], ...]
    dp_cost_s: float
    pp_cost_s: float
    cost_s: float
    group_cost_s: tuple[float, ...]
    hop_cost_s: tuple[float, ...]
    exact_order: bool
    optimal: bool
    symmetrised: bool
    seed: int
    limit: int
    evaluations: int
    stopped_by: StoppedBy
    search_s: float
    history: tuple[tuple[int, float], ...]
    starts: tuple[Start, ...]
    baselines: tuple[Start, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `meridian place`."""
        return {
            "groups": [list(group) for group in self.groups],
            "pipelines": [list(pipeline) for pipeline in self.pipelines],
            "dp_cost_s": self.dp_cost_s,
            "pp_cost_s": self.pp_cost_s,
            "cost_s": self.cost_s,
            "group_cost_s": list(self.group_cost_s),
            "hop_cost_s": list(self.hop_cost_s),
            "exact_order": self.exact_order,
            "optimal": self.optimal,
            "symmetrised": self.symmetrised,
            "seed": self.seed,
            "evaluations": self.evaluations,
            "evaluations_allowed": self.limit,
            "stopped_by": self.stopped_by,
            "search_s": self.search_s,
            "history": [{"evaluations": at, "cost_s": cost} for at, cost in self.history],
            "starts": [{"name": start.name, "cost_s": start.cost_s} for start in self.starts],
            "baselines": [{"name": start.name, "cost_s": start.cost_s} for start in self.baselines],
        }
