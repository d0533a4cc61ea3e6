"""Each threat of docs/threats.md names its tests, and they are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", TEXT)))


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defs = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, defs) and node.name.startswith("test_")}


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_is_there(path: str, name: str) -> None:
    names = names_in(ROOT / path)
    assert name in names if name else names


def test_every_threat_names_one() -> None:
    rows = [line for line in TEXT[TEXT.index("## Threats") :].splitlines() if line.startswith("| ")]
    threats = [row for row in rows if not row.startswith(("| threat ", "| ---"))]
    assert len(threats) > 30
    assert [row for row in threats if "`tests/" not in row and "`make chaos`" not in row] == []


def test_every_attack_stands_in_it() -> None:
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {Path(__file__).name}
    assert {name for name in files if f"tests/security/{name}" not in TEXT} <= {"test_security_txt.py"}
