"""`scripts/coverage_compared.py`, against reports as coverage.py writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.coverage_compared import main


def report(folder: Path, name: str, **files: dict[str, Any]) -> str:
    path = folder / name
    path.write_text(json.dumps({"files": files}))
    return str(path)


def file(
    lines: list[int], missing: list[int], branches: list[list[int]], lost: list[list[int]]
) -> dict[str, Any]:
    return {
        "executed_lines": lines,
        "missing_lines": missing,
        "executed_branches": branches,
        "missing_branches": lost,
    }


WHOLE = file([1, 2, 3], [9], [[2, 3], [2, -1]], [])


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (file([1, 2, 3], [9], [[2, 3]], [[2, -1]]), "1 of 5 no longer reached: 2→exit"),
        (file([1, 2], [3, 9], [[2, -1]], [[2, 3]]), "2 of 5 no longer reached: 2→3, 3"),
        (file([1, 2, 3], [8, 9], [[2, 3], [2, -1]], []), "its code differs: 2 not reached, 1 before"),
    ],
)
def test_what_is_lost_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: dict[str, Any], says: str
) -> None:
    assert (
        main([report(tmp_path, "before", a=WHOLE, b=WHOLE), report(tmp_path, "after", a=after, b=WHOLE)]) == 1
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"a: {says}"
    assert len(lines) == 2
    assert lines[1].endswith("1 files lost some")


@pytest.mark.parametrize(
    "after",
    [
        WHOLE,
        file([1, 2, 3, 9], [], [[2, 3], [2, -1]], []),  # reaches more
        file([1, 2], [], [], []),  # other code, all of it reached
    ],
)
def test_as_much_or_more_is_no_loss(tmp_path: Path, after: dict[str, Any]) -> None:
    assert main([report(tmp_path, "before", a=WHOLE, gone=WHOLE), report(tmp_path, "after", a=after)]) == 0


@pytest.mark.parametrize("text", ["[branches]", "[]", '{"files": {"a": {"executed_lines": [1]}}}'])
def test_no_report_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    assert main([report(tmp_path, "before", a=WHOLE), str(bad)]) == 2
    assert str(bad) in capsys.readouterr().err
