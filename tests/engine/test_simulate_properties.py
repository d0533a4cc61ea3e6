"""Any policy on any scenario obeys every rule of docs/dev/contracts.md, says an independent checker."""

import json
from itertools import pairwise, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.schedule import Scenario, crosspipe
from engine.simulate import simulate
from tests.checker import check

SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
WHOLE = ("gpipe", "1f1b", "varuna", "atlas")
SPLITTING = ("zb-h1", "crosspipe-ud")
CHUNKED = ("interleaved", "zb-v", "crosspipe-udsub", "crosspipe-loop", "crosspipe-wave")
DURATIONS = st.one_of(st.integers(1, 6), st.sampled_from([0.5, 1.25, 0.1, 17.9, 3.333]))
DELAYS = st.one_of(st.just(0), st.integers(0, 6), st.sampled_from([0.3, 2.5, 9.99]))


@st.composite
def scenarios(draw: st.DrawFn, policies: tuple[str, ...] = WHOLE + SPLITTING + CHUNKED) -> dict:
    stages = draw(st.integers(1, 7))
    dcs = [0]
    for _ in range(stages - 1):
        dcs.append(dcs[-1] + draw(st.integers(0, 1)))
    if draw(st.booleans()):
        dcs[-1] = 0  # the last stage where the first is: a loop's last hop is a LAN hop
    hops = sum(a != b for a, b in pairwise(dcs))
    per_stage = {"min_size": stages, "max_size": stages}
    link = st.fixed_dictionaries({"latency": DELAYS, "transfer": DELAYS})
    times = {
        kind: draw(st.one_of(value, st.lists(value, **per_stage)))
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
        "lan": draw(
            st.one_of(st.just({}), link, st.lists(link, min_size=max(dcs) + 1, max_size=max(dcs) + 1))
        ),
        "policy": draw(st.sampled_from(policies)),
    }
    optional = {
        "sharing": st.sampled_from(["spatial", "temporal"]),
        "contention": st.sampled_from(["rank", "round-robin", "fifo"]),
        "recompute_rule": st.sampled_from(["jit", "idle", "late", "blocking"]),
        "memory_limit": st.one_of(st.integers(1, 8), st.lists(st.integers(1, 8), **per_stage)),
        "full_limit": st.one_of(st.integers(1, 3), st.lists(st.integers(1, 3), **per_stage)),
    }
    for name, values in optional.items():
        if (value := draw(st.one_of(st.none(), values))) is not None:
            document[name] = value
    if document["policy"] in CHUNKED and document["policy"] != "zb-v":
        document["chunks"] = draw(st.sampled_from([None, 2, 3]))
    return {name: value for name, value in document.items() if value is not None}


def answer(document: dict) -> dict:
    fields = simulate(parse(Scenario, document)).as_dict()
    assert fields.pop("search_s") >= 0
    return json.loads(json.dumps(fields, allow_nan=False))


@pytest.fixture(autouse=True)
def _less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the settings that CrossPipe's greedy tries, a few: each must give a right schedule."""
    monkeypatch.setattr(crosspipe, "MOST_STARTED", 2_000)


@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(scenarios())
def test_every_schedule_obeys_the_contract(document: dict) -> None:
    check(document, answer(document))


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(scenarios(WHOLE))
def test_the_bound_holds_for_every_policy_under_the_same_sharing(document: dict) -> None:
    document.setdefault("sharing", "temporal")
    answers = [answer({**document, "policy": policy}) for policy in WHOLE]
    assert len({a["lower_bound"] for a in answers if not a["optimal"]}) <= 1
    best = min((a["makespan"] for a in answers if a["feasible"]), default=None)
    assert best is None or all(a["lower_bound"] <= best * (1 + 1e-9) for a in answers)


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(scenarios(WHOLE), st.sampled_from([1, None]))
def test_no_rules_beat_the_bound(document: dict, full_limit: int | None) -> None:
    document |= {"sharing": "temporal", "full_limit": full_limit, "spans": False}
    rules = product(("varuna", "atlas", "1f1b"), ("jit", "idle", "late"), ("rank", "round-robin"))
    results = [
        simulate(parse(Scenario, {**document, "policy": policy, "recompute_rule": rule, "contention": who}))
        for policy, rule, who in rules
    ]
    makespans = [result.makespan for result in results if result.makespan is not None]
    assert max(result.lower_bound for result in results) <= min(makespans) * (1 + 1e-9)


@settings(max_examples=50, deadline=None, suppress_health_check=SLOW)
@given(scenarios())
def test_same_input_same_answer(document: dict) -> None:
    assert answer(document) == answer(document)
