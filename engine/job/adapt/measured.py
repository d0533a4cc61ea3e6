"""What ops and transfers take, measured and planned, in milliseconds, by kind.

A quantity is named ("F", 2), an op of a kind on a stage (all its chunks together), ("link", 1, 2), the time
for which a message holds the link between two stages, the lower one first, or ("latency", 1, 2), how long it
then travels. A schedule knows one time for all pipelines, so of several GPUs or directions the slowest
counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engine.inputs import parse
from engine.job.events import incidents
from engine.job.job import TrainJob
from engine.schedule.ir import NO_OP, OpKind, Schedule, Sharing
from engine.schedule.scenario import Scenario
from engine.schedule.timing import durations
from engine.simulate.spans import Span

LINK, LATENCY = "link", "latency"
LEAST_DRIFT_MS = {LATENCY: 1.0}  # a busy processor answers a ping so much later
Quantity = tuple[str, int] | tuple[str, int, int]
Measured = Mapping[Quantity, float]
_TIMED = frozenset(kind.name for kind in OpKind)
_FIELD_OF: dict[OpKind, Literal["forward", "recompute", "backward", "weight"]] = {
    OpKind.F: "forward",
    OpKind.R: "recompute",
    OpKind.B: "backward",
    OpKind.W: "weight",
}


def planned(scenario: Scenario, schedule: Schedule) -> dict[Quantity, float]:
    """The planned times of `schedule` in `scenario`, for every quantity that a run measures."""
    whole = durations(scenario, 1, split=schedule.has(OpKind.W))
    runs = {
        kind: np.any((schedule.ops != NO_OP) & ((schedule.ops & 3) == kind), axis=(0, 2)) for kind in OpKind
    }
    held_ms: dict[Quantity, float] = {
        (kind.name, stage): float(whole[kind, stage])
        for kind in OpKind
        for stage in range(scenario.stages)
        if runs[kind][stage] and whole[kind, stage] > 0
    }
    holds = scenario.hop_times(schedule.sharing)
    for hop, (low, high) in wan_hops(scenario).items():
        if holds[hop] > 0 and hop in schedule.traversal.hop_of:
            held_ms[LINK, low, high] = float(holds[hop])
            if scenario.hop_latency[hop] > 0:
                held_ms[LATENCY, low, high] = float(scenario.hop_latency[hop])
    return held_ms


def summary(spans: Iterable[Span]) -> list[list[Any]]:
    """One rank's measurements of an iteration, as JSON: rows of a quantity's name and milliseconds.

    Of ops the median, by chunk and summed. Of transfers the shortest: what holds a message up beyond its
    link only adds to it. Of latencies, which the transport measures by itself, the last.
    """
    ops: dict[tuple[str, int], dict[int, list[float]]] = {}
    links: dict[tuple[int, int], float] = {}
    ways: dict[tuple[int, int], float] = {}
    for span in spans:
        lasted_ms = (span.end - span.start) * 1e3
        if span.track == "gpu" and span.op in _TIMED and span.stage is not None:
            ops.setdefault((str(span.op), span.stage), {}).setdefault(span.chunk or 0, []).append(lasted_ms)
        elif span.track == "wan" and span.from_stage is not None and span.to_stage is not None:
            ends = min(span.from_stage, span.to_stage), max(span.from_stage, span.to_stage)
            links[ends] = min(links.get(ends, lasted_ms), lasted_ms)
            if span.arrives is not None:
                ways[ends] = (span.arrives - span.end) * 1e3
    rows: list[list[Any]] = [[*name, sum(map(median, by_chunk.values()))] for name, by_chunk in ops.items()]
    rows += [[LATENCY, *ends, ms] for ends, ms in ways.items()]
    return rows + [[LINK, *ends, shortest] for ends, shortest in links.items()]


def slowest(summaries: Iterable[list[list[Any]]]) -> dict[Quantity, float]:
    """The summaries of all ranks as one: of each quantity the largest."""
    longest_ms: dict[Quantity, float] = {}
    for rows in summaries:
        for name, lasted_ms in of_rows(rows).items():
            longest_ms[name] = max(longest_ms.get(name, 0.0), lasted_ms)
    return longest_ms


def scenario_as_measured(job: TrainJob, sharing: Sharing | None, factors: Measured) -> Scenario:
    """The job's scenario with every time multiplied by its quantity's factor; 1 where there is none.

    sharing : that of a schedule; None leaves it to the policy.

    Of a backward pass that was measured whole both parts take the factor; a recomputation of which there is
    no factor takes that of the forward pass.
    """
    scenario = job.scenario
    stages = range(scenario.stages)

    def factor(kind: OpKind, stage: int) -> float:
        stand_in = {OpKind.R: OpKind.F, OpKind.W: OpKind.B}.get(kind, kind)
        return factors.get((kind.name, stage), factors.get((stand_in.name, stage), 1.0))

    times = {
        field: [float(ms) * factor(kind, s) for s, ms in zip(stages, scenario.per_stage(field), strict=True)]
        for kind, field in _FIELD_OF.items()
    }
    wan = [
        {
            "latency": link.latency * factors.get((LATENCY, *ends), 1.0),
            "transfer": link.transfer * factors.get((LINK, *ends), 1.0),
        }
        for link, ends in ((scenario.hop_links[hop], ends) for hop, ends in wan_hops(scenario).items())
    ]
    values = {**scenario.model_dump(), "times": times, "sharing": sharing}
    return parse(Scenario, {**values, "wan": wan or values["wan"]})


def as_rows(times: Measured) -> tuple[tuple[Any, ...], ...]:
    """Times by quantity as JSON has them: rows of a quantity's name and milliseconds."""
    return tuple((*name, round(ms, 6)) for name, ms in times.items())


def of_rows(rows: Iterable[Any]) -> dict[Quantity, float]:
    """The inverse of `as_rows`. Raises TypeError or ValueError where the rows are none."""
    return {tuple(name): float(ms) for *name, ms in rows}


def work_ms(scenario: Scenario) -> NDArray[np.float64]:
    """What a microbatch takes on each stage: forward, recomputed and backward."""
    return np.sum([scenario.per_stage(field) for field in _FIELD_OF.values()], axis=0)


def wan_hops(scenario: Scenario) -> dict[int, tuple[int, int]]:
    """The two stages of each WAN hop, the lower one first; the last hop is that of a loop."""
    ends = {int(hop): (int(hop), int(hop) + 1) for hop in np.flatnonzero(scenario.hop_is_wan[:-1])}
    if scenario.wraps_over_wan:
        ends[scenario.stages - 1] = (0, scenario.stages - 1)
    return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A quantity that took another time than planned, in milliseconds."""

    quantity: Quantity
    planned_ms: float
    measured_ms: float

    def reported(self) -> incidents.Deviation:
        """As an `adapted` event has it."""
        what, *at = self.quantity
        return incidents.Deviation(
            what=incidents.TimedWork(what),
            at=tuple(at),
            planned_ms=round(self.planned_ms, 3),
            measured_ms=round(self.measured_ms, 3),
        )
