"""The order of rooms and apps: nothing knows what comes later, and modules know each other in no circle."""

from tests.house.imports import all_known, circles
from tests.house.names import later_names
from tests.house.rooms import is_back


def test_no_module_imports_from_a_later_room() -> None:
    back = sorted({f"{k.importer} → {k.module}" for k in all_known() if is_back(k.importer, k.module)})
    assert not back, "a module knows only earlier rooms (docs/dev/house.md):\n" + "\n".join(back)


def test_no_template_address_or_task_names_a_later_app() -> None:
    names = later_names()
    assert not names, "an app knows only earlier ones (docs/dev/house.md):\n" + "\n".join(names)


def test_modules_know_each_other_in_no_circle() -> None:
    lines = [" ".join(circle) for circle in circles()]
    assert not lines, "\n".join(lines)
