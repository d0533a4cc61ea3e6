"""Policies against the paper's figure and closed forms; the text form of a schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Infeasible
from engine.inputs import parse
from engine.schedule import Scenario, build
from engine.schedule.text import parse_schedule
from engine.simulate import simulate
from tests.engine.fig6 import FIG6
from tests.engine.test_simulate_properties import scenarios

UNLIMITED = {name: value for name, value in FIG6.items() if not name.endswith("_limit")}


def makespan(**fields: object) -> float | None:
    return simulate(parse(Scenario, {**UNLIMITED, "spans": False, **fields})).makespan


@pytest.mark.parametrize(("policy", "slots"), [("varuna", 38), ("atlas", 36), ("gpipe", 46), ("1f1b", 46)])
def test_figure_6(policy: str, slots: int) -> None:
    assert makespan(policy=policy) == slots
    assert makespan(policy=policy, full_limit=1) == slots


SMALL = st.integers(1, 8)


@given(stages=SMALL, micro=st.integers(2, 8), forward=SMALL, again=st.integers(0, 5), back=SMALL, delay=SMALL)
@settings(max_examples=60, deadline=None)
def test_gpipe_with_uniform_delay(stages, micro, forward, again, back, delay) -> None:
    # Both phases are pipelines of equal ops: (M + P − 1) ops long, plus the way through P − 1 hops. The
    # first B of the last stage directly follows its F.
    slots = makespan(
        policy="gpipe",
        stages=stages,
        dc_of_stage=list(range(stages)),
        microbatches=micro,
        times={"forward": forward, "recompute": again, "backward": back},
        wan={"latency": delay},
    )
    assert slots == (micro + stages - 1) * (forward + again + back) + 2 * (stages - 1) * delay - again


@given(stages=SMALL, micro=SMALL, forward=SMALL, back=SMALL)
@settings(max_examples=60, deadline=None)
def test_1f1b_without_delay(stages, micro, forward, back) -> None:
    times = {"forward": forward, "backward": back}
    result = simulate(
        parse(
            Scenario,
            {"policy": "1f1b", "stages": stages, "pipelines": 1, "microbatches": micro, "times": times},
        )
    )
    assert result.makespan == (micro + stages - 1) * (forward + back)
    assert result.optimal
    assert result.timeline is not None
    assert result.timeline.peak_in_flight()[0].tolist() == [min(stages - s, micro) for s in range(stages)]


def test_gpipe_says_which_limit_stands_against_it() -> None:
    answer = build(parse(Scenario, {**UNLIMITED, "policy": "gpipe", "memory_limit": 3}))
    assert isinstance(answer, Infeasible)
    assert "memory_limit" in answer.reason


@given(scenarios())
@settings(max_examples=60, deadline=None)
def test_a_schedule_prints_and_parses(document: dict) -> None:
    built = build(parse(Scenario, document))
    if isinstance(built, Infeasible):
        return
    schedule = built.schedule
    again = parse_schedule(str(schedule))
    assert str(again) == str(schedule)
    assert np.array_equal(again.ops[again.ops >= 0], schedule.ops[schedule.ops >= 0])
    assert again.link_order.keys() == schedule.link_order.keys()
    assert all(np.array_equal(again.link_order[k], schedule.link_order[k]) for k in again.link_order)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must read"),
        ("microbatches 1, chunks 1, traversal straight, sharing spatial, gate none\nP0 S0: F0 X0", "X0"),
        (
            "microbatches 1, chunks 1, traversal straight, sharing spatial, gate none\nP0 S0: F0 B1",
            "out of range",
        ),
        ("microbatches 1, chunks 1, traversal straight, sharing spatial, gate none\nP0 S1: F0 B0", "lines"),
        (
            "microbatches 1, chunks 1, traversal straight, sharing spatial, gate none\nP0 S0: F0\nP0 S0: B0",
            "twice",
        ),
        ("microbatches 1, chunks 1, traversal straight, sharing spatial, gate none\nrubbish", "rubbish"),
    ],
)
def test_a_broken_text_is_quoted(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_schedule(text)
