"""What waits for what in a step of a pipeline whose trace has the ops of each microbatch."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from engine.analyze import trace as ops
from engine.analyze.graph import Graph, graph_of, lanes
from engine.analyze.trace import KIND_OF, Ints, Trace

ON_GPU = (ops.FORWARD, ops.RECOMPUTE, ops.BACKWARD, ops.WEIGHT, ops.ALL_REDUCE, ops.OPTIMIZER)
LINKS = (ops.FORWARD_LINK, ops.BACKWARD_LINK)
LATENCIES = {ops.FORWARD_LINK: ops.FORWARD_LATENCY, ops.BACKWARD_LINK: ops.BACKWARD_LATENCY}
NONE = -1


def span_graph(trace: Trace) -> Graph:
    """The graph of a trace of forwards and backwards by microbatch, of the steps that are alike.

    A GPU runs its ops in the order of the first step, and a link its transfers. A forward waits for the one
    before it on the path of the model, a backward for the one behind it, over a transfer where there is one.

    Raises
    ------
    InputError
        An op is there twice.
    """
    included = trace.is_kind(*ON_GPU, *LINKS, *LATENCIES.values())
    rows, steps, notes = lanes(trace, included)
    step = _Step(trace, rows[:, 0])
    edges = np.concatenate([*step.edges(), np.zeros((0, 2), dtype=np.int64)])
    return graph_of(trace, steps, rows, edges, step.groups(), notes)


class _Step:
    """The ops of the first step as nodes, and what orders them."""

    def __init__(self, trace: Trace, rows: Ints) -> None:
        self._kind, self._replica, self._stage = trace.kind[rows], trace.replica[rows], trace.stage[rows]
        self._index, self._start, self._end = trace.index[rows], trace.start[rows], trace.end[rows]
        self._position, self._microbatch = trace.position[rows], trace.microbatch[rows]
        self._layout = trace.layout
        self._positions = int(self._position.max()) + 1
        self._microbatches = int(self._microbatch.max()) + 1

    def edges(self) -> Iterator[Ints]:
        """Pairs (op, op that waits for it), array after array."""
        gpu = self._replica * self._layout.stages + self._stage
        yield self._chains(np.flatnonzero(self._is(*ON_GPU)), gpu)
        for name in LINKS:
            yield self._chains(np.flatnonzero(self._is(name)), self._link(name))
        forward, backward = self._table(ops.FORWARD), self._table(ops.BACKWARD)
        yield from self._crossed(forward[:, :-1], forward[:, 1:], ops.FORWARD_LINK, shift=0)
        yield from self._crossed(backward[:, 1:], backward[:, :-1], ops.BACKWARD_LINK, shift=1)
        yield _pairs(forward[:, -1:], backward[:, -1:])

    def groups(self) -> list[Ints]:
        """All-reduces of the replicas of one stage."""
        nodes = np.flatnonzero(self._is(ops.ALL_REDUCE))
        keys = self._stage[nodes] * (int(self._index.max()) + 1) + self._index[nodes]
        return [nodes[keys == key] for key in np.unique(keys).tolist()]

    def _is(self, *names: str) -> NDArray[np.bool_]:
        return np.isin(self._kind, [KIND_OF[name] for name in names])

    def _chains(self, nodes: Ints, track: Ints) -> Ints:
        """Each op waits for the one before it on its track."""
        order = nodes[np.lexsort((self._end[nodes], self._start[nodes], track[nodes]))]
        same = track[order[1:]] == track[order[:-1]]
        return np.stack([order[:-1][same], order[1:][same]], axis=1)

    def _link(self, name: str) -> Ints:
        """The link of each transfer: of all replicas where their transfers never overlap, else of each."""
        shared = self._stage.copy()
        nodes = np.flatnonzero(self._is(name))
        order = nodes[np.lexsort((self._start[nodes], self._stage[nodes]))]
        same = self._stage[order[1:]] == self._stage[order[:-1]]
        late = self._end[order[:-1]] > self._start[order[1:]] + 1e-9 * (1 + np.abs(self._end[order[:-1]]))
        if (same & late).any():
            shared = shared + self._layout.stages * self._replica
        return shared

    def _table(self, name: str) -> Ints:
        """Node of each op of a kind, shape (replicas, positions, microbatches); −1 where there is none."""
        shape = (self._layout.replicas, self._positions, self._microbatches)
        table = np.full(shape, NONE, dtype=np.int64)
        nodes = np.flatnonzero(self._is(name) & (self._position >= 0) & (self._microbatch >= 0))
        table[self._replica[nodes], self._position[nodes], self._microbatch[nodes]] = nodes
        return table

    def _crossed(self, source: Ints, needed: Ints, link: str, *, shift: int) -> Iterator[Ints]:
        """From the producing op over its transfer and latency, if there are any, to the op that needs it."""
        at = slice(shift, self._positions - 1 + shift)
        for name in (link, LATENCIES[link]):
            crossing = self._table(name)[:, at]
            yield _pairs(source, crossing)
            source = np.where(crossing == NONE, source, crossing)
        yield _pairs(source, needed)


def _pairs(before: Ints, after: Ints) -> Ints:
    there = (before != NONE) & (after != NONE)
    return np.stack([before[there], after[there]], axis=1)
