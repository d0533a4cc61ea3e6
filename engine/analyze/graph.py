"""The graph of a step: which op waits for which, and which ops are one communication.

All steps of a run have the same graph; the ops of one step after another are its lanes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.analyze.trace import COMPUTE, KINDS, Floats, Ints, Trace
from engine.errors import InputError

NO_GROUP = -1
# A transfer that ends so long before its group's last start is an error of the clocks: it takes no time.
MOST_CLOCK_ERROR_S = 0.01

_IS_COMPUTE = np.array([name in COMPUTE for name in KINDS])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Ops of a step (nodes), what each waits for, and their rows in the trace, step by step.

    rows : index into the trace, shape (nodes, steps).  steps : their numbers.  notes : what was left out.
    before_begin, before : the nodes that node i waits for are before[before_begin[i]:before_begin[i + 1]].
    group : of the nodes that are one communication, which ends `transfer` after the last of them has
        started; −1 for the others.
    members_begin, members : the nodes of each group, likewise.
    """

    trace: Trace
    steps: Ints
    rows: Ints
    before_begin: Ints
    before: Ints
    group: Ints
    members_begin: Ints
    members: Ints
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> NDArray[np.int8]:
        """Shape (nodes,), as are `replica` and `stage`."""
        return self.trace.kind[self.rows[:, 0]]

    @property
    def replica(self) -> Ints:
        return self.trace.replica[self.rows[:, 0]]

    @property
    def stage(self) -> Ints:
        return self.trace.stage[self.rows[:, 0]]

    def durations(self) -> Floats:
        """What each op took itself, shape (nodes, steps): of a group's, the time since its last start."""
        took = self.trace.duration[self.rows]
        grouped = np.flatnonzero(self.group >= 0)
        if not len(grouped):
            return took
        starts = self.trace.start[self.rows[self.members]]
        latest = np.maximum.reduceat(starts, self.members_begin[:-1], axis=0)
        transfers = self.trace.end[self.rows[grouped]] - latest[self.group[grouped]]
        transfers[transfers <= -MOST_CLOCK_ERROR_S] = 0.0
        took[grouped] = transfers
        return took

    def ideal(self, durations: Floats) -> Floats:
        """Of each node, the mean of its kind over workers and steps; the median for communication."""
        kind = self.kind
        of_kind = np.zeros(len(KINDS))
        for number in np.unique(kind):
            values = durations[kind == number]
            of_kind[number] = values.mean() if _IS_COMPUTE[number] else np.median(values)
        return of_kind[kind]


def graph_of(
    trace: Trace,
    steps: Ints,
    rows: Ints,
    edges: Ints,
    groups: list[Ints],
    notes: tuple[str, ...] = (),
) -> Graph:
    """The graph of nodes whose rows are `rows`.

    Parameters
    ----------
    edges : shape (edges, 2), each (node, a node that waits for it).
    groups : the nodes of each communication.
    """
    nodes = len(rows)
    order = np.argsort(edges[:, 1], kind="stable")
    waiting = np.bincount(edges[:, 1], minlength=nodes)
    group = np.full(nodes, NO_GROUP, dtype=np.int64)
    for number, members in enumerate(groups):
        group[members] = number
    sizes = np.array([len(members) for members in groups], dtype=np.int64)
    return Graph(
        trace=trace,
        steps=steps,
        rows=rows,
        before_begin=_begins(waiting),
        before=edges[order, 0],
        group=group,
        members_begin=_begins(sizes),
        members=np.concatenate(groups) if groups else np.zeros(0, dtype=np.int64),
        notes=notes,
    )


def _begins(sizes: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def lanes(trace: Trace, included: NDArray[np.bool_]) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Rows of the ops that are `kept`, shape (nodes, steps), the steps' numbers, and what was left out.

    Nodes are in order of replica, stage, kind and index. Steps whose ops differ from the first step's are
    left out, and a note says so.
    """
    chosen = np.flatnonzero(included)
    keys = (trace.index, trace.kind, trace.stage, trace.replica, trace.step)
    rows = chosen[_order([key[chosen] for key in keys])]
    steps, begins, counts = np.unique(trace.step[rows], return_index=True, return_counts=True)
    nodes = int(counts[0])
    first = rows[:nodes]
    same, left_out = [], []
    for number, begin, count in zip(steps.tolist(), begins.tolist(), counts.tolist(), strict=True):
        block = rows[begin : begin + count]
        if count == nodes and all(np.array_equal(key[block], key[first]) for key in keys[:-1]):
            same.append(block)
        else:
            left_out.append(number)
    _require_once(trace, first)
    kept_steps = np.setdiff1d(steps, left_out).astype(np.int64)
    notes: tuple[str, ...] = ()
    if left_out:
        shown = ", ".join(map(str, left_out[:5])) + (", …" if len(left_out) > 5 else "")
        notes = (
            f"Left out: {len(left_out)} of {len(steps)} steps, whose ops differ from step "
            f"{steps[0]}'s ({shown}).",
        )
    return np.stack(same, axis=1), kept_steps, notes


def _order(keys: list[NDArray[Any]]) -> Ints:
    """As `np.lexsort`: by the last key, then by the one before; one sort if all fit into one number."""
    joined, size = np.zeros(len(keys[0]), dtype=np.int64), 1
    for key in keys:
        least, most = int(key.min()), int(key.max())
        if size * (most - least + 1) >= 2**62:
            return np.lexsort(keys)
        joined += (key.astype(np.int64) - least) * size
        size *= most - least + 1
    return np.argsort(joined, kind="stable")


def _require_once(trace: Trace, rows: Ints) -> None:
    twice = np.ones(max(len(rows) - 1, 0), dtype=np.bool_)
    for key in (trace.index, trace.kind, trace.stage, trace.replica):
        twice &= key[rows[1:]] == key[rows[:-1]]
    if twice.any():
        row = rows[int(np.argmax(twice))]
        what = f"{KINDS[trace.kind[row]]} of replica {trace.replica[row]}, stage {trace.stage[row]}"
        allowed = f"is there twice: {what} in step {trace.step[row]}"
        raise InputError("seq_id", int(trace.index[row]), allowed)
