"""The event model of a swap step: closed form, longest path, and a checker of its intervals."""

import itertools
from collections.abc import Sequence

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan.swap.events import Interval, Machine, Step, Visit, atom_order, naive_order, steady_step
from engine.plan.swap.layers import SubModel

SUB = st.builds(
    lambda memory, gradients, forward, backward, load: SubModel(
        first=0,
        last=0,
        memory_bytes=float(memory + gradients),
        forward_s=float(forward),
        backward_s=float(backward),
        load_s=float(load),
        parameter_bytes=float(gradients),
    ),
    memory=st.integers(0, 5),
    gradients=st.integers(0, 5),
    forward=st.integers(1, 5),
    backward=st.integers(1, 8),
    load=st.integers(0, 12),
)
SUBS = st.lists(SUB, min_size=1, max_size=6)


def machine(c: int, *, out: float | None = None, room: float | None = None) -> Machine:
    return Machine(accumulation=c, gradients_out_bytes_per_s=out, room_bytes=room)


def pairs_room(subs: Sequence[SubModel]) -> float:
    """Memory that two neighbours just fit into."""
    alone = [sub.memory_bytes for sub in subs]
    return max([*alone, *(a + b for a, b in itertools.pairwise(alone))])


@settings(max_examples=200, deadline=None)
@given(subs=SUBS, c=st.integers(1, 4))
def test_with_gradients_on_the_device_a_visit_lasts_as_long_as_it_or_the_load_beside_it(
    subs: list[SubModel], c: int
) -> None:
    n = len(subs)
    forward = [max(c * subs[i].forward_s, subs[i + 1].load_s) for i in range(n - 1)]
    backward = [max(c * subs[i].backward_s, subs[i - 1].load_s) for i in range(1, n)]
    stored = c * (subs[-1].forward_s + subs[0].backward_s)
    step = steady_step(subs, atom_order(n), machine(c))
    assert step.step_s == pytest.approx(sum(forward) + sum(backward) + stored)
    assert step.busy_s == pytest.approx(c * sum(sub.forward_s + sub.backward_s for sub in subs))
    assert sum(i.kind == "load" for i in step.intervals) == 2 * (n - 1)


@settings(max_examples=200, deadline=None)
@given(subs=SUBS)
def test_the_naive_order_loads_at_every_visit(subs: list[SubModel]) -> None:
    """At its two turns the sub-model must have left before it comes again: running and loading add up."""
    n = len(subs)
    order = naive_order(n)
    expected = 0.0
    for visit, after in zip(order, (*order[1:], order[0]), strict=True):
        sub = subs[visit.sub]
        runs, loads = (sub.forward_s if visit.op == "F" else sub.backward_s), subs[after.sub].load_s
        expected += runs + loads if after.sub == visit.sub else max(runs, loads)
    step = steady_step(subs, order, machine(1))
    assert step.step_s == pytest.approx(expected)
    assert sum(i.kind == "load" for i in step.intervals) == 2 * n


@settings(max_examples=150, deadline=None)
@given(subs=SUBS, c=st.integers(1, 4), out=st.sampled_from([0.5, 1.0, 4.0]), spare=st.integers(0, 8))
def test_gradients_that_go_out_never_overfill_the_memory(
    subs: list[SubModel], c: int, out: float, spare: int
) -> None:
    room = pairs_room(subs) + spare
    step = steady_step(subs, atom_order(len(subs)), machine(c, out=out, room=room))
    check(subs, step, room)
    stay = steady_step(subs, atom_order(len(subs)), machine(c))
    endless = steady_step(subs, atom_order(len(subs)), machine(c, out=out, room=1e9))
    assert stay.step_s - 1e-9 <= endless.step_s <= step.step_s + 1e-9


def check(subs: Sequence[SubModel], step: Step, room: float) -> None:
    """Streams serial, visits after their loads, and memory at any time; over three rounds in a row."""
    intervals = [
        Interval(kind=i.kind, visit=i.visit, start=i.start + k * step.step_s, end=i.end + k * step.step_s)
        for k in range(3)
        for i in step.intervals
    ]
    for kind in ("visit", "load", "out"):
        stream = sorted((i.start, i.end) for i in intervals if i.kind == kind)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(stream))
    visits = [i for i in intervals if i.kind == "visit"]
    loads = [i for i in intervals if i.kind == "load"]
    # the load of a visit is the last one of its sub-model that starts before it
    for visit in visits:
        if visit.visit.loads:
            mine = [load for load in loads if load.visit == visit.visit and load.start <= visit.start]
            assert not mine or mine[-1].end <= visit.start + 1e-9
    for time in [i.start for i in loads]:
        assert held(subs, intervals, time) <= room + 1e-9


def held(subs: Sequence[SubModel], intervals: Sequence[Interval], time: float) -> float:
    """Bytes on the device just after `time`: what runs, what loads, and gradients on their way out."""
    running = {i.visit.sub for i in intervals if i.kind == "visit" and i.start - 1e-9 <= time < i.end - 1e-9}
    loading = {i.visit.sub for i in intervals if i.kind == "load" and i.start <= time < i.end}
    leaving = [
        i.visit.sub
        for i in intervals
        if i.kind == "out" and out_begins(intervals, i) <= time + 1e-9 and time < i.end - 1e-9
    ]
    resident = running | loading
    return sum(subs[s].memory_bytes for s in resident) + sum(
        subs[s].parameter_bytes for s in leaving if s not in running
    )


def out_begins(intervals: Sequence[Interval], out: Interval) -> float:
    """Gradients wait for their stream on the device: from the end of the visit that made them."""
    return max(
        i.end for i in intervals if i.kind == "visit" and i.visit == out.visit and i.end <= out.start + 1e-9
    )


@settings(max_examples=60, deadline=None)
@given(
    subs=st.lists(SUB, min_size=1, max_size=3),
    c=st.integers(1, 2),
    naive=st.booleans(),
    out=st.sampled_from([None, 0.25, 0.5, 1.0]),
)
def test_the_step_is_the_longest_path_of_the_unrolled_rounds(
    subs: list[SubModel], c: int, naive: bool, out: float | None
) -> None:
    order = naive_order(len(subs)) if naive else atom_order(len(subs))
    # a backlog of gradients grows by at least 1 s a round, to no more than a round: that many rounds settle
    intervals = 4 + int(sum(c * (s.forward_s + s.backward_s) + 2 * s.load_s for s in subs))
    starts = unrolled(subs, list(order) * intervals, c, out if len(subs) > 1 else None)
    last = (intervals - 1) * len(order)
    per_round = starts[last] - starts[last - len(order)]
    assert steady_step(subs, order, machine(c, out=out)).step_s == pytest.approx(per_round)


def unrolled(subs: Sequence[SubModel], visits: Sequence[Visit], c: int, out: float | None) -> list[float]:
    """When each visit starts: longest paths over everything that must be over by then."""
    graph = nx.DiGraph()
    loads: list[int] = []
    outs: list[int] = []
    for i, visit in enumerate(visits):
        sub = subs[visit.sub]
        seconds = c * (sub.forward_s if visit.op == "F" else sub.backward_s)
        graph.add_edge(("start", i), ("end", i), weight=seconds)
        if i:
            graph.add_edge(("end", i - 1), ("start", i), weight=0.0)
        if i and visit.loads:
            turn = visits[i - 1].sub == visit.sub
            graph.add_edge(("end" if turn else "start", i - 1), ("load", i), weight=0.0)
            graph.add_edge(("load", i), ("start", i), weight=sub.load_s)
            if loads:
                graph.add_edge(("load", loads[-1]), ("load", i), weight=subs[visits[loads[-1]].sub].load_s)
            loads.append(i)
        if out is not None and visit.op == "B":
            graph.add_edge(("end", i), ("out", i), weight=0.0)
            if outs:
                graph.add_edge(("out", outs[-1]), ("out", i), weight=out_s(subs, visits[outs[-1]], out))
            for before in [j for j in outs if visits[j].sub == visit.sub][-1:]:
                graph.add_edge(("out", before), ("start", i), weight=out_s(subs, visit, out))
            outs.append(i)
    longest: dict[object, float] = {}
    for node in nx.topological_sort(graph):
        longest[node] = max(
            (longest[a] + data["weight"] for a, _, data in graph.in_edges(node, data=True)), default=0.0
        )
    return [longest["start", i] for i in range(len(visits))]


def out_s(subs: Sequence[SubModel], visit: Visit, bytes_per_s: float) -> float:
    return subs[visit.sub].parameter_bytes / bytes_per_s


def test_spans_show_mini_batches_loads_and_gradients() -> None:
    sub = SubModel(first=0, last=0, memory_bytes=2, forward_s=1, backward_s=2, load_s=3, parameter_bytes=1)
    step = steady_step([sub, sub], atom_order(2), machine(2, out=1.0, room=4))
    spans = step.spans([sub, sub])
    runs = [span for span in spans if span.op in ("F", "B")]
    assert len(runs) == 2 * 2 * 2
    assert {span.microbatch for span in runs} == {0, 1}
    assert sum(span.end - span.start for span in runs) == pytest.approx(step.busy_s)
    assert [span.chunk for span in spans if span.op == "load" and span.payload is None] == [1, 0]
    assert [span.chunk for span in spans if span.payload == "gradient"] == [1, 0]
    assert all(span.stage == 0 and span.start >= 0 for span in spans)


def test_a_great_many_mini_batches_are_one_span_a_visit() -> None:
    sub = SubModel(first=0, last=0, memory_bytes=2, forward_s=1, backward_s=2, load_s=3, parameter_bytes=1)
    spans = steady_step([sub], atom_order(1), machine(50_000)).spans([sub])
    assert len(spans) == 2
    assert all(span.microbatch is None for span in spans)
