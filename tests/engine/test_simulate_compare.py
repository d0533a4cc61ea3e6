"""Several policies on one scenario, sweeps, jitter, schedules written by hand, the files of --out."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cli import cli
from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.schedule import Scenario, build
from engine.schedule.check import fault_of
from engine.schedule.text import parse_schedule
from engine.simulate import SweepDocument, compare, simulate, simulate_schedule, sweep
from engine.simulate.compare import with_value
from tests.checker import check
from tests.engine import fig6
from tests.engine.test_simulate_properties import scenarios

GREEDY = ["gpipe", "1f1b", "varuna", "atlas"]
PLAIN = {name: value for name, value in fig6.FIG6.items() if name != "policy"}


def run(*arguments: str, text: str | None = None) -> str:
    result = CliRunner().invoke(cli, list(arguments), input=text)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_each_result_is_the_answer_of_its_policy_alone() -> None:
    for compared in compare(PLAIN, GREEDY):
        alone = simulate(parse(Scenario, {**PLAIN, "policy": compared.policy})).as_dict()
        assert compared.as_dict() == alone


def test_a_policy_that_refuses_the_scenario_does_not_stop_the_others() -> None:
    first, second = compare({**PLAIN, "memory_limit": 2, "spans": False}, ["gpipe", "varuna"])
    assert not first.as_dict()["feasible"]
    assert second.as_dict()["feasible"]
    refused, _ = compare({**PLAIN, "chunks": 3}, ["1f1b", "varuna"])
    assert refused.as_dict()["reason"].startswith("chunks: 3")


@pytest.mark.parametrize(
    ("document", "policies", "field"),
    [(PLAIN, ["atls"], "compare"), (PLAIN, [], "compare"), ({**PLAIN, "stages": 0}, ["atlas"], "stages")],
)
def test_what_is_wrong_for_all_is_an_error(document: dict, policies: list[str], field: str) -> None:
    with pytest.raises(InputError) as caught:
        list(compare(document, policies))
    assert caught.value.field == field


def test_the_sweep_sets_one_field_and_nothing_else() -> None:
    document = {"scenario": PLAIN, "parameter": "wan.latency", "values": [0, 2.5], "policies": GREEDY}
    rows = list(sweep(parse(SweepDocument, document)))
    assert [(row.value, row.policy) for row in rows] == [(v, p) for v in (0, 2.5) for p in GREEDY]
    for row in rows:
        wan = {**PLAIN["wan"], "latency": row.value}
        expected = simulate(parse(Scenario, {**PLAIN, "wan": wan, "policy": row.policy}))
        assert (row.makespan, row.lower_bound) == (expected.makespan, expected.lower_bound)


@pytest.mark.parametrize(
    ("parameter", "value", "path", "expected"),
    [
        ("microbatches", 8, ("microbatches",), 8),
        ("wan.transfer", 7, ("wan", 1, "transfer"), 7),
        ("wan[0].latency", 3, ("wan", 0, "latency"), 3),
        ("times.forward[2]", 9, ("times", "forward", 2), 9),
        ("lan.transfer", 1, ("lan", "transfer"), 1),
    ],
)
def test_a_path_reaches_its_field(parameter: str, value: float, path: tuple, expected: float) -> None:
    document = {"microbatches": 2, "wan": [{"latency": 1}, {"latency": 2}], "times": {"forward": [1, 2, 3]}}
    before = json.dumps(document)
    changed = with_value(document, parameter, value)
    for step in path:
        changed = changed[step]
    assert changed == expected
    assert json.dumps(document) == before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"parameter": "wann.latency"}, "parameter"),
        ({"parameter": "wan..latency"}, "parameter"),
        ({"parameter": "times.forward[9]"}, "parameter"),
        ({"parameter": "stages.x"}, "parameter"),
        ({"parameter": "wan.latncy"}, "values[0]"),
        ({"values": []}, "values"),
        ({"values": [-1]}, "values[0]"),
        ({"policies": ["atls"]}, "policies"),
        ({"policy": ["atlas"]}, "policy"),
    ],
)
def test_a_bad_sweep_names_its_field(change: dict, field: str) -> None:
    document = {"scenario": PLAIN, "parameter": "wan.latency", "values": [1], "policies": ["atlas"], **change}
    with pytest.raises(InputError) as caught:
        run("sweep", "-", text=json.dumps(document))
    assert caught.value.field == field


JITTER = {**fig6.FIG6, "jitter": 0.1, "seed": 3}


def test_jitter_moves_times_but_not_order() -> None:
    plain, varied = simulate(parse(Scenario, fig6.FIG6)), simulate(parse(Scenario, JITTER))
    assert varied.planned_makespan == plain.makespan
    assert varied.makespan != plain.makespan
    assert plain.timeline is not None
    assert varied.timeline is not None
    assert np.array_equal(plain.timeline.schedule.ops, varied.timeline.schedule.ops)
    again, other = (simulate(parse(Scenario, {**JITTER, "seed": seed})) for seed in (3, 4))
    assert again.as_dict() == varied.as_dict()
    assert other.makespan != varied.makespan


def test_drawn_times_have_the_variation_asked_for() -> None:
    document = {
        "stages": 8,
        "microbatches": 200,
        "times": {"forward": 3, "backward": 6},
        "policy": "gpipe",
        "jitter": 0.3,
    }
    spans = [span for span in simulate(parse(Scenario, document)).spans() if span.op == "F"]
    lengths = np.array([span.end - span.start for span in spans])
    assert lengths.mean() == pytest.approx(3, rel=0.03)
    assert lengths.std() / lengths.mean() == pytest.approx(0.3, rel=0.1)


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.sampled_from([0.01, 0.3, 2.0]), st.integers(0, 5))
def test_the_bound_holds_for_what_was_drawn(document: dict, jitter: float, seed: int) -> None:
    result = simulate(parse(Scenario, {**document, "jitter": jitter, "seed": seed}))
    assert result.makespan is None or 0 < result.lower_bound <= result.makespan * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(scenarios())
def test_what_a_policy_makes_has_no_fault_and_reads_back(document: dict) -> None:
    scenario = parse(Scenario, document)
    built = build(scenario)
    if isinstance(built, Infeasible):
        return
    again = parse_schedule(str(built.schedule))
    # Greedy policies do not know full_limit where they recompute one at a time anyway: limits are theirs too.
    assert fault_of(scenario, again) is None
    result = simulate_schedule(scenario, again)
    assert result.makespan == simulate_schedule(scenario, built.schedule).makespan


HEAD = "microbatches 2, chunks 1, traversal straight, sharing spatial, gate none"
TWO = {
    "stages": 2,
    "dc_of_stage": [0, 1],
    "microbatches": 2,
    "times": {"forward": 1, "backward": 2},
    "wan": {"transfer": 1},
    "policy": "varuna",
}


@pytest.mark.parametrize(
    ("rows", "change", "fault", "spot"),
    [
        (("F0 F1 B0", "F0 B0 F1 B1"), {}, "B1 is missing", "[B0]"),
        (("F0 F1 F1 B0 B1", "F0 B0 F1 B1"), {}, "F1 appears twice", "F1 [F1]"),
        (("F0 B1 F1 B0", "F0 B0 F1 B1"), {}, "B1 before F1", "[B1]"),
        (("F0 F1 B0 B1 W0 W1", "F0 B0 F1 B1 W0 W1"), {}, "times.weight is 0", ""),
        (("F0 F1 R0 B0 B1", "F0 B0 F1 B1"), {}, "no recompute time", "[R0]"),
        (("F0 F1 B0 B1", "F0 B0 F1 B1"), {"recompute": 1}, "B0 before R0", "[B0]"),
        (("F0 F1 B0 B1", "F0 B0 F1 B1"), {"memory_limit": 1}, "memory_limit: 2 microbatches", "[F1]"),
        (("F0 F1 B1 B0", "F0 B0 F1 B1"), {"microbatches": 3}, "the scenario has", ""),
        (("F0 B0 F1 B1", "F1 B1 F0 B0"), {}, "waits for itself", "F0 [B0] F1"),
    ],
)
def test_a_broken_schedule_is_refused_with_its_spot(rows: tuple, change: dict, fault: str, spot: str) -> None:
    document = {**TWO, **{k: v for k, v in change.items() if k != "recompute"}}
    if "recompute" in change:
        document["times"] = {**TWO["times"], "recompute": change["recompute"]}
    schedule = parse_schedule("\n".join([HEAD, *(f"P0 S{s}: {row}" for s, row in enumerate(rows))]))
    result = simulate_schedule(parse(Scenario, document), schedule)
    assert not result.feasible
    assert fault in (result.reason or "")
    assert spot in (result.reason or "")


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("link 0>1: P0/0", "P0/1 is missing"),
        ("link 0>1: P0/0 P0/0 P0/1", "P0/0 is sent twice"),
        ("link 1>2: P0/0 P0/1", "no such hop"),
        ("link 0>1: P1/0 P0/0 P0/1", "P1/0 does not cross here"),
    ],
)
def test_a_broken_link_order_is_refused(link: str, fault: str) -> None:
    text = "\n".join([HEAD, "P0 S0: F0 F1 B0 B1", "P0 S1: F0 B0 F1 B1", link])
    result = simulate_schedule(parse(Scenario, TWO), parse_schedule(text))
    assert not result.feasible
    assert fault in (result.reason or "")


def test_shared_links_need_an_order() -> None:
    rows = [f"P{p} S{s}: F0 F1 B0 B1" for p in range(2) for s in range(2)]
    text = "\n".join([HEAD.replace("spatial", "temporal"), *rows])
    result = simulate_schedule(parse(Scenario, {**TWO, "pipelines": 2}), parse_schedule(text))
    assert "must be listed" in (result.reason or "")


def test_the_command_compares_and_writes_everything(tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(PLAIN))
    answer = json.loads(
        run("simulate", str(file), "--compare", "varuna,atlas", "--json", "--out", str(tmp_path))
    )
    assert [row["makespan"] for row in answer["results"]] == [38, 36]
    for row in answer["results"]:
        check({**PLAIN, "policy": row["policy"]}, row)
    with (tmp_path / "atlas/spans.csv").open() as rows:
        read = list(csv.DictReader(rows))
    assert len(read) == len(answer["results"][1]["spans"])
    assert max(float(row["end"]) for row in read if row["track"] == "gpu") == 36
    timed = json.loads(
        run("simulate", str(file), "--schedule", str(tmp_path / "atlas/schedule.txt"), "--json")
    )
    assert (timed["makespan"], timed["chosen"]["policy"]) == (36, "custom")
    assert "36" in run("simulate", str(file), "--compare", "atlas, varuna")


def test_a_schedule_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "broken.txt"
    file.write_text("P0 S0: F0")
    with pytest.raises(InputError) as caught:
        run("simulate", "-", "--schedule", str(file), text=json.dumps(TWO))
    assert caught.value.field == "--schedule"
