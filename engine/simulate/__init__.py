"""What would happen? Times schedules, and says how good they are and how good they could be."""

from engine.simulate.bounds import lower_bound
from engine.simulate.result import SimulationResult, simulate
from engine.simulate.spans import Span
from engine.simulate.timeline import Timeline
from engine.simulate.timing import DeadlockError, time_schedule

__all__ = [
    "DeadlockError",
    "SimulationResult",
    "Span",
    "Timeline",
    "lower_bound",
    "simulate",
    "time_schedule",
]
