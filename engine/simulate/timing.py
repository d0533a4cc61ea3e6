"""Computes the time of every op and transfer of a Schedule."""

from engine.schedule.ir import Schedule
from engine.schedule.scenario import Scenario
from engine.schedule.timing import Jitter, time_ops
from engine.simulate.timeline import Timeline


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
