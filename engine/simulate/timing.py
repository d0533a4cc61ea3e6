"""Computes the time of every op and transfer of a Schedule."""

from engine.schedule.ir import Schedule
from engine.schedule.scenario import Scenario
from engine.schedule.search import Built
from engine.schedule.timing import Jitter, time_ops
from engine.simulate.timeline import Timeline


def timeline_of(scenario: Scenario, built: Built) -> Timeline:
    """The timeline of what a policy built for `scenario`, timed unless it was timed to be chosen."""
    timing = built.timing or time_ops(scenario, built.schedule)
    return Timeline.of(scenario, built.schedule, timing)


def time_schedule(scenario: Scenario, schedule: Schedule, jitter: Jitter | None = None) -> Timeline:
    """Return when each op and transfer of `schedule` runs, each as early as its order allows.

    Raises
    ------
    ValueError
        The schedule is for another shape of cell than the scenario.
    DeadlockError
        Ops wait for each other; the message is a grid of the orders that marks the next op of each GPU.
    """
    return Timeline.of(scenario, schedule, time_ops(scenario, schedule, jitter))
