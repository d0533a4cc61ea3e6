"""The answer of `meridian simulate`: a schedule's figures, its bound, and its spans."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.errors import Infeasible
from engine.schedule import Built, Chosen, Frame, Schedule, Search, Traversal, build, policy_of
from engine.schedule.check import fault_of, fits
from engine.schedule.scenario import Scenario
from engine.schedule.search import StoppedBy
from engine.schedule.timing import DeadlockError
from engine.simulate.bounds import lower_bound
from engine.simulate.jitter import Robustness, draw, drawn_bound, robustness
from engine.simulate.spans import Span
from engine.simulate.timeline import Timeline, time_schedule, timeline_of

# Makespan and bound are sums of the same durations in different orders.
SAME = 1e-9
# The draw of a scenario with jitter that is shown.
ONE_DRAW = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """One policy on one scenario: a timeline, or the reason why there is none.

    chosen : the policy's choices; None if infeasible.
    lower_bound : proven for every schedule with the same traversal and sharing, or with any that the policy
        could choose from, whatever its sends.
    search_s : seconds that a search took; 0 for policies that do not search.
    planned_makespan : with jitter, the schedule's makespan without it; the timeline is that of one draw, and
        `lower_bound` holds for every order of the drawn ops.
    robustness : with jitter, makespans over many draws.
    """

    scenario: Scenario
    chosen: Chosen | None
    traversal: Traversal
    timeline: Timeline | None
    reason: str | None
    lower_bound: float
    stopped_by: StoppedBy | None = None
    search_s: float = 0.0
    planned_makespan: float | None = None
    robustness: Robustness | None = None

    @property
    def feasible(self) -> bool:
        return self.timeline is not None

    @property
    def makespan(self) -> float | None:
        return self.timeline.makespan if self.timeline else None

    @property
    def gap(self) -> float | None:
        """makespan / lower_bound − 1; 0 if the schedule is proven to be the best."""
        return self.timeline.makespan / self.lower_bound - 1 if self.timeline else None

    @property
    def optimal(self) -> bool:
        return self.gap is not None and self.gap <= SAME

    def spans(self) -> list[Span]:
        """Ops and transfers; empty if infeasible."""
        return list(self.timeline.spans()) if self.timeline else []

    def as_dict(self) -> dict[str, Any]:
        """The output of `meridian simulate`, as docs/dev/contracts.md names its fields."""
        fields = {
            "feasible": self.feasible,
            "reason": self.reason,
            "policy": self.scenario.policy,
            "chosen": asdict(self.chosen) if self.chosen else None,
            "traversal": [list(position) for position in self.traversal.positions],
            "makespan": self.makespan,
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "optimal": self.optimal,
            "stopped_by": self.stopped_by,
            "search_s": self.search_s,
            **self._varied(),
            **_figures(self.timeline),
        }
        if self.scenario.spans:
            fields["spans"] = [span.as_dict() for span in self.spans()]
        return fields

    def _varied(self) -> dict[str, Any]:
        if self.scenario.jitter == 0:
            return {}
        drawn = asdict(self.robustness) if self.robustness else None
        return {"planned_makespan": self.planned_makespan, "robustness": drawn}


def simulate(scenario: Scenario, search: Search | None = None) -> SimulationResult:
    """Build the schedule of the scenario's policy, time it, and bound the makespan of any schedule.

    search : limits and callbacks of a search; by default the scenario's own time limit and seed.
    """
    frames = policy_of(scenario.policy).frames(scenario)
    bound = min(lower_bound(scenario, frame) for frame in frames)
    search = replace(search or Search(seconds=scenario.time_limit_s, seed=scenario.seed), bound=bound)
    built = build(scenario, search)
    if isinstance(built, Infeasible):
        return SimulationResult(
            scenario=scenario,
            chosen=None,
            traversal=frames[0].traversal,
            timeline=None,
            reason=built.reason,
            lower_bound=bound,
            stopped_by=built.stopped_by,
        )
    try:
        return _result(scenario, built, bound, search.elapsed_s)
    except DeadlockError as error:  # only with sends that block, over links that pipelines share
        return SimulationResult(
            scenario=scenario,
            chosen=None,
            traversal=built.schedule.traversal,
            timeline=None,
            reason=f"sends: with {scenario.sends} ones {error}",
            lower_bound=bound,
        )


def simulate_schedule(scenario: Scenario, schedule: Schedule) -> SimulationResult:
    """Time a schedule that a person wrote; infeasible, with a grid in the reason, if it is not valid.

    The scenario's policy is not used.
    """
    frame = Frame(traversal=schedule.traversal, sharing=schedule.sharing)
    bound = lower_bound(scenario, frame) if fits(scenario, schedule) else 0.0
    reason = fault_of(scenario, schedule)
    if reason is None:
        chosen = Chosen(
            policy="custom",
            traversal=schedule.traversal.name,
            sharing=schedule.sharing,
            chunks=schedule.chunks,
        )
        try:
            return _result(scenario, Built(schedule=schedule, chosen=chosen), bound, 0.0)
        except DeadlockError as error:
            reason = f"schedule: {error}"
    return SimulationResult(
        scenario=scenario,
        chosen=None,
        traversal=schedule.traversal,
        timeline=None,
        reason=reason,
        lower_bound=bound,
    )


def _result(scenario: Scenario, built: Built, bound: float, elapsed_s: float) -> SimulationResult:
    schedule = built.schedule
    timeline = timeline_of(scenario, built)
    stopped_by = built.stopped_by
    if stopped_by == "proven" and scenario.sends != "overlapped":
        stopped_by = None  # that is of overlapped sends
    planned, bound = timeline.makespan, max(bound, built.lower_bound)
    if scenario.jitter > 0:
        drawn = draw(scenario, schedule, ONE_DRAW)
        timeline = time_schedule(scenario, schedule, drawn)
        bound = drawn_bound(scenario, schedule, drawn)
    if timeline.makespan < bound <= timeline.makespan * (1 + SAME):
        bound = timeline.makespan
    return SimulationResult(
        scenario=scenario,
        chosen=built.chosen,
        traversal=schedule.traversal,
        timeline=timeline,
        reason=None,
        lower_bound=bound,
        stopped_by=stopped_by,
        search_s=elapsed_s if built.searched else 0.0,
        planned_makespan=planned if scenario.jitter > 0 else None,
        robustness=robustness(scenario, schedule),
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
