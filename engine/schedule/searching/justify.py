"""Places operations one by one in a given order, forward or backward, compiled.

Right and left justification (the forward-backward improvement of project scheduling: Li and Willis 1992;
Valls, Ballestín and Quintanilla 2005): everything moves as late as the end allows, then as early as the start
allows, each operation into the best gap. The makespan never grows.
"""

from engine.schedule.compiled import compiled
from engine.schedule.searching.timelines import last_end, put, put_earliest, put_latest, ready


@compiled
def place_early(plan, timelines, order):
    """Places nodes (causes first) each in its earliest gap in empty timelines; returns the makespan."""
    n, microbatches = plan.pipelines, plan.microbatches
    for i in range(len(order)):
        row, k, m = order[i] // (n * microbatches), order[i] // microbatches % n, order[i] % microbatches
        put_earliest(plan, timelines, row, k, m)
    return last_end(plan, timelines)


@compiled
def place_late(plan, timelines, order, horizon):
    """Places nodes (effects first) each in its latest gap before `horizon`; returns the earliest start."""
    n, microbatches = plan.pipelines, plan.microbatches
    first = horizon
    for i in range(len(order)):
        row, k, m = order[i] // (n * microbatches), order[i] // microbatches % n, order[i] % microbatches
        first = min(first, put_latest(plan, timelines, row, k, m, horizon))
    return first


@compiled
def place_at(plan, timelines, order, start):
    """Places nodes where `start` says."""
    n, microbatches = plan.pipelines, plan.microbatches
    for i in range(len(order)):
        row, k, m = order[i] // (n * microbatches), order[i] // microbatches % n, order[i] % microbatches
        put(plan, timelines, row, k, m, start[row, k, m])


@compiled
def _lift(plan, timelines, row, k, m, gates):
    if plan.machine[row, k] >= 0:
        timelines.start[row, k, m] = max(timelines.start[row, k, m], ready(plan, timelines, row, k, m, gates))


@compiled
def lift(plan, timelines, gates):
    """Raises each start to the earliest time that precedence alone allows; sorted, causes then come first.

    gates : whether the limits count, as dealt out to places.
    """
    last = plan.places - 1
    for m in range(plan.microbatches):
        for k in range(plan.pipelines):
            for v in range(last):
                _lift(plan, timelines, v, k, m, gates)
                _lift(plan, timelines, 4 * plan.places + v, k, m, gates)
            for v in range(last, -1, -1):
                if v < last:
                    _lift(plan, timelines, 4 * plan.places + last + v, k, m, gates)
                _lift(plan, timelines, plan.places + v, k, m, gates)
                _lift(plan, timelines, 2 * plan.places + v, k, m, gates)
                _lift(plan, timelines, 3 * plan.places + v, k, m, gates)
