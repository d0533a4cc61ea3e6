"""Sends that block: closed forms, an independent oracle, and that overlapped ones are never slower."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedule import Schedule
from engine.schedule.ir import NO_OP, OpKind
from engine.schedule.registry import SEARCHING
from engine.schedule.scenario import POLICIES, Link, Scenario, Times
from engine.schedule.timing import durations
from engine.simulate import simulate

STRAIGHT = ("gpipe", "1f1b", "zb-h1", "varuna", "crosspipe-ud")
TIME = st.floats(0.5, 4)


def scenario(policy: str, stages: int, microbatches: int, **fields: Any) -> Scenario:
    """Each stage in a data centre of its own; sends block."""
    whole = {"dc_of_stage": list(range(stages)), "sends": "blocking", **fields}
    return Scenario(stages=stages, microbatches=microbatches, policy=policy, **whole)


@settings(max_examples=25)
@given(st.integers(2, 7), st.integers(1, 9), TIME, TIME, st.floats(0, 3), st.floats(0, 3))
def test_gpipe_in_closed_form(
    stages: int, microbatches: int, forward: float, backward: float, latency: float, transfer: float
) -> None:
    """Every stage but the last is held in its forwards, every one but the first in its backwards."""
    times, wan = Times(forward=forward, backward=backward), Link(latency=latency, transfer=transfer)
    work = (microbatches + stages - 1) * (forward + backward)
    held = 2 * (microbatches + stages - 2) * (latency + transfer)
    makespan = simulate(scenario("gpipe", stages, microbatches, times=times, wan=wan)).makespan
    assert makespan == pytest.approx(work + held)


@settings(max_examples=25)
@given(st.integers(3, 7), st.integers(0, 6), TIME, TIME, st.floats(0, 3))
def test_1f1b_in_closed_form(stages: int, more: int, forward: float, backward: float, delay: float) -> None:
    """A stage in the middle is held twice a microbatch, and sets the pace."""
    microbatches = stages + more
    times = Times(forward=forward, backward=backward)
    case = scenario("1f1b", stages, microbatches, times=times, wan=Link(transfer=delay))
    work = (microbatches + stages - 1) * (forward + backward)
    assert simulate(case).makespan == pytest.approx(work + (2 * microbatches + 2 * stages - 5) * delay)


def span_by_relaxation(case: Scenario, schedule: Schedule) -> float:
    """The makespan, by raising starts until nothing moves. Straight traversal, links of one pipeline each: a
    sender that waits has at most one message on its way, so no message waits for a link."""
    lengths = durations(case, 1, split=schedule.has(OpKind.W))
    lists = [
        [schedule.decode(int(code)) for code in schedule.ops[0, s] if code != NO_OP]
        for s in range(case.stages)
    ]
    end: dict[tuple[Any, int, int], float] = {}

    def arrival(kind: Any, m: int, sender: int, receiver: int) -> float:
        crosses = case.dcs[sender] != case.dcs[receiver]
        link = case.wan if crosses else case.lan
        assert isinstance(link, Link)
        return end.get((kind, m, sender), 0.0) + link.transfer + link.latency

    moved = True
    while moved:
        moved = False
        for s, ops in enumerate(lists):
            free = 0.0
            for op in ops:
                ready = 0.0
                if op.kind == OpKind.F and s > 0:
                    ready = arrival(OpKind.F, op.microbatch, s - 1, s)
                if op.kind == OpKind.B and s < case.stages - 1:
                    ready = arrival(OpKind.B, op.microbatch, s + 1, s)
                done = max(free, ready) + lengths[op.kind, s]
                key = (op.kind, op.microbatch, s)
                moved |= done > end.get(key, 0.0) + 1e-9
                end[key] = max(done, end.get(key, 0.0))
                free = end[key]
                receiver = s + {OpKind.F: 1, OpKind.B: -1}.get(op.kind, case.stages)
                if 0 <= receiver < case.stages:
                    free = arrival(op.kind, op.microbatch, s, receiver)
    return max(end.values())


@settings(max_examples=40)
@given(st.data())
def test_every_order_takes_what_the_oracle_says(data: st.DataObject) -> None:
    stages = data.draw(st.integers(2, 5))
    case = scenario(
        data.draw(st.sampled_from(STRAIGHT)),
        stages,
        data.draw(st.integers(1, 8)),
        dc_of_stage=sorted(data.draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages))),
        times=Times(
            forward=[data.draw(TIME) for _ in range(stages)],
            backward=[data.draw(TIME) for _ in range(stages)],
            weight=data.draw(st.sampled_from([0.0, 1.0])),
        ),
        wan=Link(latency=data.draw(st.floats(0, 3)), transfer=data.draw(st.floats(0, 3))),
        lan=Link(latency=data.draw(st.floats(0, 0.5)), transfer=data.draw(st.floats(0, 0.5))),
    )
    timeline = simulate(case).timeline
    assert timeline is not None
    assert timeline.makespan == pytest.approx(span_by_relaxation(case, timeline.schedule))


GREEDY = tuple(policy for policy in POLICIES if policy not in SEARCHING)


@settings(max_examples=8)
@given(st.data())
def test_overlapped_sends_are_never_slower(data: st.DataObject) -> None:
    """Under every policy, over links that pipelines share, too. Orders of searches hang on the clock."""
    fields: dict[str, Any] = {
        "dc_of_stage": [0, 0, 1, 1],
        "pipelines": data.draw(st.integers(1, 3)),
        "times": Times(
            forward=data.draw(TIME),
            backward=data.draw(TIME),
            recompute=data.draw(st.sampled_from([0.0, 1.0])),
            weight=data.draw(st.sampled_from([0.0, 1.0])),
        ),
        "wan": Link(latency=data.draw(st.floats(0, 3)), transfer=data.draw(st.floats(0, 3))),
        "lan": Link(transfer=data.draw(st.sampled_from([0.0, 0.2]))),
    }
    for policy in GREEDY:
        case = scenario(policy, 4, 4, **fields)
        blocking = simulate(case)
        overlapped = simulate(case.model_copy(update={"sends": "overlapped"}))
        if blocking.makespan is None:
            assert blocking.reason is not None
            assert overlapped.makespan is None or blocking.reason.startswith("sends: ")
            continue
        assert overlapped.makespan is not None
        assert overlapped.makespan <= blocking.makespan * (1 + 1e-9)
        assert blocking.makespan >= blocking.lower_bound * (1 - 1e-9)


def test_a_search_proves_nothing_of_sends_that_block() -> None:
    """Its order is the best for overlapped sends."""
    times, wan = Times(forward=1, backward=2), Link(latency=1)
    blocking = simulate(scenario("optimal", 2, 3, times=times, wan=wan))
    overlapped = simulate(scenario("optimal", 2, 3, times=times, wan=wan, sends="overlapped"))
    assert (overlapped.stopped_by, overlapped.optimal) == ("proven", True)
    assert (blocking.stopped_by, blocking.optimal) == (None, False)
    assert blocking.lower_bound <= overlapped.makespan < blocking.makespan  # type: ignore[operator]


def test_a_message_between_chunks_of_a_gpu_holds_nothing() -> None:
    """A wave turns on the last stage; with one stage nothing is ever sent."""
    times = Times(forward=1, backward=2)
    alone = scenario("crosspipe-wave", 1, 4, times=times)
    assert simulate(alone).makespan == pytest.approx(4 * 3)
