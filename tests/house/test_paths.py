"""docs/dev/paths.md: every file that it names is there, and has the name that the path has in it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| [^|]+ \| (?P<files>\w+/[^|]+) \| (?P<names>[`\w, ]+) \|$", re.MULTILINE)


def test_each_step_has_its_name_in_its_files() -> None:
    rows = list(ROW.finditer((ROOT / "docs/dev/paths.md").read_text()))
    assert len(rows) > 25
    for row in rows:
        paths: list[Path] = []
        for name in row["files"].split(", "):
            paths.append(ROOT / name if "/" in name else paths[-1].with_name(name))
        texts = [path.read_text() for path in paths]
        for name in re.findall(r"`(\w+)`", row["names"]):
            assert any(re.search(rf"\b{name}\b", text) for text in texts), (name, row["files"])
