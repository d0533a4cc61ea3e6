"""The simulator: times schedules, and says how good they are and how good they could be."""

from engine.schedule.timing import DeadlockError
from engine.simulate.bounds import lower_bound
from engine.simulate.compare import Compared, SweepDocument, SweepRow, compare, sweep
from engine.simulate.result import SimulationResult, simulate, simulate_schedule
from engine.simulate.spans import Span
from engine.simulate.timeline import Timeline, time_schedule, timeline_of

__all__ = [
    "Compared",
    "DeadlockError",
    "SimulationResult",
    "Span",
    "SweepDocument",
    "SweepRow",
    "Timeline",
    "compare",
    "lower_bound",
    "simulate",
    "simulate_schedule",
    "sweep",
    "time_schedule",
    "timeline_of",
]
