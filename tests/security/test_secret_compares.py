"""No secret is compared byte by byte: a comparison that ends early tells how much of a guess is right.

Secrets are found by the SHA-256 that the database keeps of them, or compared by `hmac.compare_digest`.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECRET = re.compile(r"(^|_)(secret|password|token|mac|hmac|digest|sha256|proof|signature|key_hash)$")
# Comparisons of what is no secret: a hash of the name of a run.
HARMLESS = {
    ("engine/control/handshake.py", "run_digest"),
}
CODE = [
    path
    for room in ("webapp", "workers", "engine")
    for path in sorted((ROOT / room).rglob("*.py"))
    if "migrations" not in path.parts
]


def compared(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, name) of what is compared by == or != with something that is no constant."""
    comparisons = []
    for part in ast.walk(tree):
        if not isinstance(part, ast.Compare) or not isinstance(part.ops[0], ast.Eq | ast.NotEq):
            continue
        sides = [part.left, *part.comparators]
        if any(isinstance(side, ast.Constant) for side in sides):
            continue
        for side in sides:
            name = side.id if isinstance(side, ast.Name) else getattr(side, "attr", "")
            if SECRET.search(name):
                comparisons.append((part.lineno, name))
    return comparisons


@pytest.mark.parametrize("room", ["webapp", "workers", "engine"])
def test_no_secret_is_compared_in_time_that_tells(room: str) -> None:
    comparisons = []
    for path in CODE:
        name = str(path.relative_to(ROOT))
        if name.startswith(room):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            comparisons += [
                (name, line, what) for line, what in compared(tree) if (name, what) not in HARMLESS
            ]
    assert comparisons == []


def test_the_search_finds_such_a_comparison() -> None:
    tree = ast.parse("if given.token_sha256 == kept:\n    pass\nif secret != other.secret:\n    pass")
    assert {line for line, _ in compared(tree)} == {1, 3}
