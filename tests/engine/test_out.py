"""`--out DIR` of commands that compute: what --json prints lies there, tables as CSV beside it."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from tests.engine.test_plan_command import GOOD

SCENARIO = {"stages": 2, "microbatches": 2, "times": {"forward": 1, "backward": 2}, "dc_of_stage": [0, 1]}
SWEEP = {
    "scenario": SCENARIO,
    "parameter": "wan.latency",
    "values": [0, 1],
    "policies": ["gpipe", "1f1b"],
}
NETWORK = Path(__file__).parents[2] / "examples/network.json"
COMMANDS: dict[str, tuple[Any, dict[str, str]]] = {
    "plan": (GOOD, {"options.csv": "dp_cells"}),
    "sweep": (SWEEP, {"rows.csv": "makespan"}),
    "network": (json.loads(NETWORK.read_text()), {}),
}


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["meridian", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_answer_lies_in_the_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document, tables = COMMANDS[command]
    file, out = tmp_path / "file.json", tmp_path / "new" / "out"
    file.write_text(json.dumps(document))
    assert call(monkeypatch, command, str(file), "--json", "--out", str(out)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert json.loads((out / "result.json").read_text()) == answer
    assert {path.name for path in out.iterdir()} == {"result.json", *tables}
    for name, column in tables.items():
        rows = answer[name.removesuffix(".csv")]
        with (out / name).open(newline="") as table:
            result = list(csv.DictReader(table))
        assert [row[column] for row in result] == [str(row[column]) for row in rows]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_cannot_be_is_bad_input(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps(COMMANDS[command][0]))
    assert call(monkeypatch, command, str(file), "--out", str(file / "in a file")) == 2
    assert "--out" in capsys.readouterr().err
