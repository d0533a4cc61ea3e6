"""Places operations one by one in a given order, forward or backward, compiled.

Right and left justification is the forward-backward improvement of project scheduling (Li and Willis 1992;
Valls, Ballestín and Quintanilla 2005). Every operation moves as late as the end allows, then as early as the
start allows, each into the best gap. The makespan never grows.
"""

from engine.schedule.compiled import compiled
from engine.schedule.searching.timelines import last_end, put, put_earliest, put_latest, ready


@compiled
def place_early(arrays, timelines, order):
    """Places nodes (causes first) each in its earliest gap in empty timelines; returns the makespan."""
    n, microbatches = arrays.pipelines, arrays.microbatches
    for i in range(len(order)):
        row, k, m = order[i] // (n * microbatches), order[i] // microbatches % n, order[i] % microbatches
        put_earliest(arrays, timelines, row, k, m)
    return last_end(arrays, timelines)


@compiled
def place_late(arrays, timelines, order, horizon):
    """Places nodes (effects first) each in its latest gap before `horizon`; returns the earliest start."""
    n, microbatches = arrays.pipelines, arrays.microbatches
    first = horizon
    for i in range(len(order)):
        row, k, m = order[i] // (n * microbatches), order[i] // microbatches % n, order[i] % microbatches
        first = min(first, put_latest(arrays, timelines, row, k, m, horizon))
    return first


@compiled
def place_at(arrays, timelines, order, start):
    """Places nodes at their times in `start`."""
    n, microbatches = arrays.pipelines, arrays.microbatches
    for i in range(len(order)):
        row, k, m = order[i] // (n * microbatches), order[i] // microbatches % n, order[i] % microbatches
        put(arrays, timelines, row, k, m, start[row, k, m])


@compiled
def _lift(arrays, timelines, row, k, m, gates):
    if arrays.machine[row, k] >= 0:
        timelines.start[row, k, m] = max(
            timelines.start[row, k, m], ready(arrays, timelines, row, k, m, gates)
        )


@compiled
def lift(arrays, timelines, gates):
    """Raises each start to the earliest time that precedence alone allows; sorted, causes then come first.

    gates : whether the limits count, as divided among positions.
    """
    last = arrays.positions - 1
    for m in range(arrays.microbatches):
        for k in range(arrays.pipelines):
            for v in range(last):
                _lift(arrays, timelines, v, k, m, gates)
                _lift(arrays, timelines, 4 * arrays.positions + v, k, m, gates)
            for v in range(last, -1, -1):
                if v < last:
                    _lift(arrays, timelines, 4 * arrays.positions + last + v, k, m, gates)
                _lift(arrays, timelines, arrays.positions + v, k, m, gates)
                _lift(arrays, timelines, 2 * arrays.positions + v, k, m, gates)
                _lift(arrays, timelines, 3 * arrays.positions + v, k, m, gates)
