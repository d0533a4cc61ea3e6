"""What `meridian simulate` answers: a schedule's figures, its bound, and its spans."""

from dataclasses import dataclass
from typing import Any

from engine.errors import Infeasible
from engine.schedule import Rules, build, rules_of
from engine.schedule.scenario import Scenario
from engine.simulate.bounds import lower_bound
from engine.simulate.spans import Span
from engine.simulate.timeline import Timeline
from engine.simulate.timing import time_schedule

# Makespan and bound are sums of the same durations in different orders.
SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """One policy on one scenario: a timeline, or the reason why there is none.

    lower_bound : proven for every schedule of the scenario under the same sharing, whatever its policy.
    search_s : 0 for policies that do not search.
    """

    scenario: Scenario
    rules: Rules
    timeline: Timeline | None
    reason: str | None
    lower_bound: float
    search_s: float = 0.0

    @property
    def feasible(self) -> bool:
        return self.timeline is not None

    @property
    def makespan(self) -> float | None:
        return self.timeline.makespan if self.timeline else None

    @property
    def gap(self) -> float | None:
        """makespan / lower_bound − 1; 0 where the schedule is proven to be the best."""
        return self.timeline.makespan / self.lower_bound - 1 if self.timeline else None

    @property
    def optimal(self) -> bool:
        return self.gap is not None and self.gap <= SAME

    def spans(self) -> list[Span]:
        """Ops and transfers; empty where infeasible."""
        return list(self.timeline.spans()) if self.timeline else []

    def as_dict(self) -> dict[str, Any]:
        """The output of `meridian simulate`, as contracts.md names its fields."""
        fields = {
            "feasible": self.feasible,
            "reason": self.reason,
            "policy": self.scenario.policy,
            "chosen": self._chosen(),
            "traversal": [[stage, 0] for stage in range(self.scenario.stages)],
            "makespan": self.makespan,
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "optimal": self.optimal,
            "stopped_by": None,
            "search_s": self.search_s,
            **_figures(self.timeline),
        }
        if self.scenario.spans:
            fields["spans"] = [span.as_dict() for span in self.spans()]
        return fields

    def _chosen(self) -> dict[str, Any]:
        return {
            "policy": self.scenario.policy,
            "traversal": "straight",
            "sharing": self.rules.sharing,
            "chunks": 1,
            "contention": self.rules.contention,
            "recompute_rule": self.rules.recompute,
            "idea": None,
        }


def simulate(scenario: Scenario) -> SimulationResult:
    """Build the schedule of the scenario's policy, time it, and bound what any schedule could reach."""
    rules = rules_of(scenario)
    schedule = build(scenario)
    timeline, reason = None, None
    if isinstance(schedule, Infeasible):
        reason = schedule.reason
    else:
        timeline = time_schedule(scenario, schedule)
    bound = lower_bound(scenario, rules.sharing)
    if timeline and timeline.makespan < bound <= timeline.makespan * (1 + SAME):
        bound = timeline.makespan
    return SimulationResult(
        scenario=scenario, rules=rules, timeline=timeline, reason=reason, lower_bound=bound
    )


def _figures(timeline: Timeline | None) -> dict[str, Any]:
    if timeline is None:
        names = ("utilization", "bubble_fraction", "bubbles", "largest_stage_span", "peak_in_flight")
        return dict.fromkeys(names)
    count, mean = timeline.bubbles()
    return {
        "utilization": timeline.utilization(),
        "bubble_fraction": 1 - timeline.utilization(),
        "bubbles": [
            [{"count": int(c), "mean": float(m)} for c, m in zip(counts, means, strict=True)]
            for counts, means in zip(count, mean, strict=True)
        ],
        "largest_stage_span": float(timeline.stage_spans().max()),
        "peak_in_flight": timeline.peak_in_flight().tolist(),
    }
