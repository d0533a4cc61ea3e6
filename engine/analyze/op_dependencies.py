"""What waits for what in a step of Megatron's pipeline, as ByteDance's traces record it.

The rules are those of the what-if analysis of "Understanding Stragglers in Large Model Training Using What-if
Analysis" (StragglerAnalysis). The order of ops is that of the first step on replica 0, and holds for all.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from engine.analyze import trace as ops
from engine.analyze.graph import Graph, graph_of, lanes
from engine.analyze.trace import KIND_OF, KINDS, Ints, Trace
from engine.errors import InputError

# Starts that differ by less are the same instant on clocks that are synchronised.
SAME_INSTANT_S = 5e-5

STREAMS = (ops.FORWARD_SEND, ops.FORWARD_RECV, ops.BACKWARD_SEND, ops.BACKWARD_RECV)
OVER_REPLICAS = (ops.ALL_GATHER, ops.REDUCE_SCATTER, ops.SEPARATE)
# Names in the order of the alphabet, in which ops that start together come.
_BY_NAME = np.argsort(np.argsort(np.array(KINDS)))


def op_graph(trace: Trace) -> Graph:
    """The graph of a trace of ByteDance's format.

    Raises
    ------
    InputError
        A worker has no ops, or replicas differ in their ops.
    """
    _require_all_workers(trace)
    included = np.ones(len(trace), dtype=np.bool_)
    replicas = trace.layout.replicas
    shares = replicas * trace.layout.sequence_parallel > 1
    if not shares:  # with one replica there is nobody to gather parameters from
        included &= ~trace.is_kind(*OVER_REPLICAS)
    rows, steps, notes = lanes(trace, included)
    count = _ops_of_one_replica(trace, rows)
    step = _Step(trace, rows[:count, 0], shares=shares)
    edges = np.concatenate([pairs for pairs in step.edges() if len(pairs)] or [np.zeros((0, 2), np.int64)])
    shift = np.arange(replicas, dtype=np.int64) * count
    everywhere = (edges[None] + shift[:, None, None]).reshape(-1, 2)
    groups = [group + by for group in step.groups_of_replica() for by in shift.tolist()]
    groups += [(group[None] + shift[:, None]).ravel() for group in step.groups_over_replicas()]
    return graph_of(trace, steps, rows, everywhere, groups, notes)


def _require_all_workers(trace: Trace) -> None:
    layout = trace.layout
    seen = np.zeros((layout.replicas, layout.stages), dtype=np.bool_)
    seen[trace.replica, trace.stage] = True
    if not seen.all():
        replica, stage = np.argwhere(~seen)[0].tolist()
        allowed = f"has no ops; replicas 0 to {layout.replicas - 1} and stages 0 to {layout.stages - 1} must"
        raise InputError("rank", f"replica {replica}, stage {stage}", allowed)


def _ops_of_one_replica(trace: Trace, rows: Ints) -> int:
    first = rows[:, 0]
    count = int(np.count_nonzero(trace.replica[first] == 0))
    keys = (trace.stage, trace.kind, trace.index)
    for replica in range(1, trace.layout.replicas):
        block = first[trace.replica[first] == replica]
        if len(block) != count or any(not np.array_equal(key[block], key[first[:count]]) for key in keys):
            step = int(trace.step[first[0]])
            allowed = f"its ops in step {step} differ from those of replica 0: all must record the same ops"
            raise InputError("dp_rank", replica, allowed)
    return count


class _Step:
    """The ops of the first step on replica 0, as nodes 0, 1, …, and what orders them."""

    def __init__(self, trace: Trace, rows: Ints, *, shares: bool) -> None:
        self._layout, self._shares = trace.layout, shares
        self._kind, self._stage = trace.kind[rows], trace.stage[rows]
        self._index, self._chunk = trace.index[rows], trace.chunk[rows]
        self._position = trace.position[rows]
        self._start, self._end = trace.start[rows], trace.end[rows]
        self._matches = {stage: dict(self._matched(stage)) for stage in range(self._layout.stages)}

    def edges(self) -> Iterator[Ints]:
        """Pairs (op, op that waits for it), array after array."""
        for stage in range(self._layout.stages):
            compute = self._compute(stage)
            yield _chain(compute)
            for name in STREAMS:
                yield _chain(self._by_start(stage, name))
            for name, (comms, computes, _) in self._matches[stage].items():
                yield from self._around(name, comms, computes, stage)
            yield from self._before_first_backward(stage, compute)
            if self._shares:
                yield _chain(self._by_start(stage, ops.ALL_GATHER, ops.REDUCE_SCATTER))
                yield self._gathers(stage)
            yield from self._after_compute(stage, compute)

    def groups_of_replica(self) -> list[Ints]:
        """Ops of one replica that are one communication: two ends of a transfer, and embeddings."""
        groups: list[Ints] = []
        last = self._layout.stages - 1
        for stage in range(self._layout.stages):
            for sends, receives, by in (
                (ops.FORWARD_SEND, ops.FORWARD_RECV, 1),
                (ops.BACKWARD_SEND, ops.BACKWARD_RECV, -1),
            ):
                sent = self._real(stage, sends)
                received = self._real((stage + by) % self._layout.stages, receives)
                pairs = min(len(sent), len(received))
                groups += list(np.stack([sent[:pairs], received[:pairs]], axis=1))
        if last > 0:
            ends = [self._of(stage, ops.EMBEDDING) for stage in (0, last)]
            groups += [np.array(pair) for pair in zip(*(end.tolist() for end in ends), strict=False)]
        return groups

    def groups_over_replicas(self) -> list[Ints]:
        """Ops that are one communication of all replicas: of one stage, or of all for the clipping."""
        groups = [
            np.array([node])
            for stage in range(self._layout.stages)
            for name in OVER_REPLICAS
            for node in self._of(stage, name).tolist()
        ]
        clips = np.flatnonzero(self._kind == KIND_OF[ops.CLIP])
        groups += [clips[self._index[clips] == index] for index in np.unique(self._index[clips]).tolist()]
        return groups

    def _of(self, stage: int, *names: str) -> Ints:
        """Nodes of these kinds on a stage, each kind in order of its index."""
        wanted = np.isin(self._kind, [KIND_OF[name] for name in names])
        return np.flatnonzero(wanted & (self._stage == stage))

    def _by_start(self, stage: int, *names: str) -> Ints:
        nodes = self._of(stage, *names)
        keys = (_BY_NAME[self._kind[nodes]], self._index[nodes], self._start[nodes])
        return nodes[np.lexsort(keys)]

    def _compute(self, stage: int) -> Ints:
        return self._by_start(stage, ops.FORWARD, ops.BACKWARD)

    def _matched(self, stage: int) -> Iterator[tuple[str, tuple[Ints, Ints, NDArray[np.bool_]]]]:
        """Of each kind of transfer: the ops, the compute op that each is for, and which cross to a neighbour.

        Ops that were recorded before the first compute op or after the last one were never launched.
        """
        positions = self._layout.stages * self._layout.chunks
        for name in STREAMS:
            direction, _, end = name.partition("-")
            computes = self._of(stage, f"{direction}-compute")
            comms = self._by_start(stage, name)
            if not len(computes) or not len(comms):
                continue
            if end == "recv":
                comms = comms[self._start[comms] <= self._start[computes].max() + SAME_INSTANT_S]
                # The first chunk of the model gets no activations, so its first receive may be missing.
                computes = computes[1:] if len(comms) + 1 == len(computes) else computes
            else:
                comms = comms[self._end[comms] >= self._end[computes].min() - SAME_INSTANT_S]
            pairs = min(len(comms), len(computes))
            comms, computes = comms[:pairs], computes[:pairs]
            towards = 1 if name in (ops.FORWARD_SEND, ops.BACKWARD_RECV) else -1
            peer = self._position[computes] + towards
            yield name, (comms, computes, (peer >= 0) & (peer < positions))

    def _real(self, stage: int, name: str) -> Ints:
        """Transfers of one kind that reach a neighbour, in order."""
        if name not in self._matches[stage]:
            return np.zeros(0, dtype=np.int64)
        comms, _, crosses = self._matches[stage][name]
        return comms[crosses]

    def _around(self, name: str, comms: Ints, computes: Ints, stage: int) -> Iterator[Ints]:
        """A send waits for its compute op; a receive for the compute op before the one that needs it."""
        if name.endswith("send"):
            yield _pairs(computes, comms)
            return
        yield _pairs(comms, computes)
        before = self._index[computes] > 0
        yield _pairs(computes[before] - 1, comms[before])  # nodes of a kind and stage are in order

    def _before_first_backward(self, stage: int, compute: Ints) -> Iterator[Ints]:
        """The first transfers of gradients begin when the forward before the last of the warm-up is done."""
        backward = np.flatnonzero(self._kind[compute] == KIND_OF[ops.BACKWARD])
        if not len(backward) or backward[0] < 2:
            return
        for name in (ops.BACKWARD_RECV, ops.BACKWARD_SEND):
            yield _pairs(compute[backward[0] - 2], self._of(stage, name)[:1])

    def _gathers(self, stage: int) -> Ints:
        """The last all-gather of a chunk comes before its first forward."""
        forward = self._by_start(stage, ops.FORWARD)
        last_of_chunk = {int(self._chunk[node]): node for node in self._of(stage, ops.ALL_GATHER).tolist()}
        pairs = []
        for chunk, node in last_of_chunk.items():
            users = forward[self._chunk[forward] == chunk]
            if len(users):
                pairs.append((node, int(users[0])))
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    def _after_compute(self, stage: int, compute: Ints) -> Iterator[Ints]:
        """Gradients are reduced, clipped and applied. Reductions of a chunk overlap with compute where the
        trace has separate all-reduces."""
        last = compute[[int(np.argmax(self._end[compute]))]] if len(compute) else compute
        collected = np.concatenate([last, self._of(stage, ops.GARBAGE)])
        yield _chain(collected)
        scatters = self._of(stage, ops.REDUCE_SCATTER)
        embedding = self._of(stage, ops.EMBEDDING) if stage in (0, self._layout.stages - 1) else scatters[:0]
        norms = np.concatenate([self._of(stage, ops.LAYERNORM), embedding])
        final = [self._of(stage, ops.CLIP), self._of(stage, ops.OPTIMIZER)]
        overlaps = (self._kind == KIND_OF[ops.SEPARATE]).any()
        if not overlaps:
            yield _chain(np.concatenate([collected[-1:], norms, scatters, *final]))
            return
        rest = np.concatenate([norms, self._of(stage, ops.SEPARATE), *final])
        yield _chain(np.concatenate([collected[-1:], rest]))
        if len(rest):
            yield _pairs(scatters[-1:], rest[:1])
        yield self._scatters(stage, scatters)

    def _scatters(self, stage: int, scatters: Ints) -> Ints:
        """The first reduce-scatter of a chunk waits for its last backward."""
        backward = self._of(stage, ops.BACKWARD)
        first_of_chunk = {int(self._chunk[node]): node for node in reversed(scatters.tolist())}
        pairs = []
        for chunk, node in first_of_chunk.items():
            sources = backward[self._chunk[backward] == chunk]
            if len(sources):
                pairs.append((int(sources[np.argmax(self._end[sources])]), node))
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _chain(nodes: Ints) -> Ints:
    return np.stack([nodes[:-1], nodes[1:]], axis=1).astype(np.int64)


def _pairs(before: Ints, after: Ints) -> Ints:
    before, after = np.broadcast_arrays(before, after)
    return np.stack([before, after], axis=1).astype(np.int64)
