"""`meridian reproduce`: the command, its report, and the cheap experiments of the Atlas paper."""

import json
import sys
from pathlib import Path

import pytest

from engine.cli import main
from engine.reproduce import Plot, Series, experiments
from engine.reproduce.report import draw


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["meridian", "reproduce", *args])
    with pytest.raises(SystemExit) as exit_:
        main()
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


def test_the_cheap_experiments_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ["atlas-fig6", "atlas-table1", "atlas-single-tcp", "atlas-multi-tcp", "atlas-fig3", "atlas-fig9"]
    status, out, err = run(monkeypatch, capsys, *names, "--json", "--out", str(tmp_path / "report"))
    assert status == 0, out
    answer = json.loads(out)
    ours = {row["name"]: row["ours"] for row in answer["rows"]}
    assert (ours["fig6 varuna"], ours["fig6 atlas"]) == (38, 36)
    assert len(answer["rows"]) == answer["met"] + answer["explained"] + answer["refuted"]
    notes = {row["name"]: row["note"] for row in answer["rows"]}
    for microbatches, in_turns, auto in ((4, 30, 28), (16, 81, 76)):
        for order in ("in turns", "auto"):
            note = notes[f"multiple TCP, M = {microbatches}: Atlas {order} over GPipe"]
            assert f"in turns {in_turns}," in note
            assert f"auto {auto};" in note
    # Atlas shares links in every row of these but for its baselines alone and Table 1.
    without = {row["name"] for row in answer["rows"] if row["by_order"] is None}
    assert without == {name for name in ours if _has_one_order(name)}
    for row in answer["rows"]:
        if row["by_order"] and row["unit"] == "x":  # gains: no rule beats the search
            assert row["by_order"]["auto"] >= max(row["by_order"].values()) * (1 - 1e-9), row["name"]
    page = (tmp_path / "report" / "report.md").read_text()
    assert "report.md" in err
    for line in page.splitlines():
        if line.startswith("!["):
            assert (tmp_path / "report" / line.split("(")[-1].rstrip(")")).read_text().count("<svg")
    assert "fig9-gpt-a-m4.svg" in page


def _has_one_order(name: str) -> bool:
    """Whether nothing is shared: one pipeline, a baseline, or no schedule at all."""
    alone = ("fig6 varuna", "stages whose replicas are in one data centre")
    return name in alone or name.startswith(("table1", "PP gpt")) or name.endswith("on one connection")


def test_list_runs_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(monkeypatch, capsys, "--list")
    assert status == 0
    assert all(name in out for name in experiments())


def test_an_unknown_name_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(monkeypatch, capsys, "atlas-fig66")
    assert status == 2
    assert err.startswith("meridian: NAME: 'atlas-fig66'")
    assert "did you mean 'atlas-fig6'?" in err


def test_a_report_without_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = run(monkeypatch, capsys, "atlas-fig6", "--out", str(tmp_path))
    assert status == 2
    assert "meridian[report]" in err


def test_the_same_plot_gives_the_same_file(tmp_path: Path) -> None:
    series = (Series(label="a", x=(1, 2), y=(3, 4)), Series(label="b", x=(1, 2), y=(4, 3)))
    for kind in ("line", "bars"):
        plot = Plot(name="p", title="t", x_label="x", y_label="y", series=series, kind=kind)
        draw(plot, tmp_path / "one.svg")
        draw(plot, tmp_path / "two.svg")
        assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
