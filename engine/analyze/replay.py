"""Replays the steps of a trace without launch delays, with measured or ideal durations."""

import numpy as np
from numpy.typing import NDArray

from engine.analyze.graph import Graph
from engine.analyze.kernels import replay as kernel
from engine.analyze.trace import KIND_OF, OPTIMIZER, Floats, Ints
from engine.errors import InputError


class Replay:
    """Replays one graph again and again.

    durations : of each op as measured, shape (nodes, steps).  ideal : shape (nodes,).

    Raises
    ------
    InputError
        The ops of the trace wait for each other.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.durations = graph.durations()
        self.ideal = graph.ideal(self.durations)
        self._plan = _plan(graph)
        self._start, self._end = np.zeros_like(self.durations), np.zeros_like(self.durations)
        last = np.flatnonzero(graph.kind == KIND_OF[OPTIMIZER])
        self._last = last if len(last) else np.arange(len(graph.rows))

    def step_times(self, measured: NDArray[np.bool_]) -> Floats:
        """Seconds of each step, shape (steps,); `measured` nodes take their own durations, others the ideal.

        A step ends with its last optimizer, or its last op where the trace has none.
        """
        return self.times(measured)[1][self._last].max(axis=0)

    def times(self, measured: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Start and end of each op, shape (nodes, steps); the next replay writes over them."""
        started = np.zeros(len(self.graph.members_begin), dtype=np.int64)
        kernel.replay(self._plan, self.durations, self.ideal, measured, started, self._start, self._end)
        return self._start, self._end

    def critical_path(self, step: int) -> list[int]:
        """Nodes of the longest chain of causes in the replay of a step as measured, first to last."""
        graph = self.graph
        everything = np.ones(len(graph.rows), dtype=np.bool_)
        start, end = (times[:, step] for times in self.times(everything))
        node = int(self._last[np.argmax(end[self._last])])
        path = []
        while True:
            group = int(graph.group[node])
            if group >= 0:  # the member that started last made the others wait
                members = graph.members[graph.members_begin[group] : graph.members_begin[group + 1]]
                latest = int(members[np.argmax(start[members])])
                if start[latest] > start[node]:
                    node = latest
            path.append(node)
            before = graph.before[graph.before_begin[node] : graph.before_begin[node + 1]]
            if not len(before) or start[node] <= 0:
                return path[::-1]
            node = int(before[np.argmax(end[before])])


def _plan(graph: Graph) -> kernel.Plan:
    nodes = len(graph.rows)
    missing = np.diff(graph.before_begin)
    of = np.repeat(np.arange(nodes), missing)
    by_cause = np.argsort(graph.before, kind="stable")
    after_begin = np.concatenate([[0], np.cumsum(np.bincount(graph.before, minlength=nodes))]).astype(
        np.int64
    )
    order: Ints = np.zeros(nodes, dtype=np.int64)
    plan = kernel.Plan(
        order, graph.before_begin, graph.before, graph.group, graph.members_begin, graph.members
    )
    started = np.zeros(len(graph.members_begin), dtype=np.int64)
    placed = kernel.sort(plan, after_begin, of[by_cause], missing.copy(), started)
    if placed < nodes:
        allowed = "ops wait for each other in a circle: their starts do not fit one order"
        raise InputError("start_ts", f"{nodes - placed} of {nodes} ops", allowed)
    return plan
