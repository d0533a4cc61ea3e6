"""Rows of `meridian reproduce`: when one is as it says, how they are counted, and (long) all of them."""

import json
import sys
from typing import Any

import pytest

from engine.cli import main
from engine.reproduce import ORDERS, Experiment, Explained, Outcome, Refuted, Row, Untested
from engine.reproduce.contention import least_makespan, simulate_under
from engine.schedule.scenario import Link, Scenario, Times

UNTESTED_AT_MOST = 10

FIELDS = {
    "experiment",
    "name",
    "paper",
    "relation",
    "ours",
    "unit",
    "tolerance",
    "expected_deviation",
    "status",
    "ok",
    "cause",
    "without_cause",
    "refuted_by",
    "allows",
    "bound",
    "by_order",
    "assumes",
    "note",
}


def reproduce(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["meridian", "reproduce", *args])
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0), capsys.readouterr().out


def row(**fields: Any) -> Row:
    return Row(**{"name": "a", "paper": 100, "ours": 100, "unit": "x", **fields})


def explained(**fields: Any) -> Row:
    """Half of what is printed; without the cause as printed."""
    answer = Explained(cause="propagation", without_cause=fields.pop("without_cause", 98))
    return row(**{"ours": 50, "tolerance": 0.05, "expected_deviation": -0.5, "answer": answer, **fields})


def refuted(**fields: Any) -> Row:
    """80 where 100 is printed and 90 is the most."""
    answer = Refuted(allows="at most", bound=fields.pop("bound", 90), by="a proof")
    return row(**{"ours": 80, "expected_deviation": -0.2, "answer": answer, **fields})


def test_a_figure_is_met_within_its_tolerance_only() -> None:
    assert row(ours=102, tolerance=0.02).ok is True
    assert row(ours=97.9, tolerance=0.02).ok is False
    assert row(paper=0, ours=0.1, tolerance=0.05).ok is False
    assert row(ours=float("nan"), tolerance=9).ok is False


def test_a_printed_bound_is_met_on_its_side() -> None:
    assert row(relation="at most", ours=3, tolerance=0).ok is True
    assert row(relation="at most", ours=100.1, tolerance=0).ok is False
    assert row(relation="at least", ours=300, tolerance=0).ok is True
    assert row(relation="at least", ours=99, tolerance=0).ok is False
    assert row(relation="at least", ours=99, tolerance=0.02).ok is True
    assert row(relation="at most", paper=0, ours=-1, tolerance=0).ok is True


def test_an_explained_row_holds_with_both_figures_only() -> None:
    assert explained().ok is True
    assert explained(without_cause=94).ok is False
    assert explained(ours=52).ok is False
    assert explained(ours=100).ok is False


def test_a_refuted_row_holds_while_the_bound_forbids_the_figure() -> None:
    assert refuted().ok is True
    assert refuted(bound=100).ok is False
    assert refuted(bound=float("nan")).ok is False
    assert refuted(ours=90).ok is False
    above = Refuted(allows="at least", bound=110, by="a proof")
    assert refuted(answer=above, ours=120, expected_deviation=0.2).ok is True


@pytest.mark.parametrize(
    "fields",
    [
        {"answer": Untested(why="no source"), "tolerance": 0.1},
        {},
        {"answer": Explained(cause="a", without_cause=100), "expected_deviation": 0.0},
        {"answer": Explained(cause="a", without_cause=100), "tolerance": 0.1},
        {"answer": Refuted(allows="at most", bound=1, by="b"), "expected_deviation": 0.0, "tolerance": 0.1},
        {"tolerance": 0.1, "expected_deviation": 0.0},
        {"tolerance": 0.1, "by_order": {"rank": 1.0}},
    ],
)
def test_fields_that_do_not_fit_the_answer_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a: "):
        row(**fields)


def shown(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    """Makes `rows` the only experiment."""
    experiment = Experiment(name="atlas-made-up", title="Made up", run=lambda: Outcome(rows=rows))
    monkeypatch.setattr("engine.commands.reproduce.experiments", lambda: {"atlas-made-up": experiment})


def test_the_command_counts_each_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    untested = row(ours=float("nan"), answer=Untested(why="no source"))
    shown(
        monkeypatch, row(tolerance=0.1), explained(assumes="one link"), refuted(assumes="one link"), untested
    )
    status, out = reproduce(monkeypatch, capsys)
    assert status == 0
    assert "1 met, 1 explained, 1 refuted, 1 untested" in out
    assert "98 without propagation" in out
    assert "at most 90: a proof" in out
    assert out.count("[1] one link") == 1
    status, out = reproduce(monkeypatch, capsys, "--json")
    answer = json.loads(out)
    assert all(set(each) == FIELDS for each in answer["rows"])
    assert [answer[name] for name in ("met", "explained", "refuted", "untested")] == [1, 1, 1, 1]
    assert [each["status"] for each in answer["rows"]] == ["met", "explained", "refuted", "untested"]
    assert answer["rows"][0]["experiment"] == "atlas-made-up"
    assert (answer["rows"][1]["without_cause"], answer["rows"][2]["bound"]) == (98, 90)
    assert (answer["rows"][3]["ours"], answer["rows"][3]["note"]) == (None, "no source")


def test_rows_with_shared_links_show_every_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    by_order = dict(zip(ORDERS, (100, 91, 92, 75), strict=True))
    shown(monkeypatch, row(tolerance=0, by_order=by_order), row(name="b", tolerance=0))
    _, out = reproduce(monkeypatch, capsys)
    head, *lines = [line.split() for line in out.splitlines()[1:4]]
    assert head[:6] == ["paper", "ours", *ORDERS]
    assert lines[0][:7] == ["a", "100", "100", "100", "91", "92", "75"]
    assert lines[1][3:7] == ["–"] * 4
    _, out = reproduce(monkeypatch, capsys, "--json")
    assert [each["by_order"] for each in json.loads(out)["rows"]] == [by_order, None]


@pytest.mark.parametrize(
    ("cell", "bound"),
    [({"stages": 6, "pipelines": 2, "wan": Link(transfer=2)}, 33), ({"wan": Link(transfer=3)}, 28)],
)
def test_auto_reaches_the_proven_bound_of_the_papers_cells(cell: dict[str, Any], bound: int) -> None:
    dcs = [0, 0, 1, 1, 2, 2] if "stages" in cell else [0, 0, 1, 2]
    fields = {"stages": 4, "pipelines": 3, "microbatches": 4, "dc_of_stage": dcs, "policy": "atlas", **cell}
    scenario = Scenario(times=Times(forward=1, recompute=1, backward=2), **fields)
    assert simulate_under(scenario, "auto").makespan == least_makespan(scenario) == bound
    by_rank = simulate_under(scenario, "rank").makespan
    assert by_rank is not None
    assert by_rank > bound


@pytest.mark.parametrize("wrong", [row(ours=50, tolerance=0.1), explained(ours=60), refuted(bound=120)])
def test_a_row_that_is_not_as_it_says_makes_the_status_1(
    wrong: Row, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown(monkeypatch, wrong)
    status, out = reproduce(monkeypatch, capsys)
    assert status == 1
    assert "FAILS" in out
    assert "0 met, 0 explained, 0 refuted, 0 untested, 1 not as stated" in out


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_printed_figure_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = reproduce(monkeypatch, capsys, "--json")
    answer = json.loads(out)
    assert [each for each in answer["rows"] if each["ok"] is False] == []
    assert status == 0
    names = [(each["experiment"], each["name"]) for each in answer["rows"]]
    assert len(set(names)) == len(names)
    assert answer["untested"] <= UNTESTED_AT_MOST
    for each in answer["rows"]:
        if each["by_order"]:
            assert each["ours"] in each["by_order"].values()
            assert each["by_order"]["auto"] is not None
