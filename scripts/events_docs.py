#!/usr/bin/env python
"""Write the list of events in docs/events.md from the classes in engine/job/events.

tests/house/test_wire.py compares the file.
"""

import ast
import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/events.md"
BEGIN, END = "<!-- kinds: scripts/events_docs.py -->\n", "<!-- end of kinds -->\n"
ADDED = ("node", "id", "run", "generation")  # said once, above the list


def text() -> str:
    """The whole file as it should be."""
    from engine.job.events.event import KINDS

    before, rest = FILE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n" + "\n".join(map(_section, KINDS.values())) + "\n" + END + after


def _section(cls: type) -> str:
    """One kind: what it says, its key, and a row for each field with the docstring below it in the class."""
    fields = cls.model_fields  # type: ignore[attr-defined]
    says = _documented(cls)
    rows = [
        f"| `{fields[name].serialization_alias or name}` | {says[name]} |"
        for name in fields
        if name != "kind" and name not in ADDED
    ]
    key = ", ".join(f"`{name}`" for name in cls.key)  # type: ignore[attr-defined]
    kind = fields["kind"].default
    head = f"## `{kind}`\n\n{inspect.getdoc(cls)}\n\nKey: {key}.\n"
    return head + ("\n| field | meaning |\n| --- | --- |\n" + "\n".join(rows) + "\n" if rows else "")


def _documented(cls: type) -> dict[str, str]:
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("engine.job.events."):
            (body,) = ast.parse(inspect.getsource(base)).body
            assert isinstance(body, ast.ClassDef)
            for field, doc in zip(body.body, body.body[1:], strict=False):
                named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                if named and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                    texts[field.target.id] = " ".join(str(doc.value.value).split())  # type: ignore[attr-defined]
    return texts


def main() -> int:
    """Write the file."""
    sys.path.insert(0, str(ROOT))
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
