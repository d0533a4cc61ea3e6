"""What is written once: kinds of events, and the words and letters that the browser compares with."""

import ast
import re
from pathlib import Path

import pytest

from engine.job.events.event import KINDS
from scripts import browser_constants, events_docs

ROOT = Path(__file__).parents[2]
CODE = [path for folder in ("engine", "workers", "webapp") for path in (ROOT / folder).rglob("*.py")]
SCRIPTS = [path for path in (ROOT / "static/js").rglob("*.js") if path != browser_constants.FILE]
WORDS = "queued|starting|running|stopping|succeeded|failed|cancelled|error|warn|info|snapshot|events"
# A word that is compared with, or one of a list that is looked into.
COMPARED = re.compile(rf"""[!=]==?\s*["']({WORDS})["']|["']({WORDS})["'][^;]*\]\.includes""")
# A letter of an op, a transfer or what it carries, where a code of a span is read.
LETTER = re.compile(r"""(kind|code\[\d\])\s*[!=]==?\s*["'][FRBWAOPCTag]["']|\{\s*F: |\["F", "R\"""")


def test_the_list_of_events_in_the_docs_is_that_of_the_code() -> None:
    assert events_docs.FILE.read_text(encoding="utf-8") == events_docs.text(), "run scripts/events_docs.py"


def test_the_browsers_constants_are_those_of_the_code() -> None:
    known = browser_constants.FILE.read_text(encoding="utf-8")
    assert known == browser_constants.text(), "run scripts/browser_constants.py"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT / "static/js")))
def test_no_script_repeats_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not COMPARED.search(text), "import it from lib/wire.js"
    assert "timeline/" not in str(path) or not LETTER.search(text), "import it from lib/wire.js"


def test_no_event_is_made_by_hand() -> None:
    """A dict with the kind of an event and what only an event has is an event that no class checks."""
    places = []
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                named = {
                    key.value: value
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant)
                }
                kind = named.get("kind")
                if isinstance(kind, ast.Constant) and kind.value in KINDS and {"t", "rank"} & named.keys():
                    places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not places
