"""What one cell takes at least, from running sums alone: no schedule is built.

Let W be the time of one microbatch alone, all the way there and back. A stage does all its work after the
first microbatch has reached it and before the last gradient has gone back from it; each microbatch keeps it
busy for F, B and the lesser of R and the rest of W beyond the stage, since without R nothing runs there
between F and B. A hop carries all microbatches one way, and only the last of them still has to go on: W and
all transfers less one.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from engine.plan.search.problem import Floats, Problem


def least_ms(problem: Problem, route: Sequence[int], split: Sequence[int]) -> float:
    """A proven bound on the milliseconds of one cell's forward and backward passes."""
    microbatches, pipelines = problem.job.microbatches, problem.job.cell_pipelines
    starts = [0, *itertools.accumulate(split)]
    parts = [
        (problem.times_at(dc), a, b) for dc, (a, b) in zip(route, itertools.pairwise(starts), strict=True)
    ]
    forward = np.concatenate([times.forward[a:b] for times, a, b in parts])
    backward = np.concatenate([times.backward[a:b] for times, a, b in parts])
    recompute = np.concatenate([times.recompute[a:b] for times, a, b in parts])
    hops = [problem.hops[pair] for pair in itertools.pairwise(route)]
    # a cell's links together carry one transfer at a time in an n-th of the time, or each carries its own
    one_way = [hop.transfer / pipelines + hop.latency for hop in hops]
    before: Floats = np.zeros(len(forward))  # there and back, of one microbatch alone
    before[1:] = np.cumsum(forward + backward)[:-1]
    for start, seconds in zip(starts[1:-1], one_way, strict=True):
        before[start:] += 2 * seconds
    alone = float(before[-1] + forward[-1] + backward[-1])
    beyond = alone - before - forward - backward
    beyond[-1] = 0.0
    work = microbatches * (forward + backward + np.minimum(recompute, beyond))
    carried = [hop.transfer * (microbatches - 1 / pipelines) for hop in hops]
    return max(float(np.max(before + work)), alone + max(carried, default=0.0))
