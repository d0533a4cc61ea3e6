"""The order of rooms and apps: whatever knows a later one stands in known.txt, which may only shrink."""

from pathlib import Path

from tests.house.imports import all_known, circles
from tests.house.names import later_names
from tests.house.rooms import is_back

KNOWN = Path(__file__).with_name("known.txt")


def found() -> list[str]:
    """Back-imports (module → module), names of later apps (file → app), and circles, one a line."""
    imports = {f"{k.importer} → {k.module}" for k in all_known() if is_back(k.importer, k.module)}
    return [*sorted(imports), *later_names(), *(f"circle: {' '.join(circle)}" for circle in circles())]


def test_nothing_new_knows_what_comes_later() -> None:
    known = KNOWN.read_text(encoding="utf-8").splitlines()
    new = [line for line in found() if line not in known]
    assert not new, "a module knows only earlier rooms (docs/dev/house.md):\n" + "\n".join(new)


def test_what_was_mended_has_left_the_list() -> None:
    now = found()
    gone = [line for line in KNOWN.read_text(encoding="utf-8").splitlines() if line not in now]
    assert not gone, f"strike these lines from {KNOWN.name}:\n" + "\n".join(gone)
