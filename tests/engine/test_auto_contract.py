"""Whatever `auto` finds obeys every rule of the contract, says the independent checker."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.inputs import parse
from engine.schedule import Frame, Scenario, Search, crosspipe
from engine.schedule import auto as module
from engine.schedule.registry import MODULES
from engine.schedule.searching.portfolio import fits
from engine.simulate import simulate
from tests.checker import check
from tests.engine.test_simulate_properties import scenarios

SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


@pytest.fixture(autouse=True)
def _less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "policy", module.Auto(effort=40_000))
    monkeypatch.setattr(crosspipe, "MOST_STARTED", 500)


def answer(document: dict, search: Search | None = None) -> dict:
    fields = simulate(parse(Scenario, document), search).as_dict()
    assert fields.pop("search_s") >= 0
    return json.loads(json.dumps(fields, allow_nan=False))


@st.composite
def documents(draw: st.DrawFn) -> dict:
    document = draw(scenarios(("auto",)))
    if draw(st.booleans()):
        document["chunks"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        document["traversal"] = draw(st.sampled_from(["straight", "loop", "wave"]))
    return document


def best_policy(document: dict) -> float:
    """The least makespan of the other policies, of those schedules that the document allows."""
    best = math.inf
    for name in MODULES:
        if name in ("auto", "optimal"):
            continue
        try:
            result = simulate(parse(Scenario, {**document, "policy": name}))
        except InputError:  # it does not take that many chunks
            continue
        if result.chosen is None or result.makespan is None:
            continue
        variant, chosen = parse(Scenario, document), result.chosen
        frame = Frame(traversal=result.traversal, sharing=chosen.sharing)
        if fits(variant, frame):
            best = min(best, result.makespan)
    return best


def assert_contract(document: dict) -> None:
    """Every rule, both limits and the bound, says the checker; and no policy is faster."""
    output = answer(document)
    check(document, output)
    best = best_policy(document)
    assert output["feasible"] or best == math.inf
    assert not output["feasible"] or output["makespan"] <= best * (1 + 1e-9)


@settings(max_examples=6, deadline=None, suppress_health_check=SLOW)
@given(documents())
def test_what_auto_finds_obeys_the_contract(document: dict) -> None:
    assert_contract(document)


@pytest.mark.long
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(documents())
def test_what_auto_finds_obeys_the_contract_over_hundreds(document: dict) -> None:
    assert_contract(document)


SMALL = {
    "stages": 4,
    "dc_of_stage": [0, 0, 1, 2],
    "pipelines": 2,
    "microbatches": 5,
    "times": {"forward": 2, "backward": 3, "recompute": 1, "weight": 1},
    "wan": {"latency": 1, "transfer": 5},
    "memory_limit": 3,
    "full_limit": 2,
    "policy": "auto",
}


def test_same_input_same_answer() -> None:
    assert answer(SMALL) == answer(SMALL)


def test_a_cancelled_search_returns_what_it_has() -> None:
    reports: list[float] = []
    search = Search(
        seconds=60, cancelled=lambda: len(reports) >= 2, report=lambda p: reports.append(p.makespan or 0)
    )
    output = answer(SMALL, search)
    assert output["stopped_by"] == "cancelled"
    assert output["makespan"] <= min(reports) == reports[-1]
    check(SMALL, output)


def test_no_time_is_time_for_the_first_policy() -> None:
    output = answer(SMALL, Search(seconds=1e-9))
    assert output["stopped_by"] == "time"
    check(SMALL, output)


def test_what_is_found_is_no_worse_than_any_policy() -> None:
    result = answer(SMALL)["makespan"]
    for name in ("gpipe", "1f1b", "varuna", "atlas", "zb-h1", "crosspipe-ud", "crosspipe-wave"):
        other = answer({**SMALL, "policy": name})
        assert not other["feasible"] or result <= other["makespan"]


def test_forwards_wait_as_long_as_that_costs_no_time() -> None:
    # One microbatch after the other: without delay every F would run at once and be held for nothing.
    document = {"stages": 2, "microbatches": 12, "times": {"forward": 1, "backward": 10}, "policy": "auto"}
    output = answer({**document, "traversal": "straight", "chunks": 1})
    assert output["optimal"]
    assert max(output["peak_in_flight"][0]) <= 2


def test_an_r_that_a_policy_leaves_out_is_held_within_the_limit() -> None:
    times = {"forward": 1, "backward": 1, "recompute": 0.5}
    document = {"stages": 2, "microbatches": 5, "times": times, "policy": "auto", "full_limit": 1}
    check(document, answer(document))
