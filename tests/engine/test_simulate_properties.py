"""Any policy on any scenario obeys every rule of contracts.md, says an independent checker."""

import copy
import json
from itertools import pairwise, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.schedule import Scenario
from engine.simulate import simulate
from tests.checker import check
from tests.engine import fig6

DURATIONS = st.one_of(st.integers(1, 6), st.sampled_from([0.5, 1.25, 0.1, 17.9, 3.333]))
DELAYS = st.one_of(st.just(0), st.integers(0, 6), st.sampled_from([0.3, 2.5, 9.99]))


@st.composite
def scenarios(draw: st.DrawFn) -> dict:
    stages = draw(st.integers(1, 7))
    dcs = [0]
    for _ in range(stages - 1):
        dcs.append(dcs[-1] + draw(st.integers(0, 1)))
    hops = sum(a != b for a, b in pairwise(dcs))
    link = st.fixed_dictionaries({"latency": DELAYS, "transfer": DELAYS})
    times = {
        kind: draw(st.one_of(value, st.lists(value, min_size=stages, max_size=stages)))
        for kind, value in {
            "forward": DURATIONS,
            "backward": DURATIONS,
            "recompute": st.one_of(st.just(0), DURATIONS),
            "weight": st.one_of(st.just(0), st.integers(0, 2)),
        }.items()
    }
    document = {
        "stages": stages,
        "dc_of_stage": dcs,
        "pipelines": draw(st.integers(1, 3)),
        "microbatches": draw(st.integers(1, 7)),
        "times": times,
        "wan": draw(st.one_of(link, st.lists(link, min_size=hops, max_size=hops))),
        "lan": draw(st.one_of(st.just({}), link)),
        "policy": draw(st.sampled_from(["gpipe", "1f1b", "varuna", "atlas"])),
    }
    optional = {
        "sharing": st.sampled_from(["spatial", "temporal"]),
        "contention": st.sampled_from(["rank", "round-robin", "fifo"]),
        "recompute_rule": st.sampled_from(["jit", "idle", "late", "blocking"]),
        "memory_limit": st.integers(1, 8),
        "full_limit": st.integers(1, 3),
    }
    for name, values in optional.items():
        if (value := draw(st.one_of(st.none(), values))) is not None:
            document[name] = value
    return document


def answer(document: dict) -> dict:
    return json.loads(json.dumps(simulate(parse(Scenario, document)).as_dict(), allow_nan=False))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_every_schedule_obeys_the_contract(document: dict) -> None:
    check(document, answer(document))


@settings(max_examples=60, deadline=None)
@given(scenarios())
def test_the_bound_holds_for_every_policy_under_the_same_sharing(document: dict) -> None:
    document.setdefault("sharing", "temporal")
    answers = [answer({**document, "policy": policy}) for policy in ("gpipe", "1f1b", "varuna", "atlas")]
    assert len({a["lower_bound"] for a in answers if not a["optimal"]}) <= 1
    best = min((a["makespan"] for a in answers if a["feasible"]), default=None)
    assert best is None or all(a["lower_bound"] <= best * (1 + 1e-9) for a in answers)


@settings(max_examples=80, deadline=None)
@given(scenarios(), st.sampled_from([1, None]))
def test_no_rules_beat_the_bound(document: dict, full_limit: int | None) -> None:
    document |= {"sharing": "temporal", "full_limit": full_limit, "spans": False}
    rules = product(("varuna", "atlas", "1f1b"), ("jit", "idle", "late"), ("rank", "round-robin"))
    results = [
        simulate(parse(Scenario, {**document, "policy": policy, "recompute_rule": rule, "contention": who}))
        for policy, rule, who in rules
    ]
    makespans = [result.makespan for result in results if result.makespan is not None]
    assert max(result.lower_bound for result in results) <= min(makespans) * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(scenarios())
def test_same_input_same_answer(document: dict) -> None:
    assert answer(document) == answer(document)


FIG6 = {**fig6.FIG6, "memory_limit": 4, "full_limit": 1}


def _span(output: dict, **fields: object) -> dict:
    return next(s for s in output["spans"] if all(s.get(k) == v for k, v in fields.items()))


def _shift(span: dict, by: float) -> None:
    for edge in ("start", "end", "arrives"):
        if edge in span:
            span[edge] += by


def _overlap(output: dict) -> None:
    _shift(_span(output, op="F", stage=0, microbatch=1, pipeline=0), -0.5)


def _no_transfer(output: dict) -> None:
    output["spans"].remove(_span(output, track="wan", microbatch=2))


def _transfer_twice(output: dict) -> None:
    output["spans"].append(dict(_span(output, track="wan", microbatch=2)))


def _early_op(output: dict) -> None:
    _shift(_span(output, op="F", stage=2, microbatch=0, pipeline=0), -1)


def _early_transfer(output: dict) -> None:
    _shift(_span(output, track="wan", microbatch=0, pipeline=0), -1)


def _short_op(output: dict) -> None:
    _span(output, op="B", stage=3, microbatch=2, pipeline=1)["end"] -= 1


def _no_recompute(output: dict) -> None:
    output["spans"].remove(_span(output, op="R", stage=2, microbatch=1, pipeline=0))


def _busy_link(output: dict) -> None:
    first = _span(output, track="wan", from_stage=1, microbatch=0, pipeline=0)
    second = _span(output, track="wan", from_stage=1, microbatch=1, pipeline=0)
    second.update(start=first["start"], end=first["end"], arrives=first["arrives"])


def _wrong(field: str, value: object) -> object:
    def change(output: dict) -> None:
        output[field] = value

    return change


@pytest.mark.parametrize(
    "break_it",
    [
        _overlap,
        _no_transfer,
        _transfer_twice,
        _early_op,
        _early_transfer,
        _short_op,
        _no_recompute,
        _busy_link,
        _wrong("makespan", 35.0),
        _wrong("lower_bound", 36.5),
        _wrong("utilization", 0.5),
        _wrong("largest_stage_span", 30.0),
        _wrong("peak_in_flight", [[4] * 6, [4] * 6]),
    ],
)
def test_the_checker_catches_what_is_broken(break_it) -> None:
    output = answer(FIG6)
    check(FIG6, output)
    broken = copy.deepcopy(output)
    break_it(broken)
    with pytest.raises((AssertionError, KeyError)):
        check(FIG6, broken)


@pytest.mark.parametrize("limit", [{"memory_limit": 3}, {"microbatches": 5}, {"recompute_rule": "late"}])
def test_the_checker_catches_a_broken_limit_or_rule(limit: dict) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check({**FIG6, **limit}, answer(FIG6))
