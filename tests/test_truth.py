"""docs/truth.md: its plot, its arithmetic, its commands, and the figures that this checkout computes."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from engine.cli import COMMANDS
from engine.plan.layouts.layout import read_runs
from engine.plan.layouts.predict import predict, shipped
from engine.reproduce import experiments
from scripts.docs_truth import Row, figure, rows

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/truth.md").read_text()
ROWS = rows(PAGE)
# Some pages print whole per cents, computed from more digits than they print.
ROUNDING = 1.0


def amounts(text: str) -> list[float]:
    """The numbers of a cell: of a range its ends."""
    return [
        float(number) for number in re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))
    ]


def test_the_plot_is_that_of_the_tables() -> None:
    assert len(ROWS) > 30
    assert (ROOT / "docs/truth.svg").read_text() == figure(PAGE), "run python -m scripts.docs_figures"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what[:40])
def test_a_deviation_is_what_predicted_and_measured_give(row: Row) -> None:
    assert row.numbers
    assert all(abs(number) <= 60 for number in row.numbers)  # the plot's axis
    predicted, measured = amounts(row.predicted), amounts(row.measured)
    if row.is_range or not predicted:  # ends of ranges belong to different runs
        return
    measured = measured * len(predicted) if len(measured) == 1 else measured
    given = [100 * (p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    assert row.numbers == pytest.approx(given, abs=ROUNDING)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what[:40])
def test_each_command_is_there(row: Row) -> None:
    for command in re.findall(r"`([^`]*)`", row.command):
        words = command.removeprefix("sudo ").split()
        if words[0] == "meridian":
            assert words[1] in COMMANDS
            assert words[1] != "reproduce" or words[2] in experiments()
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2])


def test_the_rows_of_sailor_are_what_this_checkout_predicts() -> None:
    runs = read_runs(json.loads((ROOT / "engine/data/sailor/measured_iterations.json").read_text()))
    predicted = [predict(run.layout(), shipped()) for run in runs]
    times = [(one.iteration_s, run.real or 0) for one, run in zip(predicted, runs, strict=True)]
    memory = [
        (max(one.memory_bytes) / 1e9, (run.max_mem or 0) / 1e9)
        for one, run in zip(predicted, runs, strict=True)
    ]
    for row, pairs, digits in ((ROWS[0], times, 3), (ROWS[1], memory, 2)):
        off = [100 * (ours / theirs - 1) for ours, theirs in pairs]
        assert amounts(row.predicted) == [round(end(p for p, _ in pairs), digits) for end in (min, max)]
        assert amounts(row.measured) == [round(end(m for _, m in pairs), digits) for end in (min, max)]
        assert row.numbers == [round(min(off), 1), round(max(off), 1)]
        mean = sum(map(abs, off)) / len(off)
        assert f"(mean {mean:.1f})" in row.deviation
